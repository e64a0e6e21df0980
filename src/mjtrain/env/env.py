"""The batched MDP."""

import torch

from mjtrain.config import EnvConfig
from mjtrain.engines.base import Engine, State
from mjtrain.env.actions import Actions
from mjtrain.env.events import Events
from mjtrain.env.observations import Observations
from mjtrain.env.rewards import Rewards
from mjtrain.env.statistics import EpisodeStatistics
from mjtrain.env.terminations import Terminations


class Env:
    """Steps `num_envs` copies of a task at once; worlds whose episode ends start anew within the same step.

    Terms read it: `state`, `qpos(joint)`, `qvel(joint)`, `sensor(name)`, `action`, `last_action`, `episode_step`.
    Every function on the way of a step works on whole batches; nothing waits for the device.
    """

    def __init__(self, config: EnvConfig, engine: Engine, seed: int) -> None:
        """Build the terms and start every world.

        Args:
            config: The MDP.
            engine: The worlds, made from config.robot.
            seed: Seed of everything random in the environment.

        Raises:
            RequestError: A term names a joint, sensor or actuator that the robot does not have.
        """
        self.config = config
        self.engine = engine
        self.num_envs = engine.num_envs
        self.device = engine.device
        self.step_dt = engine.layout.timestep_s * config.decimation
        """Env step, in seconds."""
        self.max_episode_steps = max(1, round(config.episode_length_s / self.step_dt))
        """Longest episode, in env steps."""
        self.rng = torch.Generator(self.device).manual_seed(seed)
        """Source of all randomness of the environment."""
        self.episode_step = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        """Env steps since the episode began. Shape (num_envs,)."""

        self._actions = Actions(config.actions, engine.layout, self.num_envs, self.device)
        self._observations = Observations(config.observations)
        self._rewards = Rewards(config.rewards, self.step_dt)
        self._terminations = Terminations(config.terminations)
        self._events = Events(config.events)
        self.statistics = EpisodeStatistics(
            tuple(config.rewards), tuple(config.terminations), self.num_envs, self.device
        )
        self.reset(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))

    def step(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Advance every world by one env step.

        Args:
            action: Output of the policy, nominally in [-1, 1]. Shape (num_envs, num_actions).

        Returns:
            Observations by group, each of shape (num_envs, size), of the new episode where one ended; rewards, shape
            (num_envs,); terminated and truncated, boolean, shape (num_envs,).
        """
        ctrl = self._actions.apply(action)
        self.engine.step(ctrl, self.config.decimation)
        self.episode_step += 1
        rewards = self._rewards.compute(self)
        terminated, truncated, causes = self._terminations.compute(self)
        done = terminated | truncated
        self.statistics.update(rewards, causes, done)
        self.reset(done)
        return self.observe(), rewards.sum(dim=1), terminated, truncated

    def reset(self, mask: torch.Tensor) -> None:
        """Start a new episode in the masked worlds.

        Args:
            mask: Boolean, shape (num_envs,).
        """
        qpos, qvel = self._events.sample_start(self)
        self.engine.reset(mask, qpos, qvel)
        self._actions.reset(mask)
        self.episode_step.masked_fill_(mask, 0)

    def observe(self) -> dict[str, torch.Tensor]:
        """Return the observations by group, each of shape (num_envs, size)."""
        return self._observations.compute(self)

    def stagger(self) -> None:
        """Let the running episodes end at different times, as if they had begun at random moments.

        Those first, shortened episodes do not count in the statistics.
        """
        self.episode_step.random_(self.max_episode_steps, generator=self.rng)
        self.statistics.skip_running()

    @property
    def num_actions(self) -> int:
        """Size of an action."""
        return self._actions.size

    @property
    def state(self) -> State:
        """The worlds."""
        return self.engine.state

    @property
    def action(self) -> torch.Tensor:
        """Action of this step, as the policy gave it. Shape (num_envs, num_actions)."""
        return self._actions.current

    @property
    def last_action(self) -> torch.Tensor:
        """Action of the step before, zero at the start. Shape (num_envs, num_actions)."""
        return self._actions.previous

    def qpos(self, joint: str) -> torch.Tensor:
        """Position of a joint: m or rad; 7 columns for a free joint. Shape (num_envs, 1, 4 or 7)."""
        return self.state.qpos[:, self.engine.layout.qpos[joint]]

    def qvel(self, joint: str) -> torch.Tensor:
        """Velocity of a joint: m/s or rad/s; 6 columns for a free joint. Shape (num_envs, 1, 3 or 6)."""
        return self.state.qvel[:, self.engine.layout.qvel[joint]]

    def sensor(self, name: str) -> torch.Tensor:
        """Reading of a sensor of the robot's MJCF, in the sensor's unit and frame. Shape (num_envs, size)."""
        return self.state.sensordata[:, self.engine.layout.sensors[name]]
