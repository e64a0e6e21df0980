"""rl_games' agent, as the training loop calls it."""

import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Box
from rl_games.algos_torch.torch_ext import mean_list
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.ivecenv import IVecEnv
from rl_games.common.schedulers import IdentityScheduler
from rl_games.common.tr_helpers import DefaultRewardsShaper

from mjtrain.learning import AgentConfig, Algorithm, Collectives, Observations, RankContext, TaskEnv, TrainingLoop
from mjtrain_learners.inputs import Inputs
from mjtrain_learners.rl_games_agent.agent import JobAgent
from mjtrain_learners.rl_games_agent.translation import translate
from mjtrain_learners.weights import broadcast_modules, load_modules, load_optimizer


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
