"""rl_games' PPO over all ranks' samples, as the training loop calls it."""

import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Box
from rl_games.algos_torch.a2c_continuous import A2CAgent
from rl_games.algos_torch.running_mean_std import RunningMeanStd
from rl_games.algos_torch.torch_ext import mean_list
from rl_games.common.a2c_common import swap_and_flatten01
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.ivecenv import IVecEnv
from rl_games.common.schedulers import IdentityScheduler
from rl_games.common.tr_helpers import DefaultRewardsShaper
from torch import nn
from torch.nn.utils import clip_grad_norm_

from mjtrain.learning import (
    AgentConfig,
    Algorithm,
    Collectives,
    Observations,
    RankContext,
    TaskEnv,
    TrainingLoop,
    normalise,
)
from mjtrain_learners.inputs import Inputs
from mjtrain_learners.rl_games_agent.translation import translate
from mjtrain_learners.weights import broadcast_modules, load_modules, load_optimizer


class JobMeanStd(RunningMeanStd):
    """rl_games' running mean and variance, updated with the moments of all ranks' samples; it keeps one per rank."""

    def __init__(self, size: tuple[int, ...], collectives: Collectives) -> None:
        """Begin with mean 0 and variance 1; size is the shape of a sample."""
        super().__init__(size)
        self._collectives = collectives

    def _update_mean_var_count_from_moments(
        self, mean: Any, var: Any, count: Any, batch_mean: Any, batch_var: Any, batch_count: Any
    ) -> Any:
        """Take in the moments of this rank's samples; every rank must call it. Arguments as rl_games has them."""
        deviation = batch_mean.double() - mean  # from what all ranks share, so that no digits are lost
        squares = (batch_var.double() + deviation.square()) * batch_count
        sums = torch.cat([deviation * batch_count, squares, deviation.new_tensor([float(batch_count)])])
        self._collectives.sum(sums)
        size, number = deviation.shape[0], sums[-1]
        shift = sums[:size] / number
        spread = (sums[size:-1] / number - shift.square()).clamp(min=0.0)
        update: Any = super()._update_mean_var_count_from_moments
        return update(mean, var, count, mean + shift, spread, number)


def replace_normalisers(model: nn.Module, collectives: Collectives | None) -> None:
    """Replace the normalisers of a new model of rl_games.

    Those of rl_games are compiled by torch.jit, which changes them in the first calls: a run that is resumed might not
    compute the same.

    Args:
        model: Holds them, if any.
        collectives: Of the job; None with one rank.
    """
    for name in ("running_mean_std", "value_mean_std"):
        if hasattr(model, name):
            statistics = getattr(model, name).running_mean
            size = tuple(statistics.shape)
            replacement = RunningMeanStd(size) if collectives is None else JobMeanStd(size, collectives)
            setattr(model, name, replacement.to(statistics.device))


class JobAgent(A2CAgent):
    """rl_games' agent, to which somebody else brings the rollout, and which learns together with the other ranks.

    To rl_games it is alone: with several GPUs it would start a process group over NCCL. What it would then average
    over ranks (gradients, and the divergence that adapts the learning rate) is averaged here, and so is what it keeps
    per rank: the moments of advantages and normalisers. With one rank all of it is rl_games'.
    """

    def __init__(self, params: dict[str, Any], collectives: Collectives, world_size: int) -> None:
        """Build networks, optimisers and the buffer of a rollout."""
        super().__init__("mjtrain", params)
        self.central_value_loss: float | None = None
        """Mean loss of the central value in the last update; None without one."""
        self._collectives = collectives
        self._world_size = world_size
        self._pools_advantages = world_size > 1 and self.normalize_advantage
        self.normalize_advantage = self.normalize_advantage and not self._pools_advantages
        self._result: dict[str, torch.Tensor] = {}
        self._observed: dict[str, torch.Tensor] = {}
        self._step = 0
        shared = collectives if world_size > 1 else None
        replace_normalisers(self.model, shared)
        if self.has_central_value:
            replace_normalisers(self.central_value_net.model, shared)
            self._share_central_value()
        if self.normalize_value:
            self.value_mean_std = (self.central_value_net if self.has_central_value else self).model.value_mean_std
        self.init_tensors()
        self._returns = torch.zeros_like(self.experience_buffer.tensor_dict["values"])

    def _share_central_value(self) -> None:
        """Have the optimiser of the central value average over ranks first, and only then scale gradients down."""
        central = self.central_value_net
        if self._world_size == 1:
            return
        limit = central.grad_norm if central.truncate_grads else None
        central.truncate_grads = False
        parameters = list(central.model.parameters())

        def prepare(*_: Any) -> None:
            self._collectives.average_gradients(parameters, self._world_size)
            if limit is not None:
                clip_grad_norm_(parameters, limit)

        central.optimizer.register_step_pre_hook(prepare)

    def act(self, observed: dict[str, torch.Tensor]) -> torch.Tensor:
        """Sample actions, shape (num_envs, num_actions).

        Args:
            observed: Of rl_games: "obs" and, for a central value, "states". Shape (num_envs, size) each.
        """
        self._observed, self._result = observed, self.get_action_values(observed)
        return self._result["actions"]

    def keep(self, rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor) -> None:
        """Keep a step as rl_games does; arguments as of `Algorithm.process_env_step`."""
        buffer, step, result = self.experience_buffer, self._step, self._result
        buffer.update_data("obses", step, self._observed["obs"])
        buffer.update_data("dones", step, self.dones)
        for name in self.update_list:
            buffer.update_data(name, step, result[name])
        if self.has_central_value:
            buffer.update_data("states", step, self._observed["states"])
        followed = self.gamma * result["values"] * truncated.unsqueeze(1)
        buffer.update_data("rewards", step, self.rewards_shaper(rewards.unsqueeze(1)) + followed)
        self.dones = (terminated | truncated).to(torch.uint8)
        self._step += 1

    def finish(self, observed: dict[str, torch.Tensor]) -> torch.Tensor:
        """Compute the returns of the rollout, shape (num_steps, num_envs, 1), from the observations after it."""
        self._step = 0
        kept = self.experience_buffer.tensor_dict
        advantages = self.discount_values(
            self.dones.float(), self.get_values(observed), kept["dones"].float(), kept["values"], kept["rewards"]
        )
        return self._returns.copy_(advantages + kept["values"])

    def play_steps(self) -> dict[str, Any]:
        """Return the rollout, which rl_games would collect here."""
        batch = self.experience_buffer.get_transformed_list(swap_and_flatten01, self.tensor_list)
        batch |= {"returns": swap_and_flatten01(self._returns), "played_frames": self.batch_size, "step_time": 0.0}
        return batch

    def prepare_dataset(self, batch_dict: dict[str, Any]) -> None:
        """Prepare an update, with advantages normalised over all ranks; see rl_games."""
        super().prepare_dataset(batch_dict)
        if self._pools_advantages:
            values = self.dataset.values_dict
            values["advantages"] = normalise(values["advantages"], self._collectives)

    def train_central_value(self) -> float:
        """Learn the central value, and note its loss; see rl_games."""
        loss = self.central_value_loss = super().train_central_value()
        return loss

    def train_actor_critic(self, input_dict: dict[str, Any]) -> tuple[Any, ...]:
        """Learn from a mini-batch; the divergence is that of all ranks where it adapts the learning rate."""
        result = super().train_actor_critic(input_dict)
        if self._world_size > 1 and self.is_adaptive_lr:
            self._collectives.sum(result[3])
            result[3].div_(self._world_size)
        return result

    def trancate_gradients_and_step(self) -> None:
        """Average the gradients over ranks, then scale them down and do a step of the optimiser as rl_games does."""
        if self._world_size > 1:
            self._collectives.average_gradients(self.model.parameters(), self._world_size)
        super().trancate_gradients_and_step()


class RlGamesAlgorithm(Algorithm):
    """`learning.algorithm.Algorithm` with rl_games' PPO."""

    def __init__(self, agent: JobAgent, collectives: Collectives, inputs: Inputs) -> None:
        """Take an agent."""
        self.collectives = collectives
        self._agent = agent
        self._inputs = inputs
        self._networks: dict[str, torch.nn.Module] = {"model": agent.model}
        self._optimizers = {"optimizer": agent.optimizer}
        if agent.has_central_value:
            self._networks["central_value"] = agent.central_value_net.model
            self._optimizers["central_value_optimizer"] = agent.central_value_net.optimizer
        self._kl: torch.Tensor | None = None

    @property
    def learning_rate(self) -> float:
        """Step size of the optimiser now; that of a central value is another one."""
        return self._agent.last_lr

    def broadcast(self) -> None:
        """Give all ranks the networks and normalisers of rank 0."""
        broadcast_modules(self._networks, self.collectives)

    def act(self, observations: Observations) -> torch.Tensor:
        """Sample actions; see `Algorithm`."""
        return self._agent.act(self._gather(observations))

    def _gather(self, observations: Observations) -> dict[str, torch.Tensor]:
        """Return what rl_games calls obs and states: what actor and critic read; states are for a central value."""
        gathered = {"obs": self._inputs.join("actor", observations)}
        if self._agent.has_central_value:
            gathered["states"] = self._inputs.join("critic", observations)
        return gathered

    def process_env_step(
        self,
        observations: Observations,  # noqa: ARG002
        rewards: torch.Tensor,
        terminated: torch.Tensor,
        truncated: torch.Tensor,
    ) -> None:
        """Keep what came of the actions; see `Algorithm`."""
        self._agent.keep(rewards, terminated, truncated)

    def finish_rollout(self, observations: Observations) -> Mapping[str, torch.Tensor]:
        """Compute the returns; see `Algorithm`."""
        returns = self._agent.finish(self._gather(observations))
        return {"rewards or values": returns, "actions": self._kept["actions"]}

    @property
    def _kept(self) -> dict[str, torch.Tensor]:
        return self._agent.experience_buffer.tensor_dict

    def rollout_observations(self) -> Mapping[str, torch.Tensor]:
        """Return the observations of the rollout by group, shape (num_steps, num_envs, size)."""
        kept = self._kept  # without a central value, the critic reads what the actor does
        return self._inputs.by_group(lambda name: kept[name if name in kept else "obses"])

    def update(self) -> dict[str, float]:
        """Learn from the rollout, and return the losses, without their weights in the sum."""
        agent = self._agent
        agent.update_epoch()
        *_, actor, critic, bounds, entropies, kls, _, _ = agent.train_epoch()
        agent.dataset.update_values_dict(None)
        self._kl = mean_list(kls)
        parts = {"surrogate": mean_list(actor), "value": mean_list(critic), "entropy": mean_list(entropies)}
        if agent.bounds_loss_coef:
            parts["bounds"] = mean_list(bounds)
        losses = dict(zip(parts, torch.stack(list(parts.values())).tolist(), strict=True))
        if agent.central_value_loss is not None:
            agent.central_value_net.dataset.update_values_dict(None)
            losses["value"] = agent.central_value_loss
        return losses

    def pop_means(self) -> dict[str, torch.Tensor | float | None]:
        """Return the KL divergence over the last update's mini-batches, and the standard deviation of actions.

        The divergence is between a mini-batch's policies in two epochs that follow each other, as rl_games has it.
        """
        return {"kl": self._kl, "action_std": self._agent.model.a2c_network.sigma.detach().exp().mean()}

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all parameters by name."""
        for name, network in self._networks.items():
            for part, parameter in network.named_parameters():
                yield f"the {name.replace('_', ' ')}'s {part}", parameter

    def state_dict(self) -> dict[str, Any]:
        """Return networks with their normalisers, optimisers and what scales the gradients of mixed precision."""
        parts = {**self._networks, **self._optimizers, "scaler": self._agent.scaler}
        return {name: part.state_dict() for name, part in parts.items()}

    def load_state_dict(self, content: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint; see `Algorithm`."""
        self.load_weights(content, path)
        if content["scaler"]:  # empty if it was trained without mixed precision
            self._agent.scaler.load_state_dict(content["scaler"])
        for name, optimizer in self._optimizers.items():
            schedule = (self._agent if name == "optimizer" else self._agent.central_value_net).scheduler
            load_optimizer(optimizer, content[name], keeps_rate=isinstance(schedule, IdentityScheduler))
        if not isinstance(self._agent.scheduler, IdentityScheduler):
            self._agent.last_lr = content["learning_rate"]
        self._agent.epoch_num = content["iter"]  # of the linear schedule
        if self._agent.has_central_value:
            self._agent.central_value_net.epoch_num = content["iter"]

    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        """Take the networks and normalisers of a checkpoint; nothing changes if they do not fit."""
        load_modules(self._networks, content, path)


def make_learner(context: RankContext, env: TaskEnv, agent: AgentConfig, settings: Mapping[str, Any]) -> TrainingLoop:
    """Build rl_games' PPO in the training loop. With several ranks, the process group must be up."""
    params = translate(agent, settings, env.num_envs)
    inputs = Inputs(env, agent)
    config = params["config"]
    config |= {
        "name": "mjtrain",
        "env_name": "mjtrain",
        "num_actors": env.num_envs,
        "env_info": inputs.make_spaces(Box(-torch.inf, torch.inf, (env.num_actions,))),
        "vec_env": IVecEnv(),  # which is told of each update, and never asked to step
        "device": context.device,
        "reward_shaper": DefaultRewardsShaper(**config["reward_shaper"]),
        "features": {"observer": AlgoObserver()},
    }
    collectives = Collectives(context.device)
    job_agent = _make_agent(params, collectives, context.world_size)
    algorithm = RlGamesAlgorithm(job_agent, collectives, inputs)
    return TrainingLoop(context, env, algorithm, agent.num_steps_per_env, "rl_games")


def _make_agent(params: dict[str, Any], collectives: Collectives, world_size: int) -> JobAgent:
    """Build the agent, without what rl_games prints and the folders and files that it writes meanwhile."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(action="ignore", category=FutureWarning),  # of torch.jit, which is then replaced
    ):
        params["config"]["train_dir"] = folder
        agent = JobAgent(params, collectives, world_size)
        assert agent.writer is not None
        agent.writer.close()
    agent.writer = None
    if agent.has_central_value:
        agent.central_value_net.writter = None
    return agent
