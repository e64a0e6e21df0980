"""External environments with what a training needs of them, `env.base.TaskEnv`; and those with RSL-RL's contract."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch

from mjtrain.config import ForeignConfig, GymnasiumConfig, MjlabConfig
from mjtrain.env.base import TaskEnv, check_action
from mjtrain.env.statistics import EnvLog, EpisodeStatistics
from mjtrain.runtime.errors import RequestError, require

NEEDED = ("num_envs", "num_actions", "max_episode_length", "episode_length_buf", "device", "get_observations", "step")
"""Attributes that are read from an object with RSL-RL's interface."""


class ForeignWorlds(Protocol):
    """Environments of one library, all stepped at once. One whose episode ends is reset within the same step.

    A class inherits from this one, and need not define what its environments cannot do.
    """

    num_envs: int
    num_actions: int
    device: torch.device
    step_dt: float
    """Env step, in seconds; 0 if it is not known."""
    max_episode_steps: int

    log: Mapping[str, torch.Tensor] = MappingProxyType({})
    """Numbers that they told of themselves in the last step, by name; of any shape."""

    def begin(self) -> dict[str, torch.Tensor]:
        """Begin new episodes everywhere, where that is possible; return the observations by group."""
        ...

    def step(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Step; arguments and result as those of `TaskEnv.step`."""
        ...

    def stagger(self) -> bool:
        """Let the running episodes end at different times; return whether that is possible."""
        return False

    def picture(self) -> np.ndarray | None:
        """Return a picture of the first environment, uint8 of shape (height, width, 3); None if it draws none."""
        return None

    def close(self) -> None:
        """Give back what they hold."""


class ForeignEnv(TaskEnv):
    """Counts episodes of foreign environments. Nothing is known of what they share or of worlds that break."""

    def __init__(self, config: ForeignConfig, worlds: ForeignWorlds) -> None:
        self.config, self.worlds = config, worlds
        self.num_envs, self.device = worlds.num_envs, worlds.device
        self.step_dt, self.max_episode_steps = worlds.step_dt, worlds.max_episode_steps
        self.episode_step = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        self.reward_terms = torch.zeros(self.num_envs, 1, device=self.device)
        """Reward of the last step. Shape (num_envs, 1)."""
        self.causes = torch.zeros(self.num_envs, 2, dtype=torch.bool, device=self.device)
        """Terminated and truncated in the last step. Boolean, shape (num_envs, 2)."""
        self.successes = torch.zeros(self.num_envs, 0, device=self.device)
        """None are known."""
        self.statistics = EpisodeStatistics(config.rewards, config.terminations, self.num_envs, self.device)
        self._log = EnvLog(self.device)
        self._seen = worlds.begin()

    @property
    def num_actions(self) -> int:
        """Size of an action."""
        return self.worlds.num_actions

    @property
    def log(self) -> EnvLog:
        """What they tell of themselves."""
        return self._log

    def observe(self) -> dict[str, torch.Tensor]:
        """Return the observations by group, as the last step or reset left them."""
        return self._seen

    def step(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Advance by one env step; see `TaskEnv.step`."""
        check_action(action, self.num_envs, self.num_actions)
        self._seen, rewards, terminated, truncated = self.worlds.step(action)
        done = terminated | truncated
        self.episode_step += 1
        self.reward_terms, self.causes = rewards[:, None], torch.stack([terminated, truncated], dim=1)
        self.statistics.add(self.reward_terms, self.causes, done)
        self.statistics.drop_running(done)
        self._log.add(self.worlds.log)
        self.episode_step.masked_fill_(done, 0)
        return self._seen, rewards, terminated, truncated

    def reset(self, mask: torch.Tensor) -> None:
        """Begin new episodes, which foreign environments can only do everywhere. Boolean, shape (num_envs,)."""
        assert bool(mask.all()), "some environments alone cannot be reset"
        self._seen = self.worlds.begin()
        self.statistics.drop_running(mask)
        self.episode_step.zero_()

    def stagger(self) -> None:
        """Let the running episodes end at different times, if that is possible; then they do not count."""
        if self.worlds.stagger():
            self.statistics.skip_running()

    def observation_widths(self, group: str) -> dict[str, int]:
        """Return the columns of an observation group, of which no parts are known."""
        return {"": self._seen[group].shape[1]}

    def command(self, name: str) -> torch.Tensor:
        """There is none."""
        raise KeyError(name)

    def state_dict(self) -> dict[str, Any]:
        """Return which environments these are: their state is not known."""
        return {"foreign": self.config.label}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: ARG002
        """Refuse: always raise a ValueError."""
        raise ValueError(f"{self.config.label} does not tell its state, so no checkpoint has it")

    def close(self) -> None:
        """Close them."""
        self.worlds.close()


def make_foreign_env(
    config: ForeignConfig, num_envs: int, device: str, seed: int, *, tries_step: bool = True
) -> ForeignEnv:
    """Make a rank's environments.

    Args:
        tries_step: Whether an object with RSL-RL's contract is checked by a step, which is part of its first episodes
            if it cannot be reset.
    """
    worlds = _make_worlds(config, num_envs, device, seed, tries_step=tries_step)
    with closing_on_error(worlds):
        if worlds.num_envs != num_envs:
            made = f"made {worlds.num_envs} environments"
            raise RequestError(f"{config.label}: {made}; {num_envs} were asked for (num_envs)")
        if worlds.num_actions < 1:
            raise RequestError(f"{config.label}: its actions are empty; a policy gives at least one number")
        return ForeignEnv(config, worlds)


@contextmanager
def closing_on_error(worlds: ForeignWorlds | ForeignEnv) -> Iterator[None]:
    """Close environments, which may have processes, if a with block does not reach its end."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first error says more
            worlds.close()
        raise


class VecEnvWorlds(ForeignWorlds):
    """Steps an object with the contract, which has no pictures."""

    def __init__(self, envs: Any, label: str, *, tries_step: bool) -> None:
        """Check that the object has the contract; `tries_step`: also by a step with zeros."""
        missing = [name for name in NEEDED if not hasattr(envs, name)]
        if missing:
            raise RequestError(
                f"{label}: made a {type(envs).__name__} without {', '.join(missing)}; give a "
                "gymnasium.vector.VectorEnv, or an object with RSL-RL's VecEnv contract"
            )
        self._envs, self._label = envs, label
        self.num_envs, self.num_actions = int(envs.num_envs), int(envs.num_actions)
        self.device = torch.device(envs.device)
        longest = torch.as_tensor(envs.max_episode_length).max()
        if not longest.isfinite():
            raise RequestError(f"{label}: its max_episode_length is {longest.item()}; give a number of env steps")
        self.max_episode_steps = int(longest)
        self.step_dt = float(getattr(getattr(envs, "unwrapped", envs), "step_dt", 0.0))
        self._read(envs.get_observations())
        if tries_step:
            self.step(torch.zeros(self.num_envs, self.num_actions, device=self.device))

    def begin(self) -> dict[str, torch.Tensor]:
        """Begin new episodes, if the object can be reset, and continue otherwise; see `ForeignWorlds.begin`."""
        if callable(getattr(self._envs, "reset", None)):
            self._envs.reset()
        return self._read(self._envs.get_observations())

    def step(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Step; see `ForeignWorlds.step`."""
        result = self._envs.step(action.clone())  # some objects limit actions where they are
        if not isinstance(result, tuple) or len(result) != 4:
            raise RequestError(
                f"{self._label}: step returned {_describe(result)}; give observations, rewards, dones, extras"
            )
        observations, rewards, dones, extras = result
        extras = extras if isinstance(extras, Mapping) else {}
        self.log = self._read_log(extras)
        time_outs = extras.get("time_outs")
        seen = self._read(observations)
        if time_outs is None:
            time_outs = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        for name, values in (("rewards", rewards), ("dones", dones), ("extras['time_outs']", time_outs)):
            if not isinstance(values, torch.Tensor) or values.shape != (self.num_envs,):
                raise RequestError(
                    f"{self._label}: {name} are {_describe(values)}; give a tensor of shape ({self.num_envs},)"
                )
        rewards, done, truncated = (values.to(self.device) for values in (rewards, dones.bool(), time_outs.bool()))
        return seen, rewards.float(), done & ~truncated, done & truncated

    def stagger(self) -> bool:
        """Set the clocks of the episodes at random, as RSL-RL does."""
        clocks = self._envs.episode_length_buf
        self._envs.episode_length_buf = torch.randint_like(clocks, high=max(1, self.max_episode_steps))
        return True

    def close(self) -> None:
        """Close the object, if it can be."""
        if callable(getattr(self._envs, "close", None)):
            self._envs.close()

    def _read(self, observations: Any) -> dict[str, torch.Tensor]:
        """Return the groups of a TensorDict, checked, as copies: some objects observe into the same memory again."""
        if isinstance(observations, torch.Tensor) or not callable(getattr(observations, "items", None)):
            raise RequestError(
                f"{self._label}: observations are {_describe(observations)}; give a TensorDict of groups"
            )
        seen = dict(observations.items())
        for name, values in seen.items():
            if not isinstance(values, torch.Tensor) or values.ndim not in (2, 4) or len(values) != self.num_envs:
                raise RequestError(
                    f"{self._label}: observation group {name} is {_describe(values)}; give a tensor of shape "
                    f"({self.num_envs}, size), or of images"
                )
        return {
            name: values.to(
                self.device,
                values.dtype if values.ndim == 4 and values.dtype == torch.uint8 else torch.float32,
                copy=True,
            )
            for name, values in seen.items()
        }

    def _read_log(self, extras: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return what RSL-RL would log of a step, as tensors."""
        key = "episode" if "episode" in extras else "log"
        told = {}
        for name, value in (extras.get(key) or {}).items():
            try:
                told[str(name)] = torch.as_tensor(value, dtype=torch.float64)
            except (TypeError, ValueError, RuntimeError) as error:
                raise RequestError(
                    f"{self._label}: extras['{key}']['{name}'] is {_describe(value)}; give a number, or a tensor"
                ) from error
        return told


def _make_worlds(config: ForeignConfig, num_envs: int, device: str, seed: int, *, tries_step: bool) -> ForeignWorlds:
    if isinstance(config, GymnasiumConfig):
        require(f"{config.label}:", "gymnasium", "gymnasium")
        from mjtrain.env.external.gymnasium_worlds import make_gymnasium

        envs = make_gymnasium(config, num_envs)
    elif isinstance(config, MjlabConfig):
        from mjtrain.env.external.mjlab_task import make_mjlab

        envs = make_mjlab(config, num_envs, device, seed)
    else:
        make: Callable[..., Any] = config.make
        envs = make(num_envs=num_envs, device=device, seed=seed, **config.kwargs)
    gymnasium = sys.modules.get("gymnasium")  # it has been imported, if it has made them
    if gymnasium is not None and isinstance(envs, gymnasium.vector.VectorEnv):
        from mjtrain.env.external.gymnasium_worlds import GymnasiumWorlds

        return GymnasiumWorlds(envs, seed, device, config.label)
    return VecEnvWorlds(envs, config.label, tries_step=tries_step)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
