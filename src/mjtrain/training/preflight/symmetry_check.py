"""Whether a symmetry can be learned by the networks of an agent; pure."""

from collections.abc import Iterator

from mjtrain.config import AgentConfig, ModelConfig, PpoConfig, SymmetryConfig

_FLAG = "--agent.algorithm.symmetry-cfg"


def find_symmetry_problems(agent: AgentConfig) -> Iterator[str]:
    """Look for settings of a symmetry that contradict each other, or the networks.

    Yields:
        A line for each problem, which names the flag, the value and what would be right.
    """
    algorithm = agent.algorithm
    if not isinstance(algorithm, PpoConfig) or not algorithm.symmetry_cfg.is_used:
        return
    symmetry, networks = algorithm.symmetry_cfg, {"actor": agent.actor, "critic": agent.critic}
    if symmetry.use_mirror_loss and not symmetry.mirror_loss_coeff > 0:
        yield f"{_FLAG}.mirror-loss-coeff {symmetry.mirror_loss_coeff:g}: must be more than 0"
    if algorithm.auxiliary_cfg.group:
        yield (
            f"{_FLAG}: cannot be combined with --agent.algorithm.auxiliary-cfg.group {algorithm.auxiliary_cfg.group}, "
            "whose loss takes the place of a symmetry's; leave out one of them"
        )
    if symmetry.use_equivariant_networks:
        yield from _find_untied_networks(symmetry, networks)
        return
    for name, model in networks.items():
        if model.class_name == "RNNModel":
            yield f"{_FLAG}: RSL-RL mirrors no recurrent networks; --agent.{name}.class-name is RNNModel, give MLPModel"


def _find_untied_networks(symmetry: SymmetryConfig, networks: dict[str, ModelConfig]) -> Iterator[str]:
    flag = f"{_FLAG}.use-equivariant-networks"
    if symmetry.mirrors_samples:
        yield f"{flag}: learns nothing more from mirror images; leave out use-data-augmentation and use-mirror-loss"
    for name, model in networks.items():
        if model.class_name != "MLPModel":
            yield (
                f"{flag}: only an MLPModel can be tied so, and --agent.{name}.class-name is {model.class_name}; "
                "give --agent.algorithm.symmetry-cfg.no-use-equivariant-networks"
            )
        if any(width % 2 for width in model.hidden_dims):
            widths = " ".join(map(str, model.hidden_dims))
            yield f"--agent.{name}.hidden-dims {widths}: must be even, as the units of equivariant networks are paired"
        distribution = model.distribution_cfg
        if distribution is not None and distribution.class_name != "GaussianDistribution":
            yield (
                f"{flag}: --agent.{name}.distribution-cfg.class-name is {distribution.class_name}, "
                "and only the means of a GaussianDistribution can be mirrored"
            )


def find_mirrored_groups(agent: AgentConfig) -> tuple[str, ...]:
    """Return the observation groups of which a training needs the mirror images."""
    if not isinstance(agent.algorithm, PpoConfig) or not agent.algorithm.symmetry_cfg.is_used:
        return ()
    return tuple(dict.fromkeys(group for name in ("actor", "critic") for group in agent.obs_groups.get(name, ())))
