"""What libraries with PPO and plain networks cannot do of an agent's config; pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from mjtrain.learning import AgentConfig, PpoConfig, RequestError
from mjtrain_learners.mlp import ACTIVATIONS


def check_agent(agent: AgentConfig, library: str) -> tuple[str, ...]:
    """Refuse what has no counterpart in a library that has PPO with Adam, and MLPs with one Gaussian for all states.

    Args:
        agent: What was asked for.
        library: Its name, for messages.

    Returns:
        A line for each setting that has none and does no harm.

    Raises:
        RequestError: Something else has none. There is a note for each further problem.
    """
    problems = list(_find_problems(agent, library))
    if problems:
        raise RequestError.of(problems)
    algorithm = agent.algorithm
    if isinstance(algorithm, PpoConfig) and algorithm.symmetry_cfg.use_equivariant_networks:
        return (f"--agent.algorithm.symmetry-cfg.use-equivariant-networks: {library} has no such networks here",)
    return ()


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
    if algorithm.symmetry_cfg.mirrors_samples:
        yield f"--agent.algorithm.symmetry-cfg: {library} mirrors nothing here; use --learner rsl_rl"
    if agent.torch_compile_mode is not None:
        yield f"--agent.torch-compile-mode {agent.torch_compile_mode}: is not used with {library}; leave it out"
    for name, model in (("actor", agent.actor), ("critic", agent.critic)):
        flag = f"--agent.{name}"
        if model.class_name != "MLPModel":
            yield f"{flag}.class-name {model.class_name}: {library} has MLPModel here; use --learner rsl_rl"
        if model.activation not in ACTIVATIONS:
            yield f"{flag}.activation {model.activation}: choose from {', '.join(ACTIVATIONS)}"
    distribution = agent.actor.distribution_cfg
    if distribution is not None and distribution.class_name != "GaussianDistribution":
        yield f"--agent.actor.distribution-cfg.class-name {distribution.class_name}: {library} has GaussianDistribution"
    if agent.critic.distribution_cfg is not None:
        yield f"--agent.critic.distribution-cfg: values of {library} have no distribution; leave it out"


def check_settings(settings: Mapping[str, Any], allowed: Mapping[str, Any], library: str, prefix: str = "") -> None:
    """Refuse settings of --learner-config that there are not, or of another kind.

    Args:
        settings: What was given.
        allowed: Values of the right kinds by name: numbers, words, booleans, None for a number or none, and mappings.
        library: Name of the library, for messages.
        prefix: Where the settings are, such as "policy.".

    Raises:
        RequestError: One is wrong.
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
