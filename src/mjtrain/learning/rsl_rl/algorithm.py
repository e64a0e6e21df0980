"""RSL-RL's PPO and distillation, as the training loop calls them, with checkpoints and normalisers over all ranks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.extensions import RandomNetworkDistillation
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalDiscountedVariationNormalization, EmpiricalNormalization
from tensordict import TensorDict

from mjtrain.config.limits import show
from mjtrain.learning.algorithm import Observations
from mjtrain.learning.collectives import Collectives, update_moments
from mjtrain.learning.persistence import find_other_moment, find_other_shape
from mjtrain.learning.rsl_rl.cnn_model import with_head_of
from mjtrain.learning.rsl_rl.dagger import Dagger
from mjtrain.learning.rsl_rl.distillation import Distillation
from mjtrain.learning.rsl_rl.mini_batches import keep_settings
from mjtrain.learning.rsl_rl.networks import pack
from mjtrain.learning.rsl_rl.ppo import Ppo
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext


class RslRlAlgorithm:
    """`learning.algorithm.Algorithm` with one of RSL-RL's algorithms, or a class that takes the place of one."""

    def __init__(
        self, context: RankContext, alg: PPO | Distillation, imitate: Callable[[Collectives], None] | None = None
    ) -> None:
        """Take an algorithm, and what fits its actor before the first rollout if no weights were loaded until then."""
        self.networks: dict[str, MLPModel] = (
            {"actor": alg._raw_student, "teacher": alg._raw_teacher}
            if isinstance(alg, Distillation)
            else {"actor": alg._raw_actor, "critic": alg._raw_critic}
        )
        """Its networks by name, not compiled: actor, and critic or teacher."""
        self.collectives = alg.collectives if isinstance(alg, Ppo | Distillation) else Collectives(context.device)
        self._alg = alg
        self._imitate = imitate
        self._context = context
        self._packed: tuple[Observations | None, TensorDict | None] = (None, None)
        if isinstance(alg, Ppo | Distillation):
            learning = [network for name, network in self.networks.items() if name != "teacher"]
            for model in [module for network in learning for module in network.modules()]:
                original = getattr(model, "obs_normalizer", None)
                if isinstance(original, EmpiricalNormalization):
                    model.obs_normalizer = JobNormalization(original, self.collectives).to(original.mean.device)

    @property
    def learning_rate(self) -> float:
        """Step size of the optimiser now."""
        return self._alg.learning_rate

    def begin(self) -> None:
        """Imitate a controller, if that is asked for, and switch to training.

        Raises a FloatingPointError if what is imitated, or what the actor sees, is not finite.
        """
        if self._imitate is not None:
            self._imitate(self.collectives)
            self._imitate = None
        if self._context.is_main and isinstance(self._alg, Distillation) and not self._alg.teacher_loaded:
            raise RequestError("--agent.algorithm.teacher-run: the teacher is not there any more, nor in a checkpoint")
        self._alg.train_mode()

    def broadcast(self) -> None:
        """Give all ranks the networks of rank 0."""
        self._alg.broadcast_parameters()

    def act(self, observations: Observations) -> torch.Tensor:
        """Sample actions; see `Algorithm`."""
        return self._alg.act(self._pack(observations))

    def process_env_step(
        self, observations: Observations, rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> None:
        """Keep what came of the actions; see `Algorithm`."""
        extras = {"time_outs": truncated}
        self._alg.process_env_step(self._pack(observations), rewards, terminated | truncated, extras)

    def _pack(self, observations: Observations) -> TensorDict:
        """Return observations as RSL-RL sees them. Those after a step are those before the next one."""
        if self._packed[0] is not observations:
            self._packed = (observations, pack(observations))
        assert self._packed[1] is not None
        return self._packed[1]

    def finish_rollout(self, observations: Observations) -> Mapping[str, torch.Tensor]:
        """Compute the returns; see `Algorithm`."""
        self._alg.compute_returns(self._pack(observations))
        storage = self._alg.storage
        if isinstance(self._alg, PPO):
            return {"rewards or values": storage.returns, "actions": storage.actions}
        return {"the teacher's actions": storage.privileged_actions, "actions": storage.actions}

    def rollout_observations(self) -> Mapping[str, torch.Tensor]:
        """Return the observations of the rollout by group, shape (num_steps, num_envs, ...)."""
        return self._alg.storage.observations  # pyright: ignore[reportReturnType]

    def update(self) -> dict[str, float]:
        """Learn from the rollout, and return the losses."""
        return self._alg.update()

    def pop_means(self) -> dict[str, torch.Tensor | float | None]:
        """Return the KL divergence since the last call, and the standard deviation of actions."""
        policy = self._alg.get_policy()
        return {
            "kl": self._alg.pop_kl() if isinstance(self._alg, Ppo) else None,
            "action_std": None if policy.distribution is None else policy.output_std.mean(),
        }

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all parameters by name."""
        for name, network in self.networks.items():
            for part, parameter in network.named_parameters():
                yield f"the {name}'s {part}", parameter

    def state_dict(self) -> dict[str, Any]:
        """Return networks, normalisers and optimiser, and what is counted."""
        counters = _get_counters(self._alg)
        return self._alg.save() | ({"counters": counters} if counters else {})

    def load_state_dict(self, content: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint; see `Algorithm`."""
        asked = self._alg.learning_rate
        _load_networks(self._alg, content, path, self.networks, optimizer=True)
        self._imitate = None
        adapts = getattr(self._alg, "schedule", None) == "adaptive"  # RSL-RL's own PPO
        if getattr(self._alg, "adapts_rate", adapts):
            self._alg.learning_rate = content["learning_rate"]
        else:
            self._alg.learning_rate = asked
            for group in self._alg.optimizer.param_groups:
                group["lr"] = asked
        _set_counters(self._alg, content.get("counters", {}))

    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        """Take the networks of a checkpoint; see `Algorithm`."""
        if "actor_state_dict" in content:
            content["actor_state_dict"] = with_head_of(self.networks["actor"], content["actor_state_dict"])
        learning = [name for name in self.networks if name != "teacher"]
        there = [name for name in learning if f"{name}_state_dict" in content] or ["actor"]
        _load_networks(self._alg, content, path, there, optimizer=False)
        self._imitate = None

    def rank_state(self) -> dict[str, Any]:
        """Return what recurrent networks remember, the sums of this rank's RND rewards, and the buffer of DAgger."""
        rewards = _find_discounted_rewards(self._alg)
        state: dict[str, Any] = {"memory": _get_memory(self.networks)}
        state |= {} if rewards is None or rewards.avg is None else {"rnd_rewards": rewards.avg}
        return state | ({"buffer": self._alg.buffer.state_dict()} if isinstance(self._alg, Dagger) else {})

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Restore what `rank_state` returned."""
        _set_memory(self.networks, state.get("memory", {}), self._context.device)
        if (rewards := _find_discounted_rewards(self._alg)) is not None:
            sums = state.get("rnd_rewards")
            rewards.avg = None if sums is None else sums.to(self._context.device, copy=True)
        if isinstance(self._alg, Distillation):
            self._alg.begin_from_memory()
        if isinstance(self._alg, Dagger):
            storage = self._alg.storage
            num_samples = storage.num_envs * storage.num_transitions_per_env
            self._alg.buffer.load_state_dict(state.get("buffer", {}), num_samples, self._context.device)


class JobNormalization(EmpiricalNormalization):
    """RSL-RL's running mean and variance, updated with the exact moments of all ranks' samples.

    RSL-RL sums count, mean and variance one after the other; here their sums about the running mean, which all ranks
    share, go in one collective. Mean and variance are kept in double precision: in single precision, the share of one
    rollout is too small to change them after about 1e9 samples. Checkpoints of single precision load.
    """

    _mean: torch.Tensor
    _var: torch.Tensor
    _std: torch.Tensor
    count: torch.Tensor

    def __init__(self, original: EmpiricalNormalization, collectives: Collectives) -> None:
        super().__init__(original.mean.shape[0], original.eps, original.until)
        self._mean, self._var = self._mean.double(), self._var.double()
        self.load_state_dict(original.state_dict())
        self.train(original.training)
        self._collectives = collectives

    @torch.no_grad()
    @torch.jit.unused
    def update(self, x: torch.Tensor) -> None:
        """Take in this rank's samples, shape (num_samples, size); every rank must call it."""
        if not self.training or (self.until is not None and self.count >= self.until):
            return
        update_moments(self._mean[0], self._var[0], self.count, x, self._collectives)
        self._std.copy_(self._var.sqrt())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise, in the precision of the samples; shapes as in `update`."""
        return (x - self._mean.to(x.dtype)) / (self._std + self.eps)

    @torch.jit.unused
    def inverse(self, y: torch.Tensor) -> torch.Tensor:
        """Undo `forward`."""
        return y * (self._std + self.eps) + self._mean.to(y.dtype)


def _load_networks(
    algorithm: PPO | Distillation, content: dict[str, Any], path: Path, networks: Iterable[str], *, optimizer: bool
) -> None:
    """Load parts of a checkpoint into an algorithm; an error names a tensor that does not fit."""
    # `content` is on the CPU: the optimiser keeps its step counters there, where reading them waits for no GPU.
    mine, rnd = algorithm.save(), _rnd_of(algorithm) if optimizer else None
    if rnd is not None and "rnd_state_dict" not in content:
        raise RequestError(
            f"checkpoint {path}: was trained without --learner-config algorithm.rnd_cfg; leave it out, or begin a new "
            "run"
        )
    for part in [*networks, *(["rnd"] if rnd is not None else [])]:
        key = f"{part}_state_dict"
        if key not in content:
            raise RequestError(f"checkpoint {path}: has no {part}; it is not a checkpoint of a training")
        if (other := find_other_shape(mine[key], content[key])) is not None:
            raise RequestError(f"checkpoint {path}: does not fit the networks of this run: {part} {other}")
    if optimizer and "optimizer_state_dict" in content:
        if not isinstance(content["optimizer_state_dict"], dict):
            there = show(content["optimizer_state_dict"])
            raise RequestError(f"checkpoint {path}: is damaged: optimizer_state_dict is {there}, not a dict")
        keep_settings(content["optimizer_state_dict"], algorithm.optimizer)
    parts = dict.fromkeys(networks, True) | {"optimizer": optimizer, "rnd": optimizer}
    try:
        if rnd is not None:  # its step size is fixed, so that of the command
            theirs = content["rnd_optimizer_state_dict"]
            theirs["param_groups"] = rnd.optimizer.state_dict()["param_groups"]
            if (moment := find_other_moment(rnd.optimizer, theirs)) is not None:
                raise ValueError(moment)
        algorithm.load(content, parts, strict=True)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise  # no fault of the file
    except (RuntimeError, KeyError, ValueError) as error:
        reason = next(iter(str(error).splitlines()[1:]), str(error)).strip()  # torch lists problems below a heading
        raise RequestError(f"checkpoint {path}: does not fit the networks of this run ({reason})") from error


def _get_counters(algorithm: PPO | Distillation) -> dict[str, int]:
    """Return counts that the future depends on: updates of a distillation or of a critic, env steps of an RND."""
    if isinstance(algorithm, Distillation):
        return {"num_updates": algorithm.num_updates}
    rnd, left = _rnd_of(algorithm), algorithm.critic_updates_left if isinstance(algorithm, Ppo) else 0
    counters = {} if rnd is None else {"rnd_env_steps": rnd.update_counter}
    return counters | ({"critic_updates_left": left} if left else {})


def _set_counters(algorithm: PPO | Distillation, counters: dict[str, int]) -> None:
    """Restore what `_get_counters` returned; what is missing, as in files of earlier versions, starts at zero."""
    if isinstance(algorithm, Distillation):
        algorithm.num_updates = counters.get("num_updates", 0)
    if isinstance(algorithm, Ppo):
        algorithm.critic_updates_left = counters.get("critic_updates_left", 0)
    rnd = _rnd_of(algorithm)
    if rnd is not None:
        rnd.update_counter = counters.get("rnd_env_steps", 0)


def _find_discounted_rewards(algorithm: PPO | Distillation) -> Any:
    """Return what has the discounted RND rewards, of shape (num_envs,) after a step; None without a scale."""
    normaliser = getattr(_rnd_of(algorithm), "reward_normalizer", None)
    return normaliser.disc_avg if isinstance(normaliser, EmpiricalDiscountedVariationNormalization) else None


def _rnd_of(algorithm: Any) -> RandomNetworkDistillation | None:
    return getattr(algorithm, "rnd", None)


def _get_memory(networks: Mapping[str, MLPModel]) -> dict[str, list[torch.Tensor]]:
    """Return hidden states by network: of a GRU one, of an LSTM two. Shape (num_layers, num_envs, hidden_dim)."""
    states = {name: network.get_hidden_state() for name, network in networks.items()}
    return {
        name: list(state) if isinstance(state, tuple) else [state]
        for name, state in states.items()
        if state is not None
    }


def _set_memory(networks: Mapping[str, MLPModel], memory: Mapping[str, list[torch.Tensor]], device: str) -> None:
    """Restore what `_get_memory` returned, for the same number of environments; a network that is not in it forgets."""
    for name, network in networks.items():
        state: Any = tuple(tensor.to(device, copy=True) for tensor in memory.get(name, ()))
        network.reset(hidden_state=state[0] if len(state) == 1 else state or None)
