"""RSL-RL's PPO, so that N ranks optimise what one rank with N times the environments would.

On a CPU, actor and critic may learn at the same time.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from mjtrain.learning.collectives import Collectives, normalise
from mjtrain.learning.rsl_rl.cnn_model import AuxiliaryLoss
from mjtrain.learning.rsl_rl.mini_batches import make_fast, yield_mini_batches
from mjtrain.learning.rsl_rl.networks import list_groups
from mjtrain.learning.rsl_rl.symmetry import EquivariantModel, MirrorSymmetry
from mjtrain.runtime.worker import torch_threads

_AT_ONCE = 65_536
"""Most samples for which the critic is asked in one call; images of all steps would need too much memory."""


class Ppo(PPO):
    """PPO whose advantages and learning rate are those of all ranks' samples together.

    RSL-RL normalises advantages per rank, and decides the learning rate on rank 0 and broadcasts it per mini-batch.
    Here the moments of the advantages are summed over ranks, and every rank decides the learning rate itself from the
    same sum. Gradients are averaged by RSL-RL's own `reduce_parameters`.

    RSL-RL asks the critic at every step of a rollout. Its values are not needed before the returns are computed, so
    here it is asked then, when the physics leaves all cores to torch. Recurrent critics are asked at every step as
    before.
    With one rank the outcome is that of RSL-RL's PPO, up to rounding: the optimiser is one fused operation, and the
    mini-batches are picked once per update.
    """

    def __init__(
        self, *args: Any, auxiliary_coef: float | None = None, critic_iterations: int = 0, **kwargs: Any
    ) -> None:
        """Take everything that PPO takes.

        Args:
            auxiliary_coef: Weight of the loss of the actor's auxiliary head; None if it has none.
            critic_iterations: Updates at the start in which only the critic learns.
        """
        super().__init__(*args, **kwargs)
        self.critic_updates_left = critic_iterations
        """Updates that are still to come in which only the critic learns."""
        self._is_supervised = auxiliary_coef is not None
        if auxiliary_coef is not None:
            self.symmetry: Any = AuxiliaryLoss(auxiliary_coef)
        elif self.symmetry is not None:
            self.symmetry = MirrorSymmetry(**kwargs["symmetry_cfg"])
        self.collectives = Collectives(self.device)
        self._divergences: list[torch.Tensor] = []
        self._batch: RolloutStorage.Batch | None = None
        self._asks_critic_late = not self.critic.is_recurrent
        self._time_outs: list[torch.Tensor] = []
        self._adapts_here = self._normalises_mini_batches_here = False
        self.storage.mini_batch_generator = partial(yield_mini_batches, self.storage)
        self.optimizer = make_fast(self.optimizer, self.actor, self.critic)
        if self.is_multi_gpu:
            self._take_over()
        measure = self.actor.get_kl_divergence

        def measure_and_remember(*params: tuple[torch.Tensor, ...]) -> torch.Tensor:
            divergence = measure(*params)
            self._divergences.append(divergence.mean())
            return divergence

        self.actor.get_kl_divergence = measure_and_remember  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def adapts_rate(self) -> bool:
        """Whether the learning rate follows the KL divergence, and is therefore part of a checkpoint."""
        return self._adapts_here or self.schedule == "adaptive"

    def _take_over(self) -> None:
        """Switch off what RSL-RL would do per rank, and remember to do it over all ranks."""
        self._adapts_here = self.desired_kl is not None and self.schedule == "adaptive"
        if self._adapts_here:
            self.schedule = "fixed"
        self._normalises_mini_batches_here = self.normalize_advantage_per_mini_batch
        self.normalize_advantage_per_mini_batch = False
        for name in ("mini_batch_generator", "recurrent_mini_batch_generator"):
            setattr(self.storage, name, self._watch(getattr(self.storage, name)))
        for module in self.rnd.modules() if self.rnd else ():
            if isinstance(module, EmpiricalNormalization):
                module.update = self._while_waiting(module.update)

    def _while_waiting(self, update: Callable[[torch.Tensor], None]) -> Any:
        """Return an update of RSL-RL that waits for the other ranks, and says so."""

        def waiting(samples: torch.Tensor) -> None:
            with self.collectives.waiting():
                update(samples)

        return waiting

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions for observations of all environments and note what the update needs; see RSL-RL."""
        if not self._asks_critic_late:
            return super().act(obs)
        transition = self.transition
        transition.hidden_states = (self.actor.get_hidden_state(), None)  # before this step, which changes it
        actions = self.actor(obs, stochastic_output=True).detach()
        transition.observations, transition.actions = obs, actions
        transition.actions_log_prob = self.actor.get_output_log_prob(actions).detach()
        transition.distribution_params = tuple(param.detach() for param in self.actor.output_distribution_params)
        transition.values = torch.zeros_like(self.storage.values[0])  # until _ask_critic
        return actions

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, torch.Tensor]
    ) -> None:
        """Note one step of all environments; see RSL-RL."""
        if self._asks_critic_late:
            self._time_outs.append(extras["time_outs"])
        super().process_env_step(obs, rewards, dones, extras)

    @torch.no_grad()
    def _ask_critic(self) -> None:
        """Fill in the values of a rollout, and add what follows after a time-out to the rewards."""
        storage = self.storage
        seen = [storage.observations[group] for group in list_groups(self._raw_critic)]
        if any(values.ndim > 3 or values.shape[:2].numel() > _AT_ONCE for values in seen):
            for values, observations in zip(storage.values, storage.observations, strict=True):
                values.copy_(self.critic(observations))
        else:
            storage.values.copy_(self.critic(storage.observations.flatten(0, 1)).view_as(storage.values))
        storage.rewards += self.gamma * storage.values * torch.stack(self._time_outs).unsqueeze(-1)
        self._time_outs.clear()

    def compute_returns(self, obs: Any) -> None:
        """Compute returns, and advantages normalised over all ranks."""
        if self._asks_critic_late:
            self._ask_critic()
        if not self.is_multi_gpu:
            super().compute_returns(obs)
            return
        self.normalize_advantage_per_mini_batch = True  # so that the rank's own moments are not used
        super().compute_returns(obs)
        self.normalize_advantage_per_mini_batch = False
        if not self._normalises_mini_batches_here:
            self.storage.advantages = normalise(self.storage.advantages, self.collectives)

    def update(self) -> dict[str, float]:
        """Learn from a rollout; see RSL-RL."""
        with self._actor_frozen() if self.critic_updates_left else contextlib.nullcontext():
            losses = self._update_side_by_side() if self._can_split() else super().update()
        if self._is_supervised:
            losses["auxiliary"] = losses.pop("symmetry")
        return losses

    @contextlib.contextmanager
    def _actor_frozen(self) -> Generator[None]:
        """Keep the actor, its normaliser and the step size as they are, and count the update."""
        schedule, adapts_here = self.schedule, self._adapts_here
        self.schedule, self._adapts_here = "fixed", False
        actor = self._raw_actor.eval()  # in which normalisers do not learn
        weights = [weight.requires_grad_(False) for weight in actor.parameters() if weight.requires_grad]
        try:
            yield
        finally:
            actor.train()
            for weight in weights:
                weight.requires_grad_()
            self.schedule, self._adapts_here = schedule, adapts_here
        self.critic_updates_left -= 1

    def _can_split(self) -> bool:
        """Whether actor and critic can learn at the same time: on a CPU, where only their losses meet."""
        if self.device != "cpu" or torch.get_num_threads() == 1:
            return False
        shares = not set(self.actor.parameters()).isdisjoint(self.critic.parameters())  # share_cnn_encoders
        recurrent = self.actor.is_recurrent or self.critic.is_recurrent  # then RSL-RL takes another generator
        return self.symmetry is None and not recurrent and not self.use_mixed_precision and not shares

    def _update_side_by_side(self) -> dict[str, float]:
        critic, generator = self.critic, self.storage.mini_batch_generator
        with side_by_side(critic) as stand_in:
            self.critic: Any = stand_in
            self.storage.mini_batch_generator = stand_in.begin(generator)
            try:
                return super().update()
            finally:
                self.critic, self.storage.mini_batch_generator = critic, generator

    def broadcast_parameters(self) -> None:
        """Give all ranks the networks of rank 0; see RSL-RL."""
        super().broadcast_parameters()
        for network in (self._raw_actor, self._raw_critic):
            if isinstance(network, EquivariantModel):  # its parameters are not in its state dictionary
                for parameter in network.parameters():
                    torch.distributed.broadcast(parameter.data, src=0)

    def reduce_parameters(self) -> None:
        """Average the gradients over ranks as RSL-RL does; the KL divergence rides along in the same collective."""
        if not self._adapts_here:
            with self.collectives.waiting():
                super().reduce_parameters()
            return
        passenger = torch.nn.Parameter(torch.zeros(1, device=self.device))
        passenger.grad = self._measure_kl().reshape(1).to(passenger.dtype)
        self._raw_critic.register_parameter("kl_passenger", passenger)
        try:
            with self.collectives.waiting():
                super().reduce_parameters()
        finally:
            del self._raw_critic.kl_passenger
        self._adapt_learning_rate(passenger.grad.item())

    def pop_kl(self) -> torch.Tensor | None:
        """Return this rank's mean KL divergence over the mini-batches since the last call, in nats.

        None with the fixed schedule, which does not measure it.
        """
        if not self._divergences:
            return None
        mean = torch.stack(self._divergences).mean()
        self._divergences.clear()
        return mean

    def _watch(self, generate: Callable[..., Generator[Any]]) -> Callable[..., Generator[Any]]:
        """Keep the mini-batch that is being learned from, for `reduce_parameters`."""

        def watched(*args: Any, **kwargs: Any) -> Generator[Any]:
            for batch in generate(*args, **kwargs):
                if self._normalises_mini_batches_here:
                    batch.advantages = normalise(batch.advantages, self.collectives)
                self._batch = batch
                yield batch
            self._batch = None

        return watched

    @torch.no_grad()
    def _measure_kl(self) -> torch.Tensor:
        """Return how far the policy has moved on this rank's part of the mini-batch, in nats."""
        assert self._batch is not None
        old = self._batch.old_distribution_params
        assert old is not None
        new = tuple(param[: len(old[0])].detach() for param in self.actor.output_distribution_params)
        return self.actor.get_kl_divergence(old, new).mean()  # pyright: ignore[reportArgumentType]

    def _adapt_learning_rate(self, kl: float) -> None:
        """Follow the desired KL divergence, by RSL-RL's rule and with the divergence of all ranks' samples."""
        if kl > self.desired_kl * 2.0:
            self.learning_rate = max(1e-5, self.learning_rate / 1.5)
        elif 0.0 < kl < self.desired_kl / 2.0:
            self.learning_rate = min(1e-2, self.learning_rate * 1.5)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate


class SideBySide:
    """Stands in for the critic while an update runs, and computes it in a second thread.

    RSL-RL adds the losses of both networks, and their graphs meet only there. So the critic's forward pass runs beside
    the actor's, and its backward pass from the gradient of its values beside the rest. With a few thousand samples
    two threads are hardly faster than one if they share the work on one network. What is computed does not change.
    """

    def __init__(self, critic: nn.Module, worker: ThreadPoolExecutor) -> None:
        self._critic = critic
        self._worker = worker
        self._values: Future[torch.Tensor] | None = None
        self._backward: Future[None] | None = None

    def begin(self, batches: Callable[..., Generator[Any]]) -> Callable[..., Generator[Any]]:
        """Return a generator of the same mini-batches, whose values are being computed when they come."""

        def begun(*args: Any) -> Generator[Any]:
            for batch in batches(*args):
                self._values = self._worker.submit(self._critic, batch.observations)
                yield batch

        return begun

    def __call__(self, observations: Any, **_: Any) -> torch.Tensor:
        """Return the values of the mini-batch as a leaf, whose gradient starts the critic's backward pass."""
        del observations  # those of the mini-batch
        assert self._values is not None
        values = self._values.result()
        leaf = values.detach().requires_grad_()

        def go_back(gradient: torch.Tensor) -> None:
            # What `values.backward(gradient)` does, for which torch would import sympy first.
            self._backward = self._worker.submit(lambda: (values * gradient).sum().backward())

        leaf.register_hook(go_back)
        return leaf

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the critic's parameters when their gradients are there."""
        if self._backward is not None:
            self._backward.result()
            self._backward = None
        return self._critic.parameters()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._critic, name)


@contextmanager
def side_by_side(critic: nn.Module) -> Generator[SideBySide]:
    """Give half of torch's threads to a stand-in for the critic, until the context ends."""
    num_threads = torch.get_num_threads()
    half = num_threads // 2
    with (
        torch_threads(num_threads - half),
        ThreadPoolExecutor(1, "critic", lambda: torch.set_num_threads(half)) as worker,
    ):
        yield SideBySide(critic, worker)
