"""skrl's SAC, as the training loop calls it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from skrl.agents.torch.sac import SAC

from mjtrain.learning.algorithm import Observations
from mjtrain.learning.collectives import Collectives
from mjtrain.rank import RankContext
from mjtrain_learners.modules import broadcast_modules, load_modules

CRITICS = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
"""skrl's names of the networks that value actions."""

_NOW: Any = {"timestep": 0, "timesteps": 0}
"""Of no consequence: skrl's schedules by time are not used."""

_LEARNED = ("policy", *CRITICS, "observation_preprocessor", "state_preprocessor")
_OPTIMIZERS = ("policy_optimizer", "critic_optimizer", "entropy_optimizer")


class SacAlgorithm:
    """`learning.algorithm.Algorithm` with skrl's SAC, which learns from transitions of earlier rollouts too."""

    def __init__(
        self,
        sac: SAC,
        context: RankContext,
        collectives: Collectives,
        groups: Mapping[str, tuple[str, ...]],
        widths: Mapping[str, int],
        num_steps: int,
    ) -> None:
        """Take an agent.

        Args:
            sac: skrl's agent, before its `init`.
            context: This rank.
            collectives: What the ranks sum while they learn.
            groups: Observation groups of actor and critics.
            widths: Size of each flat group.
            num_steps: Env steps of a rollout.
        """
        self.collectives = collectives
        """What the ranks sum while they learn."""
        self._sac: Any = sac
        self._groups = groups
        self._widths = widths
        self._num_steps = num_steps
        self._seen: tuple[torch.Tensor, torch.Tensor] | None = None
        self._actions: torch.Tensor | None = None
        sac.init()
        sac.enable_training_mode(True)
        if context.is_distributed and sac.cfg.learn_entropy:  # skrl averages all other gradients over ranks
            sac.log_entropy_coefficient.register_hook(
                lambda gradient: collectives.sum(gradient.clone()) / context.world_size
            )

    @property
    def learning_rate(self) -> float:
        """Step size of the policy's optimiser now."""
        return self._sac.policy_optimizer.param_groups[0]["lr"]

    def begin(self) -> None:
        """Do nothing: an agent is ready."""

    def broadcast(self) -> None:
        """Give all ranks the models and normalisers of rank 0."""
        broadcast_modules(self._learned(), self.collectives)

    def _learned(self) -> dict[str, torch.nn.Module]:
        modules = self._sac.checkpoint_modules
        return {name: modules[name] for name in _LEARNED if isinstance(modules.get(name), torch.nn.Module)}

    def act(self, observations: Observations) -> torch.Tensor:
        """Sample actions; see `Algorithm`."""
        self._seen = self._split(observations)
        self._actions, _ = self._sac.act(*self._seen, **_NOW)
        assert self._actions is not None
        return self._actions

    def _split(self, observations: Observations) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what skrl calls observations and states: what actor and critics read."""
        actor, critic = ([observations[group] for group in self._groups[name]] for name in ("actor", "critic"))
        return torch.cat(actor, dim=1), torch.cat(critic, dim=1)

    def process_env_step(
        self, observations: Observations, rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> None:
        """Keep what came of the actions.

        The observations in which an episode was cut off are not there. In their place are those before the step, so
        that what would have followed is valued by what the critics know when the transition is learned from.
        """
        assert self._seen is not None
        before, after, cut = self._seen, self._split(observations), truncated.unsqueeze(1)
        self._sac.record_transition(
            observations=before[0],
            states=before[1],
            actions=self._actions,
            rewards=rewards.unsqueeze(1),
            next_observations=torch.where(cut, before[0], after[0]),
            next_states=torch.where(cut, before[1], after[1]),
            terminated=terminated.unsqueeze(1),
            truncated=cut,
            infos={},
            **_NOW,
        )

    def finish_rollout(self, observations: Observations) -> Mapping[str, torch.Tensor]:  # noqa: ARG002
        """Return what must be finite; skrl's update computes the rest."""
        return {name: self._last_rollout(name) for name in ("rewards", "actions")}

    def _last_rollout(self, name: str) -> torch.Tensor:
        memory = self._sac.memory
        steps = (torch.arange(-self._num_steps, 0) + memory.memory_index) % memory.memory_size
        return memory.tensors[name][steps.to(memory.tensors[name].device)]

    def rollout_observations(self) -> Mapping[str, torch.Tensor]:
        """Return the observations of the last rollout by group, shape (num_steps, num_envs, size)."""
        found = {}
        for name, stored in (("actor", "observations"), ("critic", "states")):
            groups = self._groups[name]
            parts = self._last_rollout(stored).split([self._widths[group] for group in groups], dim=-1)
            found |= zip(groups, parts, strict=True)
        return found

    def update(self) -> dict[str, float]:
        """Learn from the memory, and return the mean losses."""
        sac = self._sac
        sac.enable_models_training_mode(True)
        sac.write_interval = 1  # else skrl forgets the losses
        sac.update(**_NOW)
        sac.write_interval = 0
        sac.enable_models_training_mode(False)
        tracked = {name: sum(values) / len(values) for name, values in sac.tracking_data.items()}
        sac.tracking_data.clear()
        losses = {"policy": tracked["Loss / Policy loss"], "critic": tracked["Loss / Critic loss"]}
        if sac.cfg.learn_entropy:
            losses["entropy"] = tracked["Loss / Entropy loss"]
        return losses

    def pop_means(self) -> dict[str, torch.Tensor | float | None]:
        """Return the standard deviation of actions."""
        _, outputs = self._sac.policy.compute({"observations": self._last_rollout("observations")[-1]})
        return {"kl": None, "action_std": outputs["log_std"].detach().exp().mean()}

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all parameters by name."""
        names = {"policy": "actor", "critic_1": "first critic", "critic_2": "second critic"}
        for module, name in names.items():
            for part, parameter in self._sac.models[module].named_parameters():
                yield f"the {name}'s {part}", parameter
        if self._sac.cfg.learn_entropy:
            yield "the logarithm of the entropy coefficient", self._sac.log_entropy_coefficient

    def state_dict(self) -> dict[str, Any]:
        """Return models, normalisers, optimisers, the entropy's coefficient and the scale of mixed precision."""
        sac = self._sac
        state = {name: module.state_dict() for name, module in self._learned().items()}
        state |= {name: sac.checkpoint_modules[name].state_dict() for name in self._optimizers()}
        state["scaler"] = sac.scaler.state_dict()
        if sac.cfg.learn_entropy:
            state["log_entropy_coefficient"] = sac.log_entropy_coefficient.detach().clone()
        scaler = sac.checkpoint_modules.get("observation_preprocessor")
        if scaler is not None:
            options = {"epsilon": scaler.epsilon, "clip_threshold": scaler.clip_threshold}
            state["observation_preprocessor_options"] = options
        return state

    def _optimizers(self) -> list[str]:
        return [name for name in _OPTIMIZERS if name in self._sac.checkpoint_modules]

    def load_state_dict(self, content: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint; see `Algorithm`."""
        self.load_weights(content, path)
        sac = self._sac
        for name in self._optimizers():
            sac.checkpoint_modules[name].load_state_dict(content[name])
        sac.scaler.load_state_dict(content["scaler"])
        if sac.cfg.learn_entropy:
            with torch.no_grad():
                sac.log_entropy_coefficient.copy_(content["log_entropy_coefficient"])
            sac._entropy_coefficient = sac.log_entropy_coefficient.detach().exp()

    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        """Take the models and normalisers of a checkpoint; nothing changes if they do not fit."""
        load_modules(self._learned(), content, path)

    def rank_state(self) -> dict[str, Any]:
        """Return the memory, as far as it is filled."""
        memory = self._sac.memory
        filled = memory.memory_size if memory.filled else memory.memory_index
        tensors = {name: memory.tensors[name][:filled] for name in memory.get_tensor_names()}
        return {"memory": {"tensors": tensors, "index": memory.memory_index, "is_filled": memory.filled}}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Take a memory of the same size; with another one it begins empty."""
        memory, saved = self._sac.memory, state.get("memory")
        if saved is None or saved["index"] >= memory.memory_size:
            return
        for name, tensor in saved["tensors"].items():
            memory.tensors[name][: len(tensor)].copy_(tensor)
        memory.memory_index, memory.filled = saved["index"], saved["is_filled"]
