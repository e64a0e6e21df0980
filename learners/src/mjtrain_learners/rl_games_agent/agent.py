"""rl_games' PPO, so that N ranks optimise what one rank with N times the environments would."""

from typing import Any

import torch
from rl_games.algos_torch.a2c_continuous import A2CAgent
from rl_games.algos_torch.running_mean_std import RunningMeanStd
from rl_games.common.a2c_common import swap_and_flatten01
from torch import nn
from torch.nn.utils import clip_grad_norm_

from mjtrain.learning import Collectives, normalise


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
