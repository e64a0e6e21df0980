"""What skrl's agents on PyTorch have in common as the training loop calls them: what they see, do and have learned."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Box
from skrl.resources.preprocessors.torch import RunningStandardScaler

from mjtrain.learning import AgentConfig, Collectives, Observations, RankContext, TaskEnv
from mjtrain_learners.modules import broadcast_modules, load_modules
from mjtrain_learners.skrl_on_torch.normalization import JobScaler

NOW: Any = {"timestep": 0, "timesteps": 0}
"""Of no consequence: skrl's schedules by time are not used."""


class Inputs:
    """What actor and critic read: skrl's observations and states."""

    def __init__(self, env: TaskEnv, agent: AgentConfig) -> None:
        """Find the groups of both and their sizes."""
        self.groups = {name: agent.obs_groups[name] for name in ("actor", "critic")}
        """Observation groups of each."""
        self.widths = {name: value.shape[1] for name, value in env.observe().items()}
        """Size of each flat group."""
        self.sizes = {name: sum(self.widths[group] for group in groups) for name, groups in self.groups.items()}
        """Size of what each reads."""

    def make_spaces(self, actions: Box) -> dict[str, Box]:
        """Return skrl's observation_space, state_space and action_space."""
        observations, states = (Box(-torch.inf, torch.inf, (self.sizes[name],)) for name in ("actor", "critic"))
        return {"observation_space": observations, "state_space": states, "action_space": actions}

    def split(self, observations: Observations) -> tuple[torch.Tensor, torch.Tensor]:
        """Return observations and states, shape (num_envs, size) each."""
        actor, critic = ([observations[group] for group in self.groups[name]] for name in ("actor", "critic"))
        return torch.cat(actor, dim=1), torch.cat(critic, dim=1)

    def by_group(self, read: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return tensors of skrl's memory by observation group, shape (num_steps, num_envs, size).

        Args:
            read: Returns a tensor of the memory by its name there.
        """
        found: dict[str, torch.Tensor] = {}
        for name, stored in (("actor", "observations"), ("critic", "states")):
            groups = self.groups[name]
            parts = read(stored).split([self.widths[group] for group in groups], dim=-1)
            found |= zip(groups, parts, strict=True)
        return found


def fill_in_scalers(
    options: dict[str, Any], sizes: Mapping[str, int], context: RankContext, collectives: Collectives
) -> None:
    """Replace the names of normalisers by their classes, over all ranks, and add what these are made with.

    Args:
        options: skrl's settings, of which these are changed.
        sizes: Size of what each normalises, by the beginning of its name, such as "observation".
        context: This rank.
        collectives: Of the job.
    """
    for name, size in sizes.items():
        if options[f"{name}_preprocessor"] is not None:
            options[f"{name}_preprocessor"] = JobScaler if context.is_distributed else RunningStandardScaler
            shared = {"collectives": collectives} if context.is_distributed else {}
            options[f"{name}_preprocessor_kwargs"] |= {"size": size, "device": context.device, **shared}


class SkrlBase:
    """The part of a `learning.algorithm.Algorithm` that all of skrl's agents share."""

    learned: tuple[str, ...]
    """skrl's names of the models and normalisers that are learned."""

    def __init__(self, agent: Any, collectives: Collectives, inputs: Inputs) -> None:
        """Take an agent.

        Args:
            agent: skrl's agent, before its `init`.
            collectives: What the ranks sum while they learn.
            inputs: What actor and critic read.
        """
        self.collectives = collectives
        """What the ranks sum while they learn."""
        self._agent = agent
        self._inputs = inputs
        self._seen: tuple[torch.Tensor, torch.Tensor] | None = None
        self._actions: torch.Tensor | None = None
        agent.init()
        agent.enable_training_mode(True)

    def begin(self) -> None:
        """Do nothing: an agent is ready."""

    def broadcast(self) -> None:
        """Give all ranks the models and normalisers of rank 0."""
        broadcast_modules(self._learned(), self.collectives)

    def _learned(self) -> dict[str, torch.nn.Module]:
        return {name: module for name, module in self._agent.checkpoint_modules.items() if name in self.learned}

    def act(self, observations: Observations) -> torch.Tensor:
        """Sample actions; see `Algorithm`."""
        self._seen = self._inputs.split(observations)
        self._actions, _ = self._agent.act(*self._seen, **NOW)
        assert self._actions is not None
        return self._actions

    def _record(
        self,
        rewards: torch.Tensor,
        after: tuple[torch.Tensor, torch.Tensor],
        terminated: torch.Tensor,
        truncated: torch.Tensor,
    ) -> None:
        """Hand a transition to skrl.

        Args:
            rewards: Shape (num_envs, 1).
            after: Observations and states after the step.
            terminated: Shape (num_envs, 1).
            truncated: Shape (num_envs, 1).
        """
        assert self._seen is not None
        self._agent.record_transition(
            observations=self._seen[0],
            states=self._seen[1],
            actions=self._actions,
            rewards=rewards,
            next_observations=after[0],
            next_states=after[1],
            terminated=terminated,
            truncated=truncated,
            infos={},
            **NOW,
        )

    def _modules_state(self) -> dict[str, Any]:
        """Return models, normalisers, what a policy needs to know of them, and the scale of mixed precision."""
        state: dict[str, Any] = {name: module.state_dict() for name, module in self._learned().items()}
        state["scaler"] = self._agent.scaler.state_dict()
        scaler = self._agent.checkpoint_modules.get("observation_preprocessor")
        if scaler is not None:
            options = {"epsilon": scaler.epsilon, "clip_threshold": scaler.clip_threshold}
            state["observation_preprocessor_options"] = options
        return state

    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        """Take the models and normalisers of a checkpoint; nothing changes if they do not fit."""
        load_modules(self._learned(), content, path)
