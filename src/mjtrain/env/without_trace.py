"""Observe the worlds once more than they would be observed, and leave everything as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mjtrain.env.cameras import Cameras
from mjtrain.env.core import EnvCore
from mjtrain.env.observations import Observations


@contextmanager
def without_trace(core: EnvCore, observations: Observations, cameras: Cameras) -> Iterator[None]:
    """Undo at the end of the block what observing draws and remembers, so that the worlds go on as without it.

    Args:
        core: Gives the random generator and what terms remember.
        observations: Their histories and delays.
        cameras: Their clock and the frames that they keep.
    """
    rng, memory, clock = core.rng.get_state(), core.memory.state_dict(), cameras.clock
    live = [*observations.buffers().values(), *cameras.buffers().values()]
    before = [tensor.clone() for tensor in live]
    yield
    core.rng.set_state(rng)
    core.memory.load_state_dict(memory)
    cameras.clock = clock
    with torch.no_grad():
        for tensor, value in zip(live, before, strict=True):
            tensor.copy_(value)
