"""Record the positions of a world, of what it follows, and what its cameras see, for rendering later."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

from mjtrain.env.env import Env
from mjtrain.evaluation.followed import find_followed
from mjtrain.sim.drawing.video import CameraStream, Clip, list_streams

FPS = 25
"""Frames per second of simulated time, at most; fewer where env steps are longer."""


class Recorder:
    """Copies positions and camera images of one world every N env steps, on the device: nothing waits for it."""

    def __init__(
        self,
        qpos: torch.Tensor,
        step_dt: float,
        length_s: float,
        world: int = 0,
        images: Mapping[CameraStream, torch.Tensor] | None = None,
        ghost: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        """Allocate a clip.

        Args:
            qpos: Positions of the worlds, live. Shape (num_envs, nq).
            length_s: Length of a clip, in simulated time.
            images: Camera images of the worlds, live. Shape (num_envs, channels, height, width) each.
            ghost: ghost(world) -> positions that the world should have now. Shape (nq,).
        """
        self._world, self._ghost = world, ghost
        self._source = qpos[world]
        self._stride = max(1, math.ceil(1 / (FPS * step_dt) - 1e-6))  # without what is only rounding
        self._fps = 1 / (step_dt * self._stride)
        self._frames = self._source.new_zeros(max(2, round(length_s * self._fps)), *self._source.shape)
        self._ghosts = torch.zeros_like(self._frames)
        self._seen = {stream: image[world] for stream, image in (images or {}).items()}
        self._images = {
            stream: image.new_zeros(len(self._frames), *image.shape) for stream, image in self._seen.items()
        }
        self._steps: int | None = None
        self._iteration = 0

    @property
    def is_recording(self) -> bool:
        """Whether a clip was started and not taken."""
        return self._steps is not None

    @property
    def fullness(self) -> float:
        """Fraction of the clip that is recorded, from 0 to 1."""
        return 0.0 if self._steps is None else -(-self._steps // self._stride) / len(self._frames)

    def begin(self, iteration: int) -> None:
        """Start a clip with the next env step; see `Clip.iteration`."""
        self._steps, self._iteration = 0, iteration

    def after_step(self) -> None:
        """Record the world, if it is due; called after each env step."""
        if self._steps is None or self._steps >= self._stride * len(self._frames):
            return
        if self._steps % self._stride == 0:
            frame = self._steps // self._stride
            self._frames[frame].copy_(self._source)
            if self._ghost is not None:
                self._ghosts[frame].copy_(self._ghost(self._world))
            for stream, image in self._seen.items():
                self._images[stream][frame].copy_(image)
        self._steps += 1

    def take(self) -> Clip:
        """End the clip and return what was recorded of it."""
        assert self._steps is not None
        count = -(-self._steps // self._stride)
        self._steps = None
        return Clip(
            qpos=self._frames[:count].cpu().numpy().astype(np.float32),
            fps=self._fps,
            iteration=self._iteration,
            ghost=None if self._ghost is None else self._ghosts[:count].cpu().numpy().astype(np.float32),
            images={stream: frames[:count].cpu().numpy().copy() for stream, frames in self._images.items()},
        )


def make_recorder(env: Env, length_s: float) -> Recorder:
    """Return a recorder of an environment's world 0, with all that its cameras see, and what it follows."""
    followed = find_followed(env)
    images = {stream: env.cameras.images(stream.camera, stream.stream) for stream in list_streams(env.config.cameras)}
    ghost = None if followed is None else followed.qpos
    return Recorder(env.state.qpos, env.step_dt, length_s, images=images, ghost=ghost)
