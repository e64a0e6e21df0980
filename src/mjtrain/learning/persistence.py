"""What a checkpoint has beside weights: environments and random generators of all ranks; and whether weights fit."""

import io
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mjtrain.config.limits import show
from mjtrain.env.base import TaskEnv
from mjtrain.learning.collectives import Collectives
from mjtrain.runtime.rank import RankContext

_PLAIN = (torch.Tensor, int, float, complex, str, bytes, set, torch.dtype, torch.device, type(None))
"""What can be read from a file without running code."""


def get_rng_state(device: str) -> dict[str, Any]:
    """Return the state of all global generators of this process, as tensors and numbers."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
    }
    if torch.device(device).type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Any], device: str) -> None:
    """Restore what `get_rng_state` returned."""
    torch.set_rng_state(state["torch"].cpu())
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    keys = numpy["keys"].cpu().numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
    if "cuda" in state and torch.device(device).type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def gather_rank_states(
    env: TaskEnv, own: dict[str, Any], device: str, collectives: Collectives, context: RankContext
) -> list[dict[str, Any]]:
    """Return what only each rank has, by rank, on the CPU; empty except on the main rank. Every rank must call it."""
    mine = io.BytesIO()
    torch.save({"rng": get_rng_state(device), "env": env.state_dict(), **as_tensors(own, "rank_state()")}, mine)
    gathered = collectives.gather_bytes(mine.getvalue(), context)
    if not context.is_main:
        return []
    # To the CPU: tensors name the GPU of their rank, which this process must not touch, and other nodes may have more.
    return [torch.load(io.BytesIO(state), map_location="cpu", weights_only=True) for state in gathered]


def find_other_shape(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> str | None:
    """Describe a tensor that differs in shape, or else is in only one of two state dictionaries; None without one.

    The second one is read from a file, and may be something else.
    """
    if not isinstance(theirs, Mapping):
        return f"is {show(theirs)} in the checkpoint, not tensors by name"
    for name, value in theirs.items():
        if not isinstance(value, torch.Tensor):
            return f"{name} is {show(value)} in the checkpoint, not a tensor"
    here, there = ({name: tuple(value.shape) for name, value in state.items()} for state in (ours, theirs))
    differing = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if not differing:
        return None
    name = min(differing, key=lambda name: name not in here or name not in there)  # shapes say most
    theirs_is = f"has shape {there[name]}" if name in there else "is missing"
    return f"{name} {theirs_is} in the checkpoint and {here.get(name, 'missing')} here"


def find_other_moment(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> str | None:
    """Describe a tensor in an optimiser's saved state whose shape differs from its parameter's; None if all match.

    For optimisers whose moments have the shapes of the parameters, such as Adam and SGD. Torch compares neither shapes
    nor types when it loads a state. The first step then fails, or reads beyond the end.

    Raises:
        ValueError: An entry or a step size is of another type; the message names it.
    """
    shapes = dict(enumerate(weight.shape for group in optimizer.param_groups for weight in group["params"]))
    moments = [(index, name, value) for index, entry in state["state"].items() for name, value in entry.items()]
    rates = [(index, "lr", group["lr"]) for index, group in enumerate(state["param_groups"])]
    for what, entries in (("parameter", moments), ("group", rates)):
        for index, name, value in entries:
            if not isinstance(value, torch.Tensor | float | int | None):
                raise ValueError(f"{name} of {what} {index} is {show(value)}, not a tensor or a number")
    for index, name, value in moments:
        if isinstance(value, torch.Tensor) and value.ndim and value.shape != shapes.get(index):
            here = tuple(shapes[index]) if index in shapes else "the parameter is missing"
            return f"{name} of parameter {index} has shape {tuple(value.shape)} in the checkpoint and {here} here"
    return None


def as_tensors(value: Any, name: str = "state") -> Any:
    """Replace the arrays of numpy in nested dictionaries and lists by tensors, and its numbers by plain ones.

    A value without arrays is returned unchanged. Raises a TypeError with `name` if a checkpoint cannot hold the value.
    """
    if isinstance(value, dict):
        converted = {key: as_tensors(item, f"{name}[{key!r}]") for key, item in value.items()}
        return converted if any(converted[key] is not value[key] for key in value) else value
    if isinstance(value, list | tuple):
        items = [as_tensors(item, f"{name}[{index}]") for index, item in enumerate(value)]
        return type(value)(items) if any(a is not b for a, b in zip(items, value, strict=True)) else value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return torch.from_numpy(np.array(value))  # a copy: arrays of other libraries may not be written to
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, _PLAIN):
        raise TypeError(f"{name} is {show(value)}; a checkpoint holds tensors, arrays, numbers, strings and booleans")
    return value
