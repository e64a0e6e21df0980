"""From an agent's config to the nested parameters of rl_games; pure."""

import math
from collections.abc import Mapping
from typing import Any

from mjtrain.learning import AgentConfig, ModelConfig, PpoConfig, merge_settings

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


def has_central_value(agent: AgentConfig, settings: Mapping[str, Any]) -> bool:
    """Return whether the critic is what rl_games calls a central value: a network with an optimiser of its own.

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

    Args:
        agent: Checked by `request_check.check_request`.
        settings: Content of --learner-config.
        num_envs: Environments of a rank.
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
