"""What rl_games cannot do of a request, and what does not count in it; pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from mjtrain.learning import AgentConfig, PpoConfig, RequestError, TrainConfig
from mjtrain_learners.rl_games_agent.translation import ACTIVATIONS, has_central_value, translate

_CHOICES = {
    "lr_schedule": ("adaptive", "linear", "constant"),
    "schedule_type": ("legacy", "standard"),
    "bound_loss_type": ("bound", "regularisation"),
}


def check_request(config: TrainConfig, device: str) -> None:
    """Refuse what rl_games cannot do; `agent_check` has refused what no library here can.

    Args:
        config: The training, with the environments of one rank.
        device: Torch device of the first rank.

    Raises:
        RequestError: Something cannot be done. There is a note for each further problem.
    """
    problems = [*_find_problems(config, device), *_find_wrong_settings(config)]
    problems = problems or list(_find_idle_settings(config))
    if problems:
        raise RequestError.of(problems)


def _find_problems(config: TrainConfig, device: str) -> Iterator[str]:
    agent, algorithm = config.agent, config.agent.algorithm
    assert isinstance(algorithm, PpoConfig)
    for name, model in (("actor", agent.actor), ("critic", agent.critic)):
        if model.activation not in ACTIVATIONS:
            yield f"--agent.{name}.activation {model.activation}: rl_games has {', '.join(ACTIVATIONS)}"
    distribution = agent.actor.distribution_cfg
    if distribution is None:
        yield "--agent.actor.distribution-cfg None: PPO samples actions; give it a GaussianDistribution"
    elif distribution.init_std <= 0.0:
        yield f"--agent.actor.distribution-cfg.init-std {distribution.init_std:g}: must be above 0"
    samples = config.num_envs * agent.num_steps_per_env
    if samples % algorithm.num_mini_batches:
        yield (
            f"--agent.algorithm.num-mini-batches {algorithm.num_mini_batches}: rl_games has mini-batches of one size, "
            f"and a rollout has {samples} samples ({config.num_envs} environments x {agent.num_steps_per_env} steps)"
        )
    mixed = config.learner.settings.get("config", {}).get("mixed_precision", algorithm.use_mixed_precision)
    if mixed and not device.startswith("cuda"):
        yield "--agent.algorithm.use-mixed-precision: rl_games has it on GPUs only"


def _find_wrong_settings(config: TrainConfig) -> Iterator[str]:
    own = config.learner.settings.get("config", {})
    samples = config.num_envs * config.agent.num_steps_per_env
    for prefix, settings in (("config.", own), ("config.central_value_config.", own.get("central_value_config", {}))):
        for name, choices in _CHOICES.items():
            if name == "lr_schedule" and settings is not own:
                choices = ("linear", "constant")
            if name in settings and settings[name] not in choices:
                yield f"--learner-config {prefix}{name} {settings[name]}: choose from {', '.join(choices)}"
        size = settings.get("minibatch_size", samples)
        if size < 1 or samples % size:
            yield f"--learner-config {prefix}minibatch_size {size}: must divide the {samples} samples of a rollout"
        if settings.get("lr_schedule") == "linear" and own.get("max_epochs", 0) < 1:
            yield f"--learner-config {prefix}lr_schedule linear: needs config.max_epochs, its last iteration"


def _find_idle_settings(config: TrainConfig) -> Iterator[str]:
    """Yield a line for each setting of rl_games that is fine in itself and has no effect."""
    settings = config.learner.settings
    used = translate(config.agent, settings, config.num_envs)["config"]
    central = used.get("central_value_config", {})
    is_linear = "linear" in (used["lr_schedule"], central.get("lr_schedule"))
    is_central, is_adaptive = bool(central), used["lr_schedule"] == "adaptive"
    conditions = (
        ("config", "kl_threshold", not is_adaptive, f"lr_schedule is {used['lr_schedule']}"),
        ("config", "schedule_type", not is_adaptive, f"lr_schedule is {used['lr_schedule']}"),
        ("config", "max_epochs", not is_linear, "no lr_schedule is linear"),
        ("config", "bound_loss_type", used["bounds_loss_coef"] == 0.0, "bounds_loss_coef is 0"),
        ("config", "critic_coef", is_central, "the critic is a central value"),
        ("config", "clip_value", is_central, "the critic is a central value"),
        ("network", "separate", is_central, "the critic is a central value"),
    )
    for part, name, is_idle, reason in conditions:
        if is_idle and name in settings.get(part, {}):
            yield f"--learner-config {part}.{name}: has no effect, as {reason}"


def find_notes(agent: AgentConfig, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each setting that does not count and does no harm."""
    algorithm, distribution = agent.algorithm, agent.actor.distribution_cfg
    assert isinstance(algorithm, PpoConfig)
    if distribution is not None and distribution.std_type != "log":
        yield (
            "rl_games learns the logarithm of the standard deviation: "
            f"--agent.actor.distribution-cfg.std-type {distribution.std_type} does not count"
        )
    if has_central_value(agent, settings):
        if algorithm.value_loss_coef != PpoConfig().value_loss_coef:
            yield (
                "rl_games' critic has an optimiser of its own: "
                f"--agent.algorithm.value-loss-coef {algorithm.value_loss_coef:g} does not count"
            )
        if algorithm.schedule == "adaptive":
            yield (
                "rl_games' critic has an optimiser of its own: "
                "--agent.algorithm.schedule adaptive counts for the actor only"
            )
