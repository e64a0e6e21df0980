"""What every part of the environment needs: the worlds, the clock and the random generator."""

import torch

from mjtrain.config import EnvConfig
from mjtrain.env.memory import Memory
from mjtrain.env.read_only import ReadOnly
from mjtrain.sim.engines.base import Engine, State


class EnvCore:
    """The worlds and their clock, complete before any evaluator of terms is made.

    Evaluators (actions, observations, ...) are built from it. Only term functions get the whole `Env`.
    """

    def __init__(self, config: EnvConfig, engine: Engine, seed: int) -> None:
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
        self.memory = Memory(self.num_envs, self.device)
        """What terms remember from env step to env step."""
        self.read_only = ReadOnly()
        """What terms must not write."""

    @property
    def state(self) -> State:
        """The worlds."""
        return self.engine.state
