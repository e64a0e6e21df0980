"""What every part of the environment needs: the worlds, the clock and the random generator."""

import numpy as np
import torch

from mjtrain.config import EnvConfig
from mjtrain.env.memory import Memory
from mjtrain.env.read_only import ReadOnly
from mjtrain.sim.engines.base import Engine, State

_WORLDS = 3
"""What a seed is used for: the draws of worlds. Part of what a seed means, so it does not change."""


def derive_worlds_seed(seed: int) -> int:
    """Return the seed of an environment's generator, by that of the rank, at least 0.

    torch's global generator, which draws the policy's noise, has the rank's seed itself: with the same seed the worlds
    would draw the same numbers. A generator of torch on the CPU reads 32 bits.
    """
    return int(np.random.SeedSequence(seed, spawn_key=(_WORLDS,)).generate_state(1)[0])


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
        self.rng = torch.Generator(self.device).manual_seed(derive_worlds_seed(seed))
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
