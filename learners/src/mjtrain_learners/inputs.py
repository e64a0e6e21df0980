"""From the observation groups of an environment to the inputs of an actor and a critic, and back."""

from collections.abc import Callable

import torch
from gymnasium.spaces import Box

from mjtrain.learning import AgentConfig, Observations, TaskEnv


class Inputs:
    """What actor and critic read, side by side: what skrl and rl_games call observations and states."""

    def __init__(self, env: TaskEnv, agent: AgentConfig) -> None:
        """Find the groups of both and their sizes."""
        self.groups = {name: agent.obs_groups[name] for name in ("actor", "critic")}
        """Observation groups of each."""
        self.widths = {name: value.shape[1] for name, value in env.observe().items()}
        """Size of each flat group."""
        self.sizes = {name: sum(self.widths[group] for group in groups) for name, groups in self.groups.items()}
        """Size of what each reads."""

    def make_spaces(self, actions: Box) -> dict[str, Box]:
        """Return an observation_space, a state_space and, as it is given, an action_space."""
        observations, states = (Box(-torch.inf, torch.inf, (self.sizes[name],)) for name in ("actor", "critic"))
        return {"observation_space": observations, "state_space": states, "action_space": actions}

    def join(self, name: str, observations: Observations) -> torch.Tensor:
        """Return what the actor or the critic reads, shape (num_envs, size)."""
        return torch.cat([observations[group] for group in self.groups[name]], dim=1)

    def split(self, observations: Observations) -> tuple[torch.Tensor, torch.Tensor]:
        """Return observations and states, shape (num_envs, size) each."""
        return self.join("actor", observations), self.join("critic", observations)

    def by_group(self, read: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what a memory holds by observation group, shape (num_steps, num_envs, size).

        Args:
            read: Returns a tensor of the memory by its name there: observations or states.
        """
        found: dict[str, torch.Tensor] = {}
        for name, stored in (("actor", "observations"), ("critic", "states")):
            groups = self.groups[name]
            parts = read(stored).split([self.widths[group] for group in groups], dim=-1)
            found |= zip(groups, parts, strict=True)
        return found
