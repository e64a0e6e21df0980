"""Step other worlds of a task, or observe the same ones again, and leave the ones that learn unchanged."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mjtrain.config import EnvConfig
from mjtrain.env.cameras import Cameras
from mjtrain.env.core import EnvCore
from mjtrain.env.observations import Observations
from mjtrain.env.term_check import list_functions
from mjtrain.runtime.worker import same_random_numbers, torch_defaults


@contextmanager
def undisturbed(config: EnvConfig, device: str = "cpu") -> Iterator[None]:
    """Leave this process as it was before a with block, as far as the terms of a task can tell.

    Restored are the random generators of the CPU and of the device, and what the terms' functions may keep from call to
    call: global variables of their modules, and attributes of functions. Tensors that are kept there and changed in
    place stay changed.
    """
    memory = Memory(config)
    try:
        with same_random_numbers(device), torch_defaults():
            yield
    finally:
        memory.restore()


def _list_spaces(config: EnvConfig) -> list[dict[str, Any]]:
    """Return the names of modules that functions come from, except those of mjtrain, and attributes of functions."""
    spaces: dict[int, dict[str, Any]] = {}
    for term in list_functions(config):
        for space in (getattr(term.func, "__globals__", {}), getattr(term.func, "__dict__", {})):
            if not str(space.get("__name__", "")).startswith("mjtrain."):
                spaces[id(space)] = space
    return list(spaces.values())


class Memory:
    """What functions of a task keep from call to call outside the environment, as it was when this was made."""

    def __init__(self, config: EnvConfig) -> None:
        kinds = (dict, list, set)
        # By name: the value, and what it has in it.
        self._before = [
            (space, {name: (value, value.copy() if type(value) in kinds else value) for name, value in space.items()})
            for space in _list_spaces(config)
        ]

    def restore(self) -> None:
        """Put everything back."""
        for space, before in self._before:
            for name in set(space) - set(before):
                del space[name]
            for name, (value, content) in before.items():
                space[name] = value
                if content is not value and not name.startswith("__"):
                    value.clear()
                    value.extend(content) if isinstance(value, list) else value.update(content)

    def find_changed(self) -> list[str]:
        """Return names whose values have changed since; what a dict has got in addition is a cache, and is left out."""
        return [
            name
            for space, before in self._before
            for name, (_, content) in before.items()
            if not name.startswith("__") and _has_changed(content, space.get(name))
        ]


def _has_changed(before: Any, now: Any) -> bool:
    if isinstance(before, dict) and isinstance(now, dict):
        return any(now.get(key) is not value for key, value in before.items())
    if isinstance(before, list) and isinstance(now, list):
        return len(before) != len(now) or any(one is not other for one, other in zip(before, now, strict=True))
    return before != now if isinstance(before, set) else before is not now


@contextmanager
def preserving_state(core: EnvCore, observations: Observations, cameras: Cameras) -> Iterator[None]:
    """Undo at the end of the block what observing draws and remembers, so that the worlds continue as without it."""
    rng, memory, clock = core.rng.get_state(), core.memory.state_dict(), cameras.clock
    live = [*observations.buffers().values(), *cameras.frames()]
    before = [tensor.clone() for tensor in live]
    yield
    core.rng.set_state(rng)
    core.memory.load_state_dict(memory)
    cameras.clock = clock
    with torch.no_grad():
        for tensor, value in zip(live, before, strict=True):
            tensor.copy_(value)
