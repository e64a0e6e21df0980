"""What the libraries here share: plain networks, checks of an agent's config, and play without the library."""

import contextlib
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mjtrain.learning import AgentConfig, PpoConfig, RankContext, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from mjtrain.learning import Policy, TaskEnv, TrainingLoop

ACTIVATIONS = {
    "elu": "ELU",
    "selu": "SELU",
    "relu": "ReLU",
    "crelu": "CELU",
    "lrelu": "LeakyReLU",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "gelu": "GELU",
    "swish": "SiLU",
    "mish": "Mish",
    "identity": "Identity",
}
"""Classes in torch.nn by the names that configs use."""


def make_layers(num_inputs: int, hidden_dims: "Sequence[int]", num_outputs: int, activation: str) -> "nn.Sequential":
    """Build a network: hidden layers, each with its activation, and a linear output."""
    from torch import nn  # seconds of import, which a check of a config need not spend

    widths = [num_inputs, *hidden_dims]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), make_activation(activation)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


def make_activation(activation: str) -> "nn.Module":
    """Build an activation from a name of `ACTIVATIONS`."""
    from torch import nn

    return getattr(nn, ACTIVATIONS[activation])()


def check_agent(agent: AgentConfig, library: str) -> tuple[str, ...]:
    """Refuse what has no counterpart in a library that has PPO with Adam, and MLPs with one Gaussian for all states.

    Returns a line for each setting that has none and does no harm. The error has a note for each further problem.
    """
    problems = list(_find_problems(agent, library))
    if problems:
        raise RequestError.of(problems)
    algorithm, unused = agent.algorithm, []
    assert isinstance(algorithm, PpoConfig), "others are refused before"
    if algorithm.symmetry_cfg.use_equivariant_networks:
        unused += [f"--agent.algorithm.symmetry-cfg.use-equivariant-networks: {library} has no such networks here"]
    if algorithm.warm_start.controller:
        name = algorithm.warm_start.controller
        unused += [f"--agent.algorithm.warm-start.controller {name}: {library} does not imitate controllers here"]
    return tuple(unused)


def _find_problems(agent: AgentConfig, library: str) -> Iterator[str]:
    algorithm, usual = agent.algorithm, PpoConfig()
    if not isinstance(algorithm, PpoConfig):
        yield f"--agent.algorithm {type(algorithm).__name__}: {library} has no distillation here; use --learner rsl_rl"
        return
    if algorithm.class_name not in (usual.class_name, "PPO", "rsl_rl.algorithms:PPO"):
        yield f"--agent.algorithm.class-name {algorithm.class_name}: is a class for RSL-RL, and this is {library}"
    if algorithm.optimizer != usual.optimizer:
        yield f"--agent.algorithm.optimizer {algorithm.optimizer}: {library} has adam"
    if algorithm.normalize_advantage_per_mini_batch:
        yield f"--agent.algorithm.normalize-advantage-per-mini-batch: {library} normalises advantages per rollout"
    if algorithm.share_cnn_encoders:
        yield f"--agent.algorithm.share-cnn-encoders: {library} has no convolutions here"
    if algorithm.auxiliary_cfg.group:
        group = algorithm.auxiliary_cfg.group
        yield f"--agent.algorithm.auxiliary-cfg.group {group}: {library} has no convolutions here"
    if algorithm.critic_iterations:
        yield f"--agent.algorithm.critic-iterations {algorithm.critic_iterations}: {library} trains both networks"
    if algorithm.symmetry_cfg.mirrors_samples:
        yield f"--agent.algorithm.symmetry-cfg: {library} mirrors nothing here; use --learner rsl_rl"
    if agent.torch_compile_mode is not None:
        yield f"--agent.torch-compile-mode {agent.torch_compile_mode}: is not used with {library}; leave it out"
    for name, model in (("actor", agent.actor), ("critic", agent.critic)):
        flag = f"--agent.{name}"
        if name not in agent.obs_groups:
            yield f"--agent.obs-groups.{name}: is missing; name the groups that this network reads"
        if model.class_name != "MLPModel":
            yield f"{flag}.class-name {model.class_name}: {library} has MLPModel here; use --learner rsl_rl"
    distribution = agent.actor.distribution_cfg
    if distribution is not None and distribution.class_name != "GaussianDistribution":
        yield f"--agent.actor.distribution-cfg.class-name {distribution.class_name}: {library} has GaussianDistribution"
    if agent.critic.distribution_cfg is not None:
        yield f"--agent.critic.distribution-cfg: values of {library} have no distribution; leave it out"


def check_settings(settings: Mapping[str, Any], allowed: Mapping[str, Any], library: str, prefix: str = "") -> None:
    """Refuse settings of --learner-config that do not exist, or have the wrong type.

    Args:
        allowed: Values of the right kinds by name: numbers, words, booleans, None for a number or none, and mappings.
        prefix: Where the settings are, such as "policy.".
    """
    for name, value in settings.items():
        flag = f"--learner-config {prefix}{name}"
        if name not in allowed:
            where = f" below {prefix[:-1]}" if prefix else ""
            raise RequestError(f"{flag}: {library} takes {', '.join(allowed)}{where}; the rest follows from --agent")
        usual = allowed[name]
        if isinstance(usual, Mapping):
            if not isinstance(value, Mapping):
                raise RequestError(f"{flag} {value}: give settings as name: value")
            check_settings(value, usual, library, f"{prefix}{name}.")
        elif not _is_alike(value, usual):
            kind = {bool: "true or false", int: "a whole number", str: "a word"}.get(type(usual), "a number")
            raise RequestError(f"{flag} {value}: give {kind}")


def _is_alike(value: Any, usual: Any) -> bool:
    if isinstance(usual, bool) or isinstance(value, bool):
        return isinstance(usual, bool) and isinstance(value, bool)
    if isinstance(usual, float):
        return isinstance(value, int | float)
    return isinstance(value, type(usual))


@contextlib.contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables, or unset those that are None, for the length of a with block."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class MlpLibrary(ABC):
    """The part of a `Library` that builds what learns and what was learned."""

    module: str
    """Module whose `make_learner` builds what learns; imported after `start`."""

    format: str
    """How its checkpoints hold the policy's weights: a name of `weights.READERS`."""

    output_activation = "identity"
    """What the last layer's outputs go through, by the names of configs."""

    @abstractmethod
    def start(self, context: RankContext) -> None:
        """Import the library, which is told which rank this is. With several ranks, the process group must be up."""

    def make_learner(
        self, context: RankContext, env: "TaskEnv", agent: AgentConfig, settings: Mapping[str, Any]
    ) -> "TrainingLoop":
        """Build what learns; see `Library`."""
        self.start(context)
        return importlib.import_module(self.module).make_learner(context, env, agent, settings)

    def make_policy(
        self,
        agent: AgentConfig,
        settings: Mapping[str, Any],  # noqa: ARG002
        observations: "Mapping[str, torch.Tensor]",
        num_actions: int,
    ) -> "Policy":
        """Build what was learned, with layers of torch; see `Library`."""
        from mjtrain_learners.weights import READERS, MlpPolicy

        return MlpPolicy(agent, observations, num_actions, READERS[self.format], self.output_activation)
