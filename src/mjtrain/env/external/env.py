"""Environments of other packages with what a training needs of them: `env.base.TaskEnv`."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from mjtrain.config import ForeignConfig, GymnasiumConfig, MjlabConfig
from mjtrain.config.foreign import ForeignEnvConfig
from mjtrain.env.base import TaskEnv, check_action
from mjtrain.env.statistics import EnvLog, EpisodeStatistics
from mjtrain.runtime.errors import RequestError, require


class ForeignWorlds(Protocol):
    """Environments of one library, all stepped at once. One whose episode ends is reset within the same step."""

    num_envs: int
    num_actions: int
    device: torch.device
    step_dt: float
    """Env step, in seconds; 0 if it is not known."""
    max_episode_steps: int

    @property
    def log(self) -> Mapping[str, torch.Tensor]:
        """Numbers that they told of themselves in the last step, by name; of any shape."""
        ...

    def begin(self) -> dict[str, torch.Tensor]:
        """Begin new episodes everywhere, where that is possible; return the observations by group."""
        ...

    def step(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Step; arguments and result as those of `TaskEnv.step`."""
        ...

    def stagger(self) -> bool:
        """Let the running episodes end at different times; return whether that is possible."""
        ...

    def picture(self) -> np.ndarray | None:
        """Return a picture of the first environment, uint8 of shape (height, width, 3); None if it draws none."""
        ...

    def close(self) -> None:
        """Give back what they hold."""


class ForeignEnv(TaskEnv):
    """Counts episodes of foreign environments. Nothing is known of what they share or of worlds that break."""

    def __init__(self, config: ForeignEnvConfig, worlds: ForeignWorlds, label: str) -> None:
        self.config, self.worlds, self._label = config, worlds, label
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
        self.statistics.update(self.reward_terms, self.causes, done)
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
        return {"foreign": self._label}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: ARG002
        """Refuse: always raise a ValueError."""
        raise ValueError(f"{self._label} does not tell its state, so no checkpoint has it")

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
        return ForeignEnv(config, worlds, config.label)


@contextmanager
def closing_on_error(worlds: ForeignWorlds | ForeignEnv) -> Iterator[None]:
    """Close environments, which may have processes, if a with block does not reach its end."""
    try:
        yield
    except BaseException:
        worlds.close()
        raise


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
    from mjtrain.env.external.vec_env_worlds import VecEnvWorlds

    return VecEnvWorlds(envs, config.label, tries_step=tries_step)
