"""skrl's PPO on JAX with its networks, so that N ranks optimise what one rank with N times the environments would."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.distributed as dist
from gymnasium.spaces import Box
from jax.flatten_util import ravel_pytree
from skrl import config
from skrl.agents.jax.ppo import PPO, PPO_CFG, ppo
from skrl.memories.jax import RandomMemory
from skrl.models.jax import DeterministicMixin, GaussianMixin, Model
from skrl.resources.preprocessors.jax import RunningStandardScaler
from skrl.resources.schedulers.jax import KLAdaptiveLR

from mjtrain.learning import (
    AgentConfig,
    Algorithm,
    Collectives,
    ModelConfig,
    Observations,
    RankContext,
    TaskEnv,
    TrainingLoop,
    normalise,
)
from mjtrain_learners.inputs import Inputs
from mjtrain_learners.skrl_settings import (
    NOW,
    describe_scaler,
    fill_in_scalers,
    record_transition,
    replaced,
    translate,
    update_ppo,
)
from mjtrain_learners.weights import check_normalisers, check_shapes

ACTIVATIONS = {
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "relu": jax.nn.relu,
    "crelu": jax.nn.celu,
    "lrelu": jax.nn.leaky_relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "swish": jax.nn.swish,
    "mish": jax.nn.mish,
    "identity": lambda x: x,
}
"""Functions that do what the classes of `mlp_library.ACTIVATIONS` do in torch."""

_MODELS = {"policy": "actor", "value": "critic"}
_NORMALISERS = ("observation_preprocessor", "state_preprocessor", "value_preprocessor")
_OPTIMISERS = ("policy_optimizer", "value_optimizer")


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Copy a tensor into an array on the same device: the environment changes its tensors in place."""
    if tensor.device.type == "cpu":
        return jnp.array(tensor.numpy())
    return jnp.array(jax.dlpack.from_dlpack(tensor.contiguous()), copy=True)


def to_torch(array: jax.Array) -> torch.Tensor:
    """Copy an array into a tensor on the same device."""
    return torch.from_dlpack(array.block_until_ready()).clone()


def to_named(tree: Any) -> dict[str, np.ndarray]:
    """Return the arrays of nested containers by names such as "params.Dense_0.kernel"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def from_named(tree: Any, named: Mapping[str, torch.Tensor]) -> Any:
    """Return nested containers with other arrays; those of `named` must have the names and shapes of the tree's."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    found = [
        jax.device_put(
            jnp.array(named[jax.tree_util.keystr(path, simple=True, separator=".")].cpu().numpy(), leaf.dtype),
            leaf.sharding,
        )
        for path, leaf in leaves
    ]
    return jax.tree_util.tree_unflatten(structure, found)


class JobScaler(RunningStandardScaler):
    """skrl's running mean and variance, updated with the moments of all ranks' samples; skrl keeps one per rank.

    With one rank it is skrl's.
    """

    def __init__(self, size: int, *, collectives: Collectives, summed_on: str, **options: Any) -> None:
        """Take what skrl's takes, what adds up over ranks, and the torch device on which that happens."""
        super().__init__(size, **options)
        self._collectives = collectives
        self._summed_on = summed_on

    def __call__(self, x: jax.Array | None, *, train: bool = False, inverse: bool = False) -> jax.Array | None:
        """Normalise, and with `train` take the samples in before; see skrl. Every rank must call it."""
        if not dist.is_initialized():
            return super().__call__(x, train=train, inverse=inverse)
        if train and x is not None:
            self._parallel_variance(*self._measure(x))
        return super().__call__(x, train=False, inverse=inverse)

    def _measure(self, x: jax.Array) -> tuple[jax.Array, jax.Array, int]:
        """Return the mean of all ranks' samples, their variance divided by one less than their number, and that."""
        center = np.asarray(self.running_mean, np.float64)  # all ranks share it, so that no digits are lost
        deviations = (np.asarray(x, np.float64) - center).reshape(-1, center.shape[0])
        mine = np.concatenate([deviations.sum(0), np.square(deviations).sum(0), [len(deviations)]])
        sums = self._collectives.sum(torch.from_numpy(mine).to(self._summed_on)).cpu().numpy()
        size, count = center.shape[0], int(sums[-1])
        mean = sums[:size] / count
        variance = np.maximum(sums[size:-1] - count * mean**2, 0.0) / (count - 1)
        return jnp.asarray(center + mean, jnp.float32), jnp.asarray(variance, jnp.float32), count


class Actor(GaussianMixin, Model):
    """The policy: means from layers, and one standard deviation for all states."""

    config: ModelConfig = ModelConfig()

    def __init__(
        self,
        *,
        config: ModelConfig,
        options: Mapping[str, Any] = MappingProxyType({}),
        **spaces: Any,
    ) -> None:
        """Describe the layers; options as of skrl's GaussianMixin, spaces as of its Model.

        Flax makes copies of a module from its fields, of which `config` is one.
        """
        self.config = config
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self, **options)

    @nn.compact
    def __call__(self, inputs: dict[str, Any], role: str = "") -> tuple[jax.Array, dict[str, Any]]:  # noqa: ARG002
        """Return the means, shape (num_samples, num_actions), and the logarithm of the standard deviation."""
        means = _apply_layers(inputs["observations"], self.config, self.num_actions)
        distribution = self.config.distribution_cfg
        assert distribution is not None
        learns_log = distribution.std_type == "log"
        begin = jnp.log(distribution.init_std) if learns_log else distribution.init_std
        std = self.param("log_std" if learns_log else "std", nn.initializers.constant(begin), (self.num_actions,))
        return means, {"log_std": std if learns_log else jnp.log(jnp.clip(std, min=1e-6))}


class Critic(DeterministicMixin, Model):
    """The value function, which reads what skrl calls states."""

    config: ModelConfig = ModelConfig()

    def __init__(self, *, config: ModelConfig, **spaces: Any) -> None:
        """Describe the layers; arguments as of `Actor`."""
        self.config = config
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)

    @nn.compact
    def __call__(self, inputs: dict[str, Any], role: str = "") -> tuple[jax.Array, dict[str, Any]]:  # noqa: ARG002
        """Return the values, shape (num_samples, 1)."""
        return _apply_layers(inputs["states"], self.config, 1), {}


def _apply_layers(x: jax.Array, config: ModelConfig, num_outputs: int) -> jax.Array:
    """Apply hidden layers, each with its activation, and a linear output."""
    for width in config.hidden_dims:
        x = ACTIVATIONS[config.activation](nn.Dense(width)(x))
    return nn.Dense(num_outputs)(x)


class JobPpo(PPO):
    """PPO whose advantages, gradients and divergences are those of all ranks' samples; with one rank it is skrl's.

    skrl's update takes each of its steps by a function of its module. They are replaced by ones that sum over ranks
    what skrl's return. So whatever follows from it, such as the learning rate and the end of the epochs, is the same on
    all ranks. skrl itself would sum by JAX's own process group; docs/learners.md says why that is not used.
    """

    def __init__(self, context: RankContext, collectives: Collectives, **kwargs: Any) -> None:
        """Take everything that skrl's takes, the rank, and what adds up over ranks."""
        super().__init__(**kwargs)
        self.divergences: list[float] = []
        """KL divergences of the mini-batches, in nats, until somebody clears them."""
        self._collectives = collectives
        self._world_size = context.world_size

    def update(self, *, timestep: int, timesteps: int) -> None:
        """Learn from a rollout; see skrl."""
        steps = {"_update_policy": self._update_policy}
        if self._world_size > 1:
            steps |= {"_update_value": self._update_value, "_compute_gae": self._compute_gae}
        with replaced(ppo, steps):
            super().update(timestep=timestep, timesteps=timesteps)

    def _update_policy(self, original: Callable[..., Any], *args: Any) -> Any:
        """Return gradients and divergence over all ranks, and the losses and standard deviation of this one."""
        gradient, policy_loss, entropy_loss, divergence, std = original(*args)
        if self._world_size > 1:
            gradient, divergence = self._average((gradient, divergence))
        self.divergences.append(divergence.item())
        return gradient, policy_loss, entropy_loss, divergence, std

    def _update_value(self, original: Callable[..., Any], *args: Any) -> Any:
        """Return gradients over all ranks, and the loss of this one."""
        gradient, loss = original(*args)
        return self._average(gradient), loss

    def _compute_gae(self, original: Callable[..., Any], *, values: jax.Array, **kwargs: Any) -> Any:
        """Return returns, and advantages normalised over all ranks."""
        returns, _ = original(values=values, **kwargs)
        return returns, to_jax(normalise(to_torch(returns - values), self._collectives, correction=0))

    def _average(self, tree: Any) -> Any:
        """Average nested arrays over ranks, in one collective; every rank gets the same bits."""
        flat, unflatten = ravel_pytree(tree)
        return unflatten(jnp.divide(to_jax(self._collectives.sum(to_torch(flat))), self._world_size))


class SkrlJaxAlgorithm(Algorithm):
    """`learning.algorithm.Algorithm` with skrl's PPO on JAX."""

    def __init__(self, ppo: JobPpo, collectives: Collectives, inputs: Inputs) -> None:
        """Take an agent, before its `init`."""
        self.collectives = collectives
        self._ppo = ppo
        self._policy: Any = ppo.policy
        self._memory: Any = ppo.memory
        self._inputs = inputs
        self._num_draws = 0
        self._action_std = 0.0
        self._seen: tuple[jax.Array, jax.Array] | None = None
        self._actions: jax.Array | None = None
        ppo.init()
        ppo.enable_training_mode(True)

    @property
    def learning_rate(self) -> float:
        """Step size of the optimisers now."""
        return float(self._ppo.policy_learning_rate)

    def broadcast(self) -> None:
        """Give all ranks the models and normalisers of rank 0."""
        for name, tree in self._learned().items():
            leaves, structure = jax.tree.flatten(tree)
            tensors = [to_torch(leaf) for leaf in leaves]
            with self.collectives.waiting():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)
            self._set(name, jax.tree.unflatten(structure, [to_jax(tensor) for tensor in tensors]))

    def _learned(self) -> dict[str, Any]:
        """Return the parameters of models and the statistics of normalisers, as nested arrays by part."""
        modules = self._ppo.checkpoint_modules
        return {name: modules[name].state_dict.params for name in (*_MODELS, *_NORMALISERS) if name in modules}

    def _set(self, name: str, tree: Any) -> None:
        """Replace what `_learned` returns of a part."""
        module = self._ppo.checkpoint_modules[name]
        module.state_dict = module.state_dict.replace(params=tree)  # of a normaliser that is the tree itself

    def act(self, observations: Observations) -> torch.Tensor:
        """Sample actions; see `Algorithm`."""
        self._seen = self._split(observations)
        self._policy._g_i = self._num_draws  # skrl counts draws, and each time that XLA compiles an update as one
        self._num_draws += 1
        self._actions, _ = self._ppo.act(*self._seen, **NOW)
        return to_torch(self._actions)

    def _split(self, observations: Observations) -> tuple[jax.Array, jax.Array]:
        observed, states = self._inputs.split(observations)
        return to_jax(observed), to_jax(states)

    def process_env_step(
        self, observations: Observations, rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> None:
        """Keep what came of the actions.

        What would have followed after a truncation is estimated by the value before the step and added to the reward,
        and to skrl every end of an episode is a termination: its advantages would otherwise run on into the next one.
        """
        ppo: Any = self._ppo
        assert self._seen is not None
        after = self._split(observations)
        cut_off, done = to_jax(truncated.unsqueeze(1)), to_jax((terminated | truncated).unsqueeze(1))
        bootstrapped = to_jax(rewards.unsqueeze(1)) + ppo.cfg.discount_factor * ppo._current_values * cut_off
        record_transition(ppo, self._seen, self._actions, bootstrapped, after, done, cut_off & False)

    def finish_rollout(self, observations: Observations) -> Mapping[str, torch.Tensor]:  # noqa: ARG002
        """Return what must be finite; skrl's update computes the returns."""
        return {name: to_torch(self._memory.tensors[name]) for name in ("rewards", "values", "actions")}

    def rollout_observations(self) -> Mapping[str, torch.Tensor]:
        """Return the observations of the rollout by group, shape (num_steps, num_envs, size)."""
        return self._inputs.by_group(lambda name: to_torch(self._memory.tensors[name]))

    def update(self) -> dict[str, float]:
        """Learn from the rollout, and return the losses, without their weights in the sum."""
        losses, self._action_std = update_ppo(self._ppo)
        return losses

    def pop_means(self) -> dict[str, torch.Tensor | float | None]:
        """Return the KL divergence over the mini-batches since the last call, and the standard deviation of actions."""
        kl = float(np.mean(self._ppo.divergences))
        self._ppo.divergences.clear()
        return {"kl": kl, "action_std": self._action_std}

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all parameters by name."""
        learned = self._learned()
        for part, name in _MODELS.items():
            for where, leaf in to_named(learned[part]["params"]).items():
                yield f"the {name}'s {where}", torch.from_numpy(np.array(leaf))

    def state_dict(self) -> dict[str, Any]:
        """Return models, normalisers and optimisers."""
        state: dict[str, Any] = {name: to_named(tree) for name, tree in self._learned().items()}
        state |= {name: to_named(getattr(self._ppo, name).state) for name in _OPTIMISERS}
        return state | describe_scaler(self._ppo)

    def load_state_dict(self, content: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint; see `Algorithm`."""
        ppo = self._ppo
        self.load_weights(content, path)
        for name in _OPTIMISERS:
            optimiser = getattr(ppo, name)
            ours, theirs = (
                to_named(optimiser.state),
                {_without_place(key): value for key, value in content[name].items()},
            )
            moments = {key: theirs[_without_place(key)] for key in ours if _without_place(key) in theirs}
            check_shapes(ours, {name: moments}, name, path)
            setattr(ppo, name, optimiser.replace(state=from_named(optimiser.state, moments)))
        if ppo.policy_scheduler is not None:
            ppo.policy_learning_rate = ppo.value_learning_rate = content["learning_rate"]

    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        """Take the models and normalisers of a checkpoint; nothing changes if they do not fit."""
        learned = self._learned()
        check_normalisers(learned, content, path)
        for name, tree in learned.items():
            check_shapes(to_named(tree), content, name, path)
        for name, tree in learned.items():
            self._set(name, from_named(tree, content[name]))

    def rank_state(self) -> dict[str, Any]:
        """Return how often this rank has drawn actions, and the key that it draws them with."""
        return {"jax": {"num_draws": self._num_draws, "key": np.asarray(self._policy._g_key).astype(np.int64)}}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Continue to draw where `rank_state` was called."""
        self._num_draws = int(state["jax"]["num_draws"])
        self._policy._g_key = jnp.asarray(state["jax"]["key"].numpy().astype(np.uint32))


def _without_place(name: str) -> str:
    """Leave out where Optax's chain has Adam, which depends on a clip of gradients and on a fixed step size."""
    return name.lstrip("0123456789.")


def make_learner(context: RankContext, env: TaskEnv, agent: AgentConfig, settings: Mapping[str, Any]) -> TrainingLoop:
    """Build skrl's PPO on JAX in the training loop; skrl has been told of the rank."""
    options = translate(agent, settings)
    del options["mixed_precision"]
    collectives, inputs = Collectives(context.device), Inputs(env, agent)
    sizes, actions = inputs.sizes, Box(-np.inf, np.inf, (env.num_actions,))
    spaces: dict[str, Any] = {**inputs.make_spaces(actions), "device": config.jax.device}
    models = {
        "policy": Actor(config=agent.actor, options=options.pop("policy"), **spaces),
        "value": Critic(config=agent.critic, **spaces),
    }
    seen = {
        "observations": np.zeros((1, sizes["actor"]), np.float32),
        "states": np.zeros((1, sizes["critic"]), np.float32),
    }
    for (role, model), key in zip(models.items(), jax.random.split(config.jax.key), strict=True):
        model.init_state_dict(seen, role=role, key=key)
    shared = {"collectives": collectives, "summed_on": context.device}
    fill_in_scalers(options, sizes, JobScaler, device=spaces["device"], **shared)
    if options["learning_rate_scheduler"] is not None:
        options["learning_rate_scheduler"] = KLAdaptiveLR
    ppo = JobPpo(
        context,
        collectives,
        models=models,
        memory=RandomMemory(memory_size=options["rollouts"], num_envs=env.num_envs, device=spaces["device"]),
        cfg=PPO_CFG(**options, experiment={"write_interval": 0, "checkpoint_interval": 0}),  # pyright: ignore
        **spaces,
    )
    return TrainingLoop(context, env, SkrlJaxAlgorithm(ppo, collectives, inputs), options["rollouts"], "skrl_jax")
