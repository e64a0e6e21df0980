"""From an agent's config to the nested parameters of rl_games, and what rl_games cannot do of a request; pure."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from mjtrain.learning import AgentConfig, ModelConfig, PpoConfig, RequestError, TrainConfig, merge_settings

ACTIVATIONS = {
    "elu": "elu",
    "selu": "selu",
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "softplus": "softplus",
    "gelu": "gelu",
    "swish": "swish",
    "identity": "None",
}
"""Names of rl_games by the names that configs use."""

_OF_BOTH = {
    "learning_rate": 1.0,
    "lr_schedule": "linear",
    "mini_epochs": 1,
    "minibatch_size": 1,
    "e_clip": 1.0,
    "clip_value": True,
    "truncate_grads": True,
    "grad_norm": 1.0,
    "normalize_input": True,
    "weight_decay": 1.0,
}

OWN_SETTINGS: dict[str, Any] = {
    "network": {"separate": True},
    "config": {
        **_OF_BOTH,
        "max_epochs": 1,
        "schedule_type": "standard",
        "kl_threshold": 1.0,
        "gamma": 1.0,
        "tau": 1.0,
        "critic_coef": 1.0,
        "entropy_coef": 1.0,
        "bounds_loss_coef": 1.0,
        "bound_loss_type": "bound",
        "use_smooth_clamp": True,
        "normalize_value": True,
        "normalize_advantage": True,
        "reward_shaper": {
            "scale_value": 1.0,
            "shift_value": 1.0,
            "min_val": 1.0,
            "max_val": 1.0,
            "log_val": True,
        },
        "mixed_precision": True,
        "central_value_config": _OF_BOTH,
    },
}
"""What --learner-config may have, each with a value of the right kind. The rest is the training loop's: rollouts,
time-outs, what is written where; and layers are as --agent has them, so that a policy is loaded without rl_games."""

_CHOICES = {
    "lr_schedule": ("adaptive", "linear", "constant"),
    "schedule_type": ("legacy", "standard"),
    "bound_loss_type": ("bound", "regularisation"),
}


def has_central_value(agent: AgentConfig, settings: Mapping[str, Any]) -> bool:
    """Return whether the critic is what rl_games calls a central value: a network with a separate optimiser.

    It is unless actor and critic are alike and read the same, or if the settings have something for it.
    """
    actor, critic = agent.actor, agent.critic
    alike = all(
        getattr(actor, name) == getattr(critic, name) for name in ("hidden_dims", "activation", "obs_normalization")
    )
    reads_same = agent.obs_groups["actor"] == agent.obs_groups["critic"]
    return not (alike and reads_same) or "central_value_config" in settings.get("config", {})


def translate(agent: AgentConfig, settings: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Return the parameters of rl_games, without what only a rank knows.

    The agent was checked by `check_request`, and num_envs are the environments of a rank.
    """
    algorithm = agent.algorithm
    assert isinstance(algorithm, PpoConfig)
    distribution = agent.actor.distribution_cfg
    assert distribution is not None
    is_central = has_central_value(agent, settings)
    shared = {
        "learning_rate": algorithm.learning_rate,
        "mini_epochs": algorithm.num_learning_epochs,
        "minibatch_size": num_envs * agent.num_steps_per_env // algorithm.num_mini_batches,
        "e_clip": algorithm.clip_param,
        "clip_value": algorithm.use_clipped_value_loss,
        "truncate_grads": True,
        "grad_norm": algorithm.max_grad_norm,
    }
    config: dict[str, Any] = {
        **shared,
        "horizon_length": agent.num_steps_per_env,
        "lr_schedule": "adaptive" if algorithm.schedule == "adaptive" else "constant",
        "kl_threshold": algorithm.desired_kl,
        "schedule_type": "standard",
        "gamma": algorithm.gamma,
        "tau": algorithm.lam,
        "critic_coef": 2.0 * algorithm.value_loss_coef,  # rl_games halves it
        "entropy_coef": algorithm.entropy_coef,
        "bounds_loss_coef": 0.0,
        "normalize_input": agent.actor.obs_normalization,
        "normalize_value": False,
        "normalize_advantage": True,
        "reward_shaper": {},
        "clip_actions": False,
        "mixed_precision": algorithm.use_mixed_precision,
        "seq_length": 1,  # of recurrent networks, and yet a rollout must be divisible by it
        "use_experimental_cv": False,  # the actor's network has no value to learn beside a central one
    }
    if is_central:
        config["central_value_config"] = {
            **shared,
            "lr_schedule": "constant",
            "normalize_input": agent.critic.obs_normalization,
            "network": {"name": "actor_critic", "central_value": True, "mlp": _translate_layers(agent.critic)},
        }
    space = {
        "mu_activation": "None",
        "sigma_activation": "None",
        "mu_init": {"name": "default"},
        "sigma_init": {"name": "const_initializer", "val": math.log(distribution.init_std)},
        "fixed_sigma": True,
    }
    network = {
        "name": "actor_critic",
        "separate": not is_central,
        "space": {"continuous": space},
        "mlp": _translate_layers(agent.actor),
    }
    translated = {
        "algo": {"name": "a2c_continuous"},
        "model": {"name": "continuous_a2c_logstd"},
        "network": network,
        "config": config,
    }
    return merge_settings(translated, settings)


def _translate_layers(model: ModelConfig) -> dict[str, Any]:
    return {
        "units": list(model.hidden_dims),
        "activation": ACTIVATIONS[model.activation],
        "initializer": {"name": "default"},
    }


def check_request(config: TrainConfig, world_size: int, device: str) -> None:
    """Refuse what rl_games cannot do; `check_agent` has refused what no library here can."""
    problems = [*_find_problems(config, world_size, device), *_find_wrong_settings(config)]
    problems = problems or list(_find_idle_settings(config))
    if problems:
        raise RequestError.of(problems)


def _find_problems(config: TrainConfig, world_size: int, device: str) -> Iterator[str]:
    agent, algorithm = config.agent, config.agent.algorithm
    assert isinstance(algorithm, PpoConfig)
    for name, model in (("actor", agent.actor), ("critic", agent.critic)):
        if model.activation not in ACTIVATIONS:
            yield f"--agent.{name}.activation {model.activation}: rl_games has {', '.join(ACTIVATIONS)}"
    samples, own = config.num_envs * agent.num_steps_per_env, config.learner.settings.get("config", {})
    if samples * world_size < 2 and own.get("normalize_advantage", True):
        yield (
            f"--agent.num-steps-per-env {agent.num_steps_per_env}: a rollout of 1 env has one sample, whose advantage "
            "cannot be normalised; give more steps or environments"
        )
    if samples % algorithm.num_mini_batches:
        yield (
            f"--agent.algorithm.num-mini-batches {algorithm.num_mini_batches}: rl_games has mini-batches of one size, "
            f"and a rollout has {samples} samples ({config.num_envs} environments x {agent.num_steps_per_env} steps)"
        )
    mixed = own.get("mixed_precision", algorithm.use_mixed_precision)
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
        if settings.get("mini_epochs", 1) < 1:
            yield f"--learner-config {prefix}mini_epochs {settings['mini_epochs']}: must be at least 1"
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
                "rl_games' critic has a separate optimiser: "
                f"--agent.algorithm.value-loss-coef {algorithm.value_loss_coef:g} does not count"
            )
        if algorithm.schedule == "adaptive":
            yield (
                "rl_games' critic has a separate optimiser: "
                "--agent.algorithm.schedule adaptive counts for the actor only"
            )
