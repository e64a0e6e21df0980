"""skrl's SAC on PyTorch: from an agent's config to its settings, and what it refuses."""

from collections.abc import Mapping
from typing import Any

from mjtrain.learning import AgentConfig, PpoConfig, RequestError, TrainConfig, merge_settings
from mjtrain_learners.mlp_library import check_agent, check_settings
from mjtrain_learners.skrl_on_torch import SkrlLibrary
from mjtrain_learners.skrl_settings import SCALER, SCALER_SETTINGS, check_parts, has_normaliser

OWN_SETTINGS: dict[str, Any] = {
    "gradient_steps": 1,
    "batch_size": 1,
    "memory_size": 1,
    "discount_factor": 1.0,
    "polyak": 1.0,
    "learning_rate": 1.0,
    "grad_norm_clip": 1.0,
    "learn_entropy": True,
    "initial_entropy_value": 1.0,
    "target_entropy": 1.0,
    "mixed_precision": True,
    "observation_preprocessor_kwargs": SCALER_SETTINGS,
    "state_preprocessor_kwargs": SCALER_SETTINGS,
    "policy": {"clip_log_std": True, "min_log_std": 1.0, "max_log_std": 1.0},
}
"""What --learner-config may have, each with a value of the right kind."""

WITHOUT_EFFECT = (
    "num-mini-batches",
    "lam",
    "clip-param",
    "use-clipped-value-loss",
    "value-loss-coef",
    "entropy-coef",
    "schedule",
    "desired-kl",
)
"""Settings of PPO that SAC has nothing like."""

_BATCH = 512
"""Transitions of a gradient step, unless batch_size says otherwise. There are as many steps as learn from each of a
rollout's transitions as often as PPO's epochs do, on average."""

_REPLAYED = 2**17
"""Transitions that a rank keeps, unless memory_size says otherwise: 130 MB of a quadruped's."""


def translate(agent: AgentConfig, settings: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Return skrl's settings of SAC, the size of its memory, and below "policy" those of its Gaussian policy.

    The agent was checked by `mlp_library.check_agent`, and num_envs are the environments of this rank.
    """
    algorithm = agent.algorithm
    assert isinstance(algorithm, PpoConfig)
    samples = algorithm.num_learning_epochs * agent.num_steps_per_env * num_envs
    translated = {
        "gradient_steps": max(1, samples // _BATCH),
        "batch_size": _BATCH,
        "memory_size": max(agent.num_steps_per_env, -(-_REPLAYED // num_envs)),
        "discount_factor": algorithm.gamma,
        "polyak": 0.005,
        "learning_rate": algorithm.learning_rate,
        "grad_norm_clip": algorithm.max_grad_norm,
        "learn_entropy": True,
        "initial_entropy_value": 0.2,
        "target_entropy": None,
        "mixed_precision": algorithm.use_mixed_precision,
        "observation_preprocessor": SCALER if agent.actor.obs_normalization else None,
        "observation_preprocessor_kwargs": {},
        "state_preprocessor": SCALER if agent.critic.obs_normalization else None,
        "state_preprocessor_kwargs": {},
        "policy": {},
    }
    return merge_settings(translated, settings)


def check_own(agent: AgentConfig, settings: Mapping[str, Any], num_envs: int, world_size: int) -> None:
    """Refuse settings that would do harm or nothing, after the checks of `mlp_library`."""
    translated = translate(agent, settings, num_envs)
    for name in ("gradient_steps", "batch_size"):
        if translated[name] < 1:
            raise RequestError(f"--learner-config {name} {translated[name]}: must be at least 1")
    if translated["learn_entropy"] and not translated["initial_entropy_value"] > 0.0:
        value = translated["initial_entropy_value"]
        raise RequestError(
            f"--learner-config initial_entropy_value {value}: has no logarithm to learn; give more than 0"
        )
    if translated["batch_size"] * world_size < 2 and has_normaliser(translated):
        raise RequestError(
            "--learner-config batch_size 1: one sample has no variance for skrl's normalisers; give at least 2"
        )
    if translated["memory_size"] < agent.num_steps_per_env:
        raise RequestError(
            f"--learner-config memory_size {translated['memory_size']}: must be at least the env steps of a rollout, "
            f"{agent.num_steps_per_env} (--agent.num-steps-per-env)"
        )
    kept = translated["memory_size"] * num_envs
    if settings.get("batch_size", 0) > kept:
        raise RequestError(
            f"--learner-config batch_size {settings['batch_size']}: must be at most the {kept} transitions that a rank "
            f"keeps (memory_size {translated['memory_size']} of {num_envs} environments)"
        )
    check_parts(translated, settings)


class SkrlSac(SkrlLibrary):
    """`Library` for skrl's SAC on PyTorch."""

    module = "mjtrain_learners.skrl_sac.sac"
    output_activation = "tanh"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse what skrl has no counterpart for."""
        notes = check_agent(config.agent, "skrl's SAC")
        check_settings(config.learner.settings, OWN_SETTINGS, "skrl's SAC")
        check_own(config.agent, config.learner.settings, config.num_envs, world_size)
        without = f"--learner skrl_sac: does not use --agent.algorithm.{{{', '.join(WITHOUT_EFFECT)}}}, which are PPO's"
        return (*notes, without)


LIBRARY = SkrlSac()
