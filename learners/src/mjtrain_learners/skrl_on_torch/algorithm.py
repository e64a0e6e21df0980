"""skrl's PPO, as the training loop calls it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from mjtrain.learning.algorithm import Observations
from mjtrain.learning.collectives import Collectives
from mjtrain_learners.modules import broadcast_modules, load_modules
from mjtrain_learners.skrl_on_torch.ppo import JobPpo, NotedKlAdaptiveLr

_NOW: Any = {"timestep": 0, "timesteps": 0}
"""Of no consequence: skrl's schedules by time are not used."""

_LEARNED = ("policy", "value", "observation_preprocessor", "state_preprocessor", "value_preprocessor")


class SkrlAlgorithm:
    """`learning.algorithm.Algorithm` with skrl's PPO."""

    def __init__(
        self,
        ppo: JobPpo,
        collectives: Collectives,
        groups: Mapping[str, tuple[str, ...]],
        widths: Mapping[str, int],
    ) -> None:
        """Take an agent.

        Args:
            ppo: skrl's agent, before its `init`.
            collectives: What the ranks sum while they learn.
            groups: Observation groups of actor and critic.
            widths: Size of each flat group.
        """
        self.collectives = collectives
        """What the ranks sum while they learn."""
        self._ppo = ppo
        self._groups = groups
        self._widths = widths
        self._action_std = 0.0
        self._seen: tuple[torch.Tensor, torch.Tensor] | None = None
        self._actions: torch.Tensor | None = None
        ppo.init()
        ppo.enable_training_mode(True)

    @property
    def learning_rate(self) -> float:
        """Step size of the optimiser now."""
        return self._ppo.optimizer.param_groups[0]["lr"]

    def begin(self) -> None:
        """Do nothing: an agent is ready."""

    def broadcast(self) -> None:
        """Give all ranks the models and normalisers of rank 0."""
        broadcast_modules(self._learned(), self.collectives)

    def _learned(self) -> dict[str, torch.nn.Module]:
        return {name: module for name, module in self._ppo.checkpoint_modules.items() if name in _LEARNED}

    def act(self, observations: Observations) -> torch.Tensor:
        """Sample actions; see `Algorithm`."""
        self._seen = self._split(observations)
        self._actions, _ = self._ppo.act(*self._seen, **_NOW)
        return self._actions

    def _split(self, observations: Observations) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what skrl calls observations and states: what actor and critic read."""
        actor, critic = ([observations[group] for group in self._groups[name]] for name in ("actor", "critic"))
        return torch.cat(actor, dim=1), torch.cat(critic, dim=1)

    def process_env_step(
        self, observations: Observations, rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> None:
        """Keep what came of the actions.

        What would have followed after a truncation is estimated by the value before the step and added to the reward,
        and to skrl every end of an episode is a termination: its advantages would otherwise run on into the next one.
        """
        ppo, after = self._ppo, self._split(observations)
        values: torch.Tensor | None = ppo._current_values
        assert self._seen is not None
        assert values is not None
        bootstrapped = rewards.unsqueeze(1) + ppo.cfg.discount_factor * values * truncated.unsqueeze(1)
        ppo.record_transition(
            observations=self._seen[0],
            states=self._seen[1],
            actions=self._actions,  # pyright: ignore[reportArgumentType]
            rewards=bootstrapped,
            next_observations=after[0],
            next_states=after[1],
            terminated=(terminated | truncated).unsqueeze(1),
            truncated=torch.zeros_like(truncated).unsqueeze(1),
            infos={},
            **_NOW,
        )

    def finish_rollout(self, observations: Observations) -> Mapping[str, torch.Tensor]:  # noqa: ARG002
        """Return what must be finite; skrl's update computes the returns."""
        tensors = self._memory.tensors
        return {"rewards": tensors["rewards"], "values": tensors["values"], "actions": tensors["actions"]}

    @property
    def _memory(self) -> Any:
        return self._ppo.memory

    def rollout_observations(self) -> Mapping[str, torch.Tensor]:
        """Return the observations of the rollout by group, shape (num_steps, num_envs, size)."""
        found = {}
        for name, stored in (("actor", "observations"), ("critic", "states")):
            groups = self._groups[name]
            parts = self._memory.tensors[stored].split([self._widths[group] for group in groups], dim=-1)
            found |= zip(groups, parts, strict=True)
        return found

    def update(self) -> dict[str, float]:
        """Learn from the rollout, and return the losses, without their weights in the sum."""
        ppo = self._ppo
        ppo.enable_models_training_mode(True)
        ppo.update(**_NOW)
        ppo.enable_models_training_mode(False)
        tracked = {name: values[-1] for name, values in ppo.tracking_data.items()}
        ppo.tracking_data.clear()
        self._action_std = tracked["Policy / Standard deviation"]
        losses = {"surrogate": tracked["Loss / Policy loss"]}
        if ppo.cfg.value_loss_scale:
            losses["value"] = tracked["Loss / Value loss"] / ppo.cfg.value_loss_scale
        if ppo.cfg.entropy_loss_scale:
            losses["entropy"] = -tracked["Loss / Entropy loss"] / ppo.cfg.entropy_loss_scale
        return losses

    def pop_means(self) -> dict[str, torch.Tensor | float | None]:
        """Return the KL divergence over the epochs since the last call, and the standard deviation of actions."""
        kl, scheduler = None, self._ppo.scheduler
        if isinstance(scheduler, NotedKlAdaptiveLr):
            kl = sum(scheduler.divergences) / len(scheduler.divergences)
            scheduler.divergences.clear()
        return {"kl": kl, "action_std": self._action_std}

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all parameters by name."""
        for name, model in (("actor", self._ppo.policy), ("critic", self._ppo.value)):
            for part, parameter in model.named_parameters():  # pyright: ignore[reportOptionalMemberAccess]
                yield f"the {name}'s {part}", parameter

    def state_dict(self) -> dict[str, Any]:
        """Return models, normalisers, optimiser and what scales the gradients of mixed precision."""
        ppo = self._ppo
        state = {name: module.state_dict() for name, module in self._learned().items()}
        state |= {"optimizer": ppo.optimizer.state_dict(), "scaler": ppo.scaler.state_dict()}
        scaler = ppo.checkpoint_modules.get("observation_preprocessor")
        if scaler is not None:
            options = {"epsilon": scaler.epsilon, "clip_threshold": scaler.clip_threshold}
            state["observation_preprocessor_options"] = options
        return state

    def load_state_dict(self, content: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint; see `Algorithm`."""
        self.load_weights(content, path)
        self._ppo.optimizer.load_state_dict(content["optimizer"])
        self._ppo.scaler.load_state_dict(content["scaler"])

    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        """Take the models and normalisers of a checkpoint; nothing changes if they do not fit."""
        load_modules(self._learned(), content, path)

    def rank_state(self) -> dict[str, Any]:
        """Return nothing: a rank has nothing of its own between two iterations."""
        return {}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Do nothing, see `rank_state`."""
