"""A small environment with RSL-RL's `VecEnv` contract: a point that shall reach the origin of a line."""

import os
import signal
from pathlib import Path

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

LIMIT = 3.0
"""An episode fails beyond this distance."""


class PointMass(VecEnv):
    """Position and velocity in the groups policy and critic; time is up after 20 env steps."""

    def __init__(self, num_envs: int, device: str, seed: int, kill: str = "", kill_step: int = 0) -> None:
        """Begin the first episodes.

        Args:
            num_envs: How many points.
            device: Where they are.
            seed: Of the starts.
            kill: A file. In the process of which it names the seed, it is deleted and the process killed.
            kill_step: Env steps before that.
        """
        self.num_envs, self.num_actions, self.device, self.cfg = num_envs, 1, device, {}
        self.max_episode_length = 20
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.rng = torch.Generator(device).manual_seed(seed)
        self.state = torch.zeros(num_envs, 2, device=device)
        self._kill, self._seed, self._left = kill, seed, kill_step
        self._begin(torch.ones(num_envs, dtype=torch.bool, device=device))

    def get_observations(self) -> TensorDict:
        seen = {"policy": self.state.clone(), "critic": torch.cat([self.state, self.state.square()], dim=1)}
        return TensorDict(seen, batch_size=[self.num_envs], device=self.device)

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        self._maybe_die()
        self.state[:, 1] += 0.1 * actions[:, 0].clamp(-1, 1)
        self.state[:, 0] += 0.5 * self.state[:, 1]
        self.episode_length_buf += 1
        rewards = -self.state[:, 0].abs()
        far = self.state[:, 0].abs() > LIMIT
        time_outs = self.episode_length_buf >= self.max_episode_length
        dones = far | time_outs
        log = {"Metrics/distance": self.state[:, 0].abs().mean(), "seed": self._seed, f"seed_{self._seed}": 1}
        if dones.any():  # as in mjlab and Isaac Lab, which tell of episodes when they end
            log |= {
                "Episode_Termination/far": far.sum().item(),
                "Episode_Reward/length": self.episode_length_buf[dones],
            }
        self._begin(dones)
        return self.get_observations(), rewards, dones.long(), {"time_outs": time_outs & ~far, "log": log}

    def _begin(self, mask: torch.Tensor) -> None:
        start = 2 * torch.rand(self.num_envs, 2, generator=self.rng, device=self.device) - 1
        self.state = torch.where(mask[:, None], start, self.state)
        self.episode_length_buf = self.episode_length_buf.masked_fill(mask, 0)

    def _maybe_die(self) -> None:
        self._left -= 1
        file = Path(self._kill)
        if self._kill and self._left < 0 and file.is_file() and file.read_text() == str(self._seed):
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
