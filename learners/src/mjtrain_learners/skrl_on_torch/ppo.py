"""skrl's PPO, so that N ranks optimise what one rank with N times the environments would."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Box
from skrl import config
from skrl.agents.torch.ppo import PPO, PPO_CFG, ppo
from skrl.memories.torch import RandomMemory
from skrl.resources.schedulers.torch import KLAdaptiveLR

from mjtrain.learning import (
    AgentConfig,
    Collectives,
    Observations,
    RankContext,
    RequestError,
    TaskEnv,
    TrainingLoop,
    normalise,
)
from mjtrain_learners.inputs import Inputs
from mjtrain_learners.skrl_on_torch.base import Actor, Critic, JobScaler, SkrlBase
from mjtrain_learners.skrl_settings import fill_in_scalers, record_transition, replaced, translate, update_ppo
from mjtrain_learners.weights import load_optimizer


class NotedKlAdaptiveLr(KLAdaptiveLR):
    """skrl's adaptive learning rate, which remembers the divergences that it was told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take everything that skrl's takes."""
        self.divergences: list[float] = []
        super().__init__(*args, **kwargs)

    def step(self, kl: Any = None, **kwargs: Any) -> None:
        """Adapt the learning rate; skrl gives the divergence of an epoch, averaged over ranks."""
        if kl is not None:
            self.divergences.append(float(kl))
        super().step(kl, **kwargs)


class JobPpo(PPO):
    """PPO whose advantages are normalised over all ranks' samples; skrl does so per rank.

    Gradients and the divergence that adapts the learning rate are averaged by skrl's own code. With one rank all of it
    is skrl's.
    """

    def __init__(self, collectives: Collectives, **kwargs: Any) -> None:
        """Take everything that skrl's takes, and what adds up over ranks."""
        super().__init__(**kwargs)
        self._collectives = collectives

    def update(self, *, timestep: int, timesteps: int) -> None:
        """Learn from a rollout; see skrl."""
        with replaced(ppo, {"compute_gae": self._compute_gae} if config.torch.is_distributed else {}):
            super().update(timestep=timestep, timesteps=timesteps)

    def _compute_gae(
        self, original: Callable[..., Any], *, values: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return returns, and advantages normalised over all ranks."""
        returns, _ = original(values=values, **kwargs)
        return returns, normalise(returns - values, self._collectives)


class SkrlAlgorithm(SkrlBase):
    """`learning.algorithm.Algorithm` with skrl's PPO."""

    learned = ("policy", "value", "observation_preprocessor", "state_preprocessor", "value_preprocessor")

    def __init__(self, ppo: JobPpo, collectives: Collectives, inputs: Inputs) -> None:
        """Take an agent; arguments as of `SkrlBase`."""
        super().__init__(ppo, collectives, inputs)
        self._ppo = ppo
        self._action_std = 0.0
        assert isinstance(ppo.policy, Actor)
        self._std_type = ppo.policy.std_type

    @property
    def learning_rate(self) -> float:
        """Step size of the optimiser now."""
        return self._ppo.optimizer.param_groups[0]["lr"]

    def process_env_step(
        self, observations: Observations, rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> None:
        """Keep what came of the actions.

        What would have followed after a truncation is estimated by the value before the step and added to the reward,
        and to skrl every end of an episode is a termination: its advantages would otherwise run on into the next one.
        """
        values: torch.Tensor | None = self._ppo._current_values
        assert values is not None
        assert self._seen is not None
        bootstrapped = rewards.unsqueeze(1) + self._ppo.cfg.discount_factor * values * truncated.unsqueeze(1)
        done = (terminated | truncated).unsqueeze(1)
        after, never = self._inputs.split(observations), torch.zeros_like(done)
        record_transition(self._ppo, self._seen, self._actions, bootstrapped, after, done, never)

    def finish_rollout(self, observations: Observations) -> Mapping[str, torch.Tensor]:  # noqa: ARG002
        """Return what must be finite; skrl's update computes the returns."""
        tensors = self._memory.tensors
        return {name: tensors[name] for name in ("rewards", "values", "actions")}

    @property
    def _memory(self) -> Any:
        return self._ppo.memory

    def rollout_observations(self) -> Mapping[str, torch.Tensor]:
        """Return the observations of the rollout by group, shape (num_steps, num_envs, size)."""
        return self._inputs.by_group(self._memory.tensors.__getitem__)

    def update(self) -> dict[str, float]:
        """Learn from the rollout, and return the losses, without their weights in the sum."""
        losses, self._action_std = update_ppo(self._ppo)
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
        optimizer = self._ppo.optimizer.state_dict()
        return {**self._modules_state(), "optimizer": optimizer, "std_type": self._std_type}

    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        """Take the models and normalisers of a checkpoint; nothing changes if they do not fit."""
        theirs = content.get("std_type", self._std_type)  # older checkpoints do not say it
        if theirs != self._std_type:
            raise RequestError(
                f"--agent.actor.distribution-cfg.std-type {self._std_type}: checkpoint {path} was trained with "
                f"{theirs}; give the same"
            )
        super().load_weights(content, path)

    def load_state_dict(self, content: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint; see `Algorithm`."""
        self.load_weights(content, path)
        load_optimizer(self._ppo.optimizer, content["optimizer"], keeps_rate=self._ppo.scheduler is None)
        if content["scaler"]:  # empty if it was trained without mixed precision
            self._ppo.scaler.load_state_dict(content["scaler"])


def make_learner(context: RankContext, env: TaskEnv, agent: AgentConfig, settings: Mapping[str, Any]) -> TrainingLoop:
    """Build skrl's PPO in the training loop; skrl has been told of the rank."""
    options = translate(agent, settings)
    collectives, inputs = Collectives(context.device), Inputs(env, agent)
    spaces = inputs.make_spaces(Box(-torch.inf, torch.inf, (env.num_actions,)))
    device = context.device
    models = {
        "policy": Actor(spaces, device, agent.actor, collectives, **options.pop("policy")),
        "value": Critic(spaces, device, agent.critic, collectives),
    }
    fill_in_scalers(options, inputs.sizes, JobScaler, collectives=collectives, device=device)
    if options["learning_rate_scheduler"] is not None:
        options["learning_rate_scheduler"] = NotedKlAdaptiveLr
    ppo = JobPpo(
        collectives,
        models=models,
        memory=RandomMemory(memory_size=options["rollouts"], num_envs=env.num_envs, device=device, replacement=False),
        cfg=PPO_CFG(**options, experiment={"write_interval": 0, "checkpoint_interval": 0}),  # pyright: ignore
        device=device,
        **spaces,
    )
    return TrainingLoop(context, env, SkrlAlgorithm(ppo, collectives, inputs), options["rollouts"], "skrl")
