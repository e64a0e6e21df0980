"""What the functions of terms must return, and errors that name the term that did not."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from mjtrain.config import ObservationTerm
from mjtrain.env.core import EnvCore
from mjtrain.runtime.errors import message_of

if TYPE_CHECKING:
    from mjtrain.env.env import Env

Kind = Literal[
    "observation",
    "reward",
    "termination",
    "success",
    "command",
    "refine",
    "steer",
    "error",
    "event",
    "curriculum",
    "controller",
]

_PER_WORLD = "one value per world, shape (num_envs,)"
_COLUMNS = "float32 of shape (num_envs, size)"
_WANTED: dict[Kind, str] = {
    "observation": f"an observation is {_COLUMNS}",
    "command": f"a command is {_COLUMNS}",
    "refine": f"a refined command is {_COLUMNS}",
    "steer": f"a command is {_COLUMNS}",
    "controller": "actions of a controller are float32 of shape (num_envs, num_actions)",
    "reward": f"a reward is {_PER_WORLD}",
    "error": f"an error is {_PER_WORLD}",
    "curriculum": f"a level is {_PER_WORLD}",
    "termination": "a termination is boolean of shape (num_envs,), such as a comparison",
    "success": "a success is boolean of shape (num_envs,), such as a comparison",
    "event": "an event changes worlds.qpos and worlds.qvel in place and returns nothing",
}
_WANTED_IMAGE = f"{_WANTED['observation']}, or images: uint8 or float32 of shape (num_envs, channels, height, width)"
_BOOLEAN = ("termination", "success")
_WITH_COLUMNS = ("observation", "command", "refine", "steer", "controller")


def find_result_problem(kind: Kind, value: Any, num_envs: int, device: torch.device) -> str | None:
    """Compare what a term returned with what its kind must return, except for the values themselves.

    Returns:
        What it returned and what is wanted, to follow the name of the term; None if it fits. Waits for no device.
    """
    wanted = _WANTED[kind]
    if kind == "event":
        return None if value is None else f"returned {_describe(value, num_envs)}; {wanted}"
    if not isinstance(value, torch.Tensor):
        return f"returned {_describe(value, num_envs)}; {wanted}"
    if value.is_nested:
        return f"returned a nested tensor; {wanted}"
    if value.layout is not torch.strided:
        return f"returned a sparse tensor; {wanted}; append .to_dense()"
    is_image = kind == "observation" and value.ndim == 4
    if kind == "observation" and value.ndim > 2:
        wanted = _WANTED_IMAGE
    shape_fits = is_image or value.ndim == (2 if kind in _WITH_COLUMNS else 1)
    shape_fits = shape_fits and value.shape[0] == num_envs
    if not shape_fits:
        return f"returned a tensor of shape {_show_shape(value, num_envs)}; {wanted}{_mend_shape(kind, value)}"
    if kind in _WITH_COLUMNS and value.shape[1] == 0:
        return "returned no columns; give at least one"
    if value.device.type != device.type:
        return f"returned a tensor on {value.device}, and the worlds are on {device}; make tensors with env.device"
    if is_image:
        dtype_fits, mend = value.dtype in (torch.uint8, torch.float32), ""
    elif kind in _BOOLEAN:
        dtype_fits, mend = value.dtype == torch.bool, ""
    elif kind in _WITH_COLUMNS:
        dtype_fits, mend = value.dtype == torch.float32, "; append .float()"
    else:  # weights are float32, to which smaller types are promoted
        dtype_fits, mend = value.dtype != torch.float64 and not value.is_complex(), " of float32; append .float()"
    return None if dtype_fits else f"returned a tensor of {str(value.dtype).removeprefix('torch.')}; {wanted}{mend}"


def call_term(name: str, func: Callable[..., Any], env: Any, params: dict[str, Any], core: EnvCore, *args: Any) -> Any:
    """Call the function of a term.

    Raises:
        RequestError: The function wrote into what the environment gave it.
        Exception: Whatever the function raises, with a note that names the term.
    """
    core.read_only.mark()
    return _call(name, func, env, params, core, *args)


def _call(name: str, func: Callable[..., Any], env: Any, params: dict[str, Any], core: EnvCore, *args: Any) -> Any:
    """Call it; the caller has marked `core.read_only` after the last write that was not by a term."""
    try:
        value = func(env, *args, **params)
    except (Exception, SystemExit) as error:
        error.add_note(f"this happened in the term --env.{name}")
        raise
    core.read_only.check(name)
    return value


def stack_terms(
    kind: Kind, terms: Sequence[tuple[str, Callable[..., Any], dict[str, Any]]], env: Any, core: EnvCore
) -> torch.Tensor:
    """Call the functions of terms and put their results side by side. Shape (num_envs, num_terms).

    Raises:
        TypeError: A result does not fit; the message names the term. Results are checked before a training begins, but
            may differ later or on another device.
        Exception: As `call_term`.
    """
    core.read_only.mark()
    results = [_call(name, func, env, params, core) for name, func, params in terms]
    try:
        stacked = torch.stack(results, dim=1)
    except Exception:
        check_results(kind, [name for name, _, _ in terms], results, core)
        raise
    fits = stacked.shape == (core.num_envs, len(results)) and (kind not in _BOOLEAN or stacked.dtype == torch.bool)
    if not fits:
        check_results(kind, [name for name, _, _ in terms], results, core)
    return stacked


def check_results(kind: Kind, names: Sequence[str], results: Sequence[Any], core: EnvCore) -> None:
    """Raise a TypeError that names the first term, such as rewards.slip, whose result does not fit its kind."""
    for name, value in zip(names, results, strict=True):
        problem = find_result_problem(kind, value, core.num_envs, core.device)
        if problem is not None:
            raise TypeError(f"--env.{name}: {problem}")


def describe_exception(func: Callable[..., Any], error: BaseException) -> str:
    """Say in one line what the function of a term raised, and on which line of which file."""
    text = " ".join(message_of(error).split())
    file = getattr(getattr(func, "__code__", None), "co_filename", None)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    place = f" ({Path(file).name}, line {lines[-1]})" if file is not None and lines else ""
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if "Boolean value of Tensor" in text:
        place += "; it gets all worlds at once: use torch.where and masks"
    return f"{getattr(func, '__name__', 'the function')}() raised {what}{place}"


def _describe(value: Any, num_envs: int) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {_show_shape(value, num_envs)}"
    if value is None:
        return "None"
    if isinstance(value, bool | int | float | str):
        return f"the {type(value).__name__} {value!r}"
    if isinstance(value, np.ndarray):
        return "a numpy array"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _show_shape(value: torch.Tensor, num_envs: int) -> str:
    sizes = [str(size) for size in value.shape]
    if value.shape[:1] == (num_envs,):
        sizes[0] = "num_envs"
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _mend_shape(kind: Kind, value: torch.Tensor) -> str:
    """Suggest what makes the shape fit, where that is plain."""
    if kind in _WITH_COLUMNS:
        return "; append [:, None]" if value.ndim == 1 else ""
    return "; append [:, 0]" if value.ndim == 2 and value.shape[1] == 1 else ""


class ObservationSource:
    """A function with its parameters."""

    def __init__(self, name: str, term: ObservationTerm, core: EnvCore) -> None:
        self._core = core
        self.name = name
        self._func: Callable[..., torch.Tensor] = term.func
        self._params = term.params
        self._key = (term.func, repr(sorted(term.params.items())))

    def read(self, env: "Env", cache: dict[Any, torch.Tensor]) -> torch.Tensor:
        """Call the function, unless the cache has its result."""
        if self._key not in cache:
            cache[self._key] = _call(self.name, self._func, env, self._params, self._core)
        return cache[self._key]
