"""Objects with RSL-RL's `VecEnv` contract, as wrappers of mjlab and Isaac Lab have it."""

from collections.abc import Mapping
from typing import Any

import torch

from mjtrain.runtime.errors import RequestError

NEEDED = ("num_envs", "num_actions", "max_episode_length", "episode_length_buf", "device", "get_observations", "step")
"""What the contract has, and what is read of it."""


class VecEnvWorlds:
    """Steps an object with the contract: `external.env.ForeignWorlds`."""

    def __init__(self, envs: Any, label: str, *, tries_step: bool) -> None:
        """Check that the object has the contract; `tries_step`: also by a step with zeros."""
        missing = [name for name in NEEDED if not hasattr(envs, name)]
        if missing:
            raise RequestError(
                f"{label}: made a {type(envs).__name__} without {', '.join(missing)}; give a "
                "gymnasium.vector.VectorEnv, or an object with RSL-RL's VecEnv contract"
            )
        self._envs, self._label = envs, label
        self.log: dict[str, torch.Tensor] = {}
        """What the last step told in its extras."""
        self.num_envs, self.num_actions = int(envs.num_envs), int(envs.num_actions)
        self.device = torch.device(envs.device)
        longest = torch.as_tensor(envs.max_episode_length).max()
        if not longest.isfinite():
            raise RequestError(f"{label}: its max_episode_length is {longest.item()}; give a number of env steps")
        self.max_episode_steps = int(longest)
        self.step_dt = float(getattr(getattr(envs, "unwrapped", envs), "step_dt", 0.0))
        self._shapes = {name: tuple(values.shape) for name, values in self._read(envs.get_observations()).items()}
        if tries_step:
            self.step(torch.zeros(self.num_envs, self.num_actions, device=self.device))

    def begin(self) -> dict[str, torch.Tensor]:
        """Begin new episodes, if the object can be reset, and continue otherwise; see `ForeignWorlds.begin`."""
        if callable(getattr(self._envs, "reset", None)):
            self._envs.reset()
        return self._read(self._envs.get_observations())

    def step(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Step; see `ForeignWorlds.step`."""
        result = self._envs.step(action)
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

    def picture(self) -> None:
        """The contract has none."""
        return None

    def close(self) -> None:
        """Close the object, if it can be."""
        if callable(getattr(self._envs, "close", None)):
            self._envs.close()

    def _read(self, observations: Any) -> dict[str, torch.Tensor]:
        """Return the groups of a TensorDict, checked: float32, except for images of bytes."""
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
                self.device, values.dtype if values.ndim == 4 and values.dtype == torch.uint8 else torch.float32
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


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
