"""What every part of the environment needs: the worlds, the clock, the random generator and the memory of terms."""

from typing import Any

import torch

from mjtrain.config import EnvConfig
from mjtrain.env.read_only import ReadOnly
from mjtrain.sim.engines.base import Engine, State


class Memory:
    """Tensors by name, made when they are first asked for, zero at first, and part of a checkpoint."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._num_envs = num_envs
        self._device = device
        self._tensors: dict[str, torch.Tensor] = {}
        self._saved: dict[str, torch.Tensor] = {}
        self._kept: set[str] = set()

    def tensor(self, name: str, size: int, *, kept: bool = False) -> torch.Tensor:
        """Return a tensor of this name, to be changed in place; zero where an episode begins, unless it is kept.

        Shape (num_envs, size).
        """
        if name not in self._tensors:
            with torch.inference_mode(mode=False):  # it must outlive the rollout in which it is asked for
                tensor = torch.zeros(self._num_envs, size, device=self._device)
            saved = self._saved.pop(name, None)
            if saved is not None and saved.shape == tensor.shape:
                tensor.copy_(saved)
            self._tensors[name] = tensor
            if kept:
                self._kept.add(name)
        return self._tensors[name]

    def reset(self, mask: torch.Tensor) -> None:
        """Forget the masked worlds, except what is kept. Boolean, shape (num_envs,)."""
        for name, tensor in self._tensors.items():
            if name not in self._kept:
                tensor.masked_fill_(mask[:, None], 0.0)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of all tensors, in an order that does not depend on when each was first asked for."""
        return {name: tensor.clone() for name, tensor in sorted((self._saved | self._tensors).items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state. A tensor that it lacks or has in another shape starts at zero.

        So does everything of a checkpoint from before there was a memory.
        """
        self._saved = dict(state)
        for name, tensor in self._tensors.items():
            saved = self._saved.pop(name, None)
            if saved is not None and saved.shape == tensor.shape:
                tensor.copy_(saved)
            else:
                tensor.zero_()


class EnvCore:
    """The worlds and their clock, complete before any evaluator of terms is made.

    Evaluators (actions, observations, ...) are built from it. Only term functions get the whole `Env`, which describes
    what both have.
    """

    def __init__(self, config: EnvConfig, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.num_envs = engine.num_envs
        self.device = engine.device
        self.step_dt = engine.layout.timestep_s * config.decimation
        self.max_episode_steps = max(1, round(config.episode_length_s / self.step_dt))
        self.rng = torch.Generator(self.device).manual_seed(seed)
        self.episode_step = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        self.memory = Memory(self.num_envs, self.device)
        """What terms remember from env step to env step."""
        self.read_only = ReadOnly()
        """What terms must not write."""

    @property
    def state(self) -> State:
        """The worlds."""
        return self.engine.state
