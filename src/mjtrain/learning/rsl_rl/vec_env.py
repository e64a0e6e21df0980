"""The environment as RSL-RL wants to see it."""

from collections.abc import Mapping

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from mjtrain.env.base import TaskEnv


class VecEnvAdapter(VecEnv):
    """Shows an environment to RSL-RL: groups as a TensorDict, terminated or truncated as dones and time_outs."""

    def __init__(self, env: TaskEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.num_actions = env.num_actions
        self.max_episode_length = env.max_episode_steps
        self.device = env.device
        self.cfg = {}
        self.step_dt = env.step_dt
        self.unwrapped = self  # RSL-RL asks it for step_dt

    @property
    def episode_length_buf(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Env steps since each episode began. Shape (num_envs,)."""
        return self.env.episode_step

    def get_observations(self) -> TensorDict:
        """Return the observation groups."""
        return pack(self.env.observe())

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Advance by one env step with actions of shape (num_envs, num_actions); rewards and dones: (num_envs,)."""
        observations, rewards, terminated, truncated = self.env.step(actions)
        return pack(observations), rewards, terminated | truncated, {"time_outs": truncated}


def pack(observations: Mapping[str, torch.Tensor]) -> TensorDict:
    """Return observations by group as a TensorDict."""
    first = next(iter(observations.values()))
    return TensorDict(dict(observations), batch_size=[first.shape[0]], device=first.device)  # pyright: ignore[reportArgumentType]
