"""skrl's SAC, as the training loop calls it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Box
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.memories.torch import RandomMemory

from mjtrain.learning import AgentConfig, Collectives, Observations, RankContext, RequestError, TaskEnv, TrainingLoop
from mjtrain_learners.inputs import Inputs
from mjtrain_learners.skrl_on_torch.base import Actor, Critic, JobScaler, SkrlBase
from mjtrain_learners.skrl_sac import translate
from mjtrain_learners.skrl_settings import NOW, fill_in_scalers, record_transition
from mjtrain_learners.weights import load_optimizer

CRITICS = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
"""skrl's names of the networks that value actions."""

_OPTIMIZERS = ("policy_optimizer", "critic_optimizer", "entropy_optimizer")


class BoundedActor(Actor):
    """The policy: means between -1 and 1, and one standard deviation for all states."""

    def compute(
        self,
        inputs: dict[str, Any],
        role: str = "",
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the means, shape (num_samples, num_actions), and the logarithm of the standard deviation."""
        means, outputs = super().compute(inputs, role)
        return means.tanh(), outputs


class ActionCritic(Critic):
    """The value of an action where the environment is in a state, by what skrl calls states."""

    reads = ("state_space", "action_space")

    def compute(
        self,
        inputs: dict[str, Any],
        role: str = "",  # noqa: ARG002
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the values, shape (num_samples, 1)."""
        return self.layers(torch.cat([inputs["states"], inputs["taken_actions"]], dim=1)), {}


class SacAlgorithm(SkrlBase):
    """`learning.algorithm.Algorithm` with skrl's SAC, which learns from transitions of earlier rollouts too."""

    learned = ("policy", *CRITICS, "observation_preprocessor", "state_preprocessor")

    def __init__(
        self, sac: SAC, context: RankContext, collectives: Collectives, inputs: Inputs, num_steps: int
    ) -> None:
        """Take an agent, before its `init`; a rollout has num_steps env steps."""
        super().__init__(sac, collectives, inputs)
        self._sac: Any = sac
        self._num_steps = num_steps
        if context.is_distributed and sac.cfg.learn_entropy:  # skrl averages all other gradients over ranks
            sac.log_entropy_coefficient.register_hook(
                lambda gradient: collectives.sum(gradient.clone()) / context.world_size
            )

    @property
    def learning_rate(self) -> float:
        """Step size of the policy's optimiser now."""
        return self._sac.policy_optimizer.param_groups[0]["lr"]

    def process_env_step(
        self, observations: Observations, rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> None:
        """Keep what came of the actions.

        The observations in which an episode was cut off are not there. In their place are those before the step, so
        that what would have followed is valued by what the critics know when the transition is learned from.
        """
        assert self._seen is not None
        end, cut = terminated.unsqueeze(1), truncated.unsqueeze(1)
        observed, states = (
            torch.where(cut, before, after)
            for before, after in zip(self._seen, self._inputs.split(observations), strict=True)
        )
        record_transition(self._sac, self._seen, self._actions, rewards.unsqueeze(1), (observed, states), end, cut)

    def finish_rollout(self, observations: Observations) -> Mapping[str, torch.Tensor]:  # noqa: ARG002
        """Return what must be finite; skrl's update computes the rest."""
        return {name: self._last_rollout(name) for name in ("rewards", "actions")}

    def _last_rollout(self, name: str) -> torch.Tensor:
        memory = self._sac.memory
        steps = (torch.arange(-self._num_steps, 0) + memory.memory_index) % memory.memory_size
        return memory.tensors[name][steps.to(memory.tensors[name].device)]

    def rollout_observations(self) -> Mapping[str, torch.Tensor]:
        """Return the observations of the last rollout by group, shape (num_steps, num_envs, size)."""
        return self._inputs.by_group(self._last_rollout)

    def update(self) -> dict[str, float]:
        """Learn from the memory, and return the mean losses."""
        sac = self._sac
        sac.enable_models_training_mode(True)
        sac.write_interval = 1  # else skrl forgets the losses
        sac.update(**NOW)
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
        policy, log_std = self._sac.policy, outputs["log_std"].detach()
        if policy._g_clip_log_std:
            log_std = log_std.clamp(policy._g_min_log_std, policy._g_max_log_std)
        return {"kl": None, "action_std": log_std.exp().mean()}

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
        sac, state = self._sac, self._modules_state()
        state |= {name: sac.checkpoint_modules[name].state_dict() for name in self._optimizers()}
        if sac.cfg.learn_entropy:
            state["log_entropy_coefficient"] = sac.log_entropy_coefficient.detach().clone()
        return state

    def _optimizers(self) -> list[str]:
        return [name for name in _OPTIMIZERS if name in self._sac.checkpoint_modules]

    def load_state_dict(self, content: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint; see `Algorithm`."""
        sac, theirs = self._sac, "log_entropy_coefficient" in content
        if theirs != sac.cfg.learn_entropy:
            raise RequestError(
                f"checkpoint {path}: was trained with learn_entropy {str(theirs).lower()}, and this run has "
                f"{str(not theirs).lower()}; give the same --learner-config"
            )
        self.load_weights(content, path)
        for name in self._optimizers():
            load_optimizer(sac.checkpoint_modules[name], content[name], keeps_rate=True)
        if content["scaler"]:  # empty if it was trained without mixed precision
            sac.scaler.load_state_dict(content["scaler"])
        if sac.cfg.learn_entropy:
            with torch.no_grad():
                sac.log_entropy_coefficient.copy_(content["log_entropy_coefficient"])
            sac._entropy_coefficient = sac.log_entropy_coefficient.detach().exp()

    def rank_state(self) -> dict[str, Any]:
        """Return the memory, as far as it is filled."""
        memory = self._sac.memory
        filled = memory.memory_size if memory.filled else memory.memory_index
        tensors = {name: memory.tensors[name][:filled].clone() for name in memory.get_tensor_names()}
        kept = {"tensors": tensors, "index": memory.memory_index, "is_filled": memory.filled}
        return {"memory": {**kept, "size": memory.memory_size}}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Take a memory of the same size; one of another size begins empty."""
        memory, saved = self._sac.memory, state.get("memory")
        if saved is None or saved["size"] != memory.memory_size:
            return
        for name, tensor in saved["tensors"].items():
            memory.tensors[name][: len(tensor)].copy_(tensor)
        memory.memory_index, memory.filled = saved["index"], saved["is_filled"]


def make_learner(context: RankContext, env: TaskEnv, agent: AgentConfig, settings: Mapping[str, Any]) -> TrainingLoop:
    """Build skrl's SAC in the training loop; skrl has been told of the rank."""
    options = translate(agent, settings, env.num_envs)
    collectives, inputs = Collectives(context.device), Inputs(env, agent)
    spaces = inputs.make_spaces(Box(-1.0, 1.0, (env.num_actions,)))
    device = context.device
    actor = BoundedActor(spaces, device, agent.actor, collectives, clip_actions=True, **options.pop("policy"))
    critics = {name: ActionCritic(spaces, device, agent.critic, collectives) for name in CRITICS}
    fill_in_scalers(options, inputs.sizes, JobScaler, collectives=collectives, device=device)
    memory_size = options.pop("memory_size")
    sac = SAC(
        models={"policy": actor, **critics},
        memory=RandomMemory(memory_size=memory_size, num_envs=env.num_envs, device=device, replacement=True),
        cfg=SAC_CFG(**options, experiment={"write_interval": 0, "checkpoint_interval": 0}),  # pyright: ignore
        device=device,
        **spaces,
    )
    algorithm = SacAlgorithm(sac, context, collectives, inputs, agent.num_steps_per_env)
    return TrainingLoop(context, env, algorithm, agent.num_steps_per_env, "skrl_sac")
