"""Gymnasium's vector environments, stepped with tensors."""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from mjtrain.config import GymnasiumConfig
from mjtrain.env.external.env import ForeignWorlds
from mjtrain.runtime.errors import RequestError

GROUP = "observation"
"""Observation group of an environment that observes one array."""

DEFAULT_STEPS = 1000
"""Longest episode of an environment that does not say."""

CLOSE_S = 3.0
"""How long environments may take for a step that was interrupted, in s; then their processes are killed."""

UNBOUNDED = 1e30
"""Actions with bounds from here on have none: some environments give the largest float32."""


def make_gymnasium(config: GymnasiumConfig, num_envs: int) -> VectorEnv:
    """Make the environments of an id."""
    workers = {"worker": _work} if config.vectorization == "async" else {}
    try:
        return gymnasium.make_vec(
            config.id,
            num_envs=num_envs,
            vectorization_mode=config.vectorization,
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP, **workers},
            **config.kwargs,
        )
    except Exception as error:  # of the environment's own code, too
        said = " ".join(str(error).split())
        raise RequestError(f"{config.label}: {said or type(error).__name__}") from error


def _work(*args: Any) -> None:
    """Be the process of an environment. The rank obeys signals to all processes of a job, and ends this one."""
    from gymnasium.vector.async_vector_env import _async_worker  # private: other kinds of environments do not need it

    os.setpgid(0, 0)  # as `GymnasiumWorlds` does for other workers, unless they are not its children
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        signal.signal(signum, lambda *_: None)  # not ignored, as programs that it starts would inherit that
    _async_worker(*args)


def _longest_episode(envs: VectorEnv) -> int:
    """Return the longest episode, in env steps: of its TimeLimit, or else of the arguments or the id."""
    limits: Sequence[int] = ()
    vector = envs.unwrapped
    if isinstance(vector, SyncVectorEnv | AsyncVectorEnv):
        if all(vector.call("has_wrapper_attr", "_max_episode_steps")):
            limits = [limit or 0 for limit in vector.get_attr("_max_episode_steps")]
    elif spec := envs.spec:
        limits = [spec.kwargs.get("max_episode_steps") or spec.max_episode_steps or 0]
    return limit if (limit := max(limits, default=0)) > 0 else DEFAULT_STEPS


class GymnasiumWorlds(ForeignWorlds):
    """Steps a vector environment, which has no convention for numbers to log, and whose clocks cannot be set.

    Actions in [-1, 1] are mapped onto the bounds of the action space where it has two of them, and clipped to a single
    one.
    """

    def __init__(self, envs: VectorEnv, seed: int, device: str, label: str) -> None:
        """Refuse spaces and an autoreset mode with which no policy can be trained; nothing is reset yet."""
        self._envs, self._label = envs, label
        # Gymnasium numbers the environments from a seed: neighbouring seeds of ranks would share most of them.
        self._seed: int | None = int(np.random.SeedSequence(seed).generate_state(1)[0])
        self._mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self.num_envs, self.device = envs.num_envs, torch.device(device)
        self.step_dt = 1.0 / float(envs.metadata.get("render_fps") or np.inf)
        self.max_episode_steps = _longest_episode(envs.unwrapped)
        vector = envs.unwrapped
        self._workers = vector.processes if isinstance(vector, AsyncVectorEnv) else []
        for worker in self._workers:
            with suppress(OSError):  # of one that runs another program by now
                # Signals to a process group are for the rank, which finishes its iteration.
                os.setpgid(worker.pid, 0)  # pyright: ignore[reportArgumentType] # it was started
        self._check_spaces()
        actions = envs.single_action_space
        assert isinstance(actions, Box)
        self.num_actions = int(np.prod(actions.shape))
        self._is_whole = np.issubdtype(actions.dtype, np.integer)
        least = np.where(actions.bounded_below, actions.low, -np.inf)  # whole numbers have no infinity
        most = np.where(actions.bounded_above, actions.high, np.inf)
        bounds = [torch.as_tensor(bound.reshape(-1), device=self.device) for bound in (least, most)]
        low, high = (bound.where(bound.abs() < UNBOUNDED, bound.sign() * torch.inf) for bound in bounds)
        self._bounds = (low, high) if bool((low.isfinite() | high.isfinite()).any()) else None
        self._has_both = low.isfinite() & high.isfinite()
        self._nearest_to_0 = torch.zeros_like(low).clamp(low, high)

    def _check_spaces(self) -> None:
        space, actions = self._envs.single_observation_space, self._envs.single_action_space
        groups = dict(space.spaces) if isinstance(space, Dict) else {GROUP: space}
        for name, times in Counter(map(str, groups)).items():
            if times > 1:
                raise RequestError(f"{self._label}: its observations have {times} groups with the name {name}")
        for name, part in groups.items():
            if not isinstance(part, Box) or len(part.shape) != 1:
                what = "observations are" if name == GROUP else f"observation {name} is"
                raise RequestError(
                    f"{self._label}: its {what} {part}; a policy reads a Box of one axis, or a Dict of such "
                    "(Gymnasium's FlattenObservation makes one)"
                )
        if not isinstance(actions, Box) or len(actions.shape) != 1:
            raise RequestError(f"{self._label}: its actions are {actions}; a policy gives numbers, a Box of one axis")
        if self._mode not in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
            mode = getattr(self._mode, "name", self._mode)
            raise RequestError(
                f"{self._label}: its autoreset mode is {mode}; make it with SAME_STEP or DISABLED, so that every step "
                "belongs to an episode"
            )

    def begin(self) -> dict[str, torch.Tensor]:
        """Begin new episodes everywhere; see `ForeignWorlds.begin`."""
        with self._naming_lost_worker():
            observations, _ = self._envs.reset(seed=self._seed)
        self._seed = None
        return self._group(observations)

    def step(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Step; see `ForeignWorlds.step`."""
        if self._bounds is not None:
            low, high = self._bounds
            scaled = low + (action.clamp(-1.0, 1.0) + 1.0) / 2.0 * (high - low)
            action = torch.where(self._has_both, scaled, self._nearest_to_0 + action).clamp(low, high)
        array = action.detach().cpu().numpy()
        if self._is_whole:
            array = np.rint(array).astype(self._envs.single_action_space.dtype)
        with self._naming_lost_worker():
            observations, *results, _ = self._envs.step(array)
        rewards = self._tensor(results[0], torch.float32)
        terminated, truncated = (self._tensor(result, torch.bool) for result in results[1:])
        done = terminated | truncated
        if self._mode is AutoresetMode.DISABLED and bool(done.any()):
            with self._naming_lost_worker():
                observations, _ = self._envs.reset(options={"reset_mask": done.cpu().numpy()})
        return self._group(observations), rewards, terminated, truncated & ~terminated

    def picture(self) -> np.ndarray | None:
        """Return a picture of the first environment; None unless its render mode is rgb_array."""
        with self._naming_lost_worker():
            pictures = self._envs.render() if self._envs.render_mode == "rgb_array" else None
        return None if pictures is None else np.asarray(pictures[0])

    def close(self) -> None:
        """Close them."""
        vector = self._envs.unwrapped
        if isinstance(vector, AsyncVectorEnv) and not vector.closed:
            pairs = zip(vector.processes, vector.parent_pipes, strict=True)
            is_lost = any(worker.exitcode is not None and pipe is not None for worker, pipe in pairs)
            if not is_lost and vector._state is not AsyncState.DEFAULT:
                with suppress(Exception):  # of the step that was interrupted
                    vector.close(timeout=CLOSE_S)
            if not vector.closed and (is_lost or vector._state is not AsyncState.DEFAULT):
                # Gymnasium would wait for answers that never come.
                for worker in self._workers:
                    worker.kill()
                vector._state = AsyncState.DEFAULT
                vector.close(terminate=True)
        self._envs.close()

    @contextmanager
    def _naming_lost_worker(self) -> Iterator[None]:
        """Name the environment whose process has ended, if its pipe breaks in a with block."""
        try:
            yield
        except (EOFError, ConnectionError) as error:
            ended = wait([worker.sentinel for worker in self._workers], timeout=1.0)
            for number, worker in enumerate(self._workers):
                if worker.sentinel in ended:
                    worker.join(1.0)  # its pipes close a moment before it has ended
                if (code := worker.exitcode) is not None:
                    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
                    raise RuntimeError(f"{self._label}: the process of environment {number} {how}") from error
            raise

    def _group(self, observations: Any) -> dict[str, torch.Tensor]:
        groups = observations if isinstance(observations, dict) else {GROUP: observations}
        return {str(name): self._tensor(values, torch.float32) for name, values in groups.items()}

    def _tensor(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a copy, as some environments write their next results into the same memory."""
        return torch.as_tensor(values).to(self.device, dtype, copy=True)
