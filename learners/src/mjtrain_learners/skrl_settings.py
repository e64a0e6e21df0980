"""What skrl's agents on PyTorch and on JAX share: settings, from an agent's config, and how agents are called."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from mjtrain.learning import AgentConfig, PpoConfig, RequestError, merge_settings

SCALER = "RunningStandardScaler"
"""skrl's normaliser."""

SCALER_SETTINGS = {"epsilon": 1e-8, "clip_threshold": 5.0}
"""What may be set of it."""

OWN_SETTINGS: dict[str, Any] = {
    "learning_epochs": 1,
    "mini_batches": 1,
    "discount_factor": 1.0,
    "gae_lambda": 1.0,
    "learning_rate": 1.0,
    "learning_rate_scheduler_kwargs": {
        "kl_threshold": 1.0,
        "min_lr": 1.0,
        "max_lr": 1.0,
        "kl_factor": 1.0,
        "lr_factor": 1.0,
    },
    "observation_preprocessor_kwargs": SCALER_SETTINGS,
    "state_preprocessor_kwargs": SCALER_SETTINGS,
    "value_preprocessor": SCALER,
    "value_preprocessor_kwargs": SCALER_SETTINGS,
    "grad_norm_clip": 1.0,
    "ratio_clip": 1.0,
    "value_clip": 1.0,
    "entropy_loss_scale": 1.0,
    "value_loss_scale": 1.0,
    "kl_threshold": 1.0,
    "mixed_precision": True,
    "policy": {"clip_log_std": True, "min_log_std": 1.0, "max_log_std": 1.0},
}
"""What --learner-config may have, each with a value of the right kind. The rest is the training loop's: rollouts,
time-outs, what is written where."""

NOW: Any = {"timestep": 0, "timesteps": 0}
"""Of no consequence: skrl's schedules by time are not used."""


def translate(agent: AgentConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return skrl's settings of PPO, with classes by their names, and below "policy" those of its Gaussian policy.

    The agent was checked by `mlp_library.check_agent`.
    """
    algorithm = agent.algorithm
    assert isinstance(algorithm, PpoConfig)
    is_adaptive = algorithm.schedule == "adaptive"
    adaptive = {"kl_threshold": algorithm.desired_kl, "min_lr": 1e-5, "max_lr": 1e-2}
    translated = {
        "rollouts": agent.num_steps_per_env,
        "learning_epochs": algorithm.num_learning_epochs,
        "mini_batches": algorithm.num_mini_batches,
        "discount_factor": algorithm.gamma,
        "gae_lambda": algorithm.lam,
        "learning_rate": algorithm.learning_rate,
        "learning_rate_scheduler": "KLAdaptiveLR" if is_adaptive else None,
        "learning_rate_scheduler_kwargs": adaptive if is_adaptive else {},
        "observation_preprocessor": SCALER if agent.actor.obs_normalization else None,
        "observation_preprocessor_kwargs": {},
        "state_preprocessor": SCALER if agent.critic.obs_normalization else None,
        "state_preprocessor_kwargs": {},
        "value_preprocessor": None,
        "value_preprocessor_kwargs": {},
        "grad_norm_clip": algorithm.max_grad_norm,
        "ratio_clip": algorithm.clip_param,
        "value_clip": algorithm.clip_param if algorithm.use_clipped_value_loss else 0.0,
        "entropy_loss_scale": algorithm.entropy_coef,
        "value_loss_scale": algorithm.value_loss_coef,
        "kl_threshold": 0.0,
        "mixed_precision": algorithm.use_mixed_precision,
        "policy": {},
    }
    return merge_settings(translated, settings)


def check_own(agent: AgentConfig, settings: Mapping[str, Any], num_envs: int, world_size: int) -> None:
    """Refuse settings of skrl that would do harm or nothing, after the checks of `mlp_library`."""
    if world_size > 1 and settings.get("kl_threshold", 0.0) > 0.0:
        raise RequestError(
            f"--learner-config kl_threshold {settings['kl_threshold']}: would end the epochs of {world_size} ranks at "
            "different mini-batches; leave it out"
        )
    if settings.get("value_preprocessor", SCALER) != SCALER:
        raise RequestError(f"--learner-config value_preprocessor {settings['value_preprocessor']}: give {SCALER}")
    translated = translate(agent, settings)
    for name in ("learning_epochs", "mini_batches"):
        if translated[name] < 1:
            raise RequestError(f"--learner-config {name} {translated[name]}: must be at least 1")
    samples = num_envs * agent.num_steps_per_env
    if translated["mini_batches"] > samples:
        raise RequestError(
            f"--learner-config mini_batches {translated['mini_batches']}: a rollout of {num_envs} environments has "
            f"{samples} samples; give at most that many"
        )
    check_parts(translated, settings)


def check_parts(translated: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings of a scheduler or normaliser that the translated settings do not have."""
    for part, made in translated.items():
        if made is None and settings.get(f"{part}_kwargs"):
            raise RequestError(f"--learner-config {part}_kwargs: has no effect without a {part}")


def check_mini_batches(agent: AgentConfig, settings: Mapping[str, Any], num_envs: int, world_size: int) -> None:
    """Refuse mini-batches of one sample, over all ranks: skrl's normalisers would be NaN from then on."""
    translated, samples = translate(agent, settings), num_envs * agent.num_steps_per_env
    mini_batches = translated["mini_batches"]
    if not has_normaliser(translated) or samples // mini_batches * world_size > 1:
        return
    flag = "--learner-config mini_batches" if "mini_batches" in settings else "--agent.algorithm.num-mini-batches"
    more = "more environments or env steps (--agent.num-steps-per-env)" if samples < 2 else f"at most {samples // 2}"
    raise RequestError(
        f"{flag} {mini_batches}: some have one sample, which has no variance for skrl's normalisers; give {more}"
    )


def has_normaliser(translated: Mapping[str, Any]) -> bool:
    """Whether skrl's settings have a normaliser of what actor or critic read."""
    return translated["observation_preprocessor"] is not None or translated["state_preprocessor"] is not None


def fill_in_scalers(options: dict[str, Any], sizes: Mapping[str, int], scaler: type, **arguments: Any) -> None:
    """Replace the names of normalisers by a class, and add what it is made with.

    Args:
        options: skrl's settings, of which these are changed.
        sizes: Size of what actor and critic read, see `Inputs.sizes`.
        scaler: skrl's normaliser, over all ranks.
        arguments: What it takes besides its size.
    """
    for part, size in (("observation", sizes["actor"]), ("state", sizes["critic"]), ("value", 1)):
        if options.get(f"{part}_preprocessor") is not None:
            options[f"{part}_preprocessor"] = scaler
            options[f"{part}_preprocessor_kwargs"] |= {"size": size, **arguments}


@contextmanager
def replaced(module: ModuleType, steps: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace functions that skrl's update finds by their names in a module, for the length of a with block.

    Args:
        steps: By name, functions that take skrl's own as their first argument, and then what that takes.
    """
    originals = {name: getattr(module, name) for name in steps}
    for name, step in steps.items():
        setattr(module, name, partial(step, originals[name]))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(module, name, original)


def record_transition(
    agent: Any,
    before: tuple[Any, Any],
    actions: Any,
    rewards: Any,
    after: tuple[Any, Any],
    terminated: Any,
    truncated: Any,
) -> None:
    """Hand a transition to an agent of skrl: observations and states before and after it, shape (num_envs, size) each.

    Actions: shape (num_envs, num_actions); rewards and ends: shape (num_envs, 1).
    """
    agent.record_transition(
        observations=before[0],
        states=before[1],
        actions=actions,
        rewards=rewards,
        next_observations=after[0],
        next_states=after[1],
        terminated=terminated,
        truncated=truncated,
        infos={},
        **NOW,
    )


def describe_scaler(agent: Any) -> dict[str, Any]:
    """Return what a checkpoint needs beside the statistics of an agent's normaliser of observations, if it has one."""
    scaler = agent.checkpoint_modules.get("observation_preprocessor")
    if scaler is None:
        return {}
    options = {"epsilon": scaler.epsilon, "clip_threshold": scaler.clip_threshold}
    return {"observation_preprocessor_options": options}


def update_ppo(ppo: Any) -> tuple[dict[str, float], float]:
    """Have skrl's PPO learn from its memory; return unweighted losses and the standard deviation of actions."""
    ppo.enable_models_training_mode(True)
    ppo.update(**NOW)
    ppo.enable_models_training_mode(False)
    tracked = {name: values[-1] for name, values in ppo.tracking_data.items()}
    ppo.tracking_data.clear()
    losses = {"surrogate": tracked["Loss / Policy loss"]}
    if ppo.cfg.value_loss_scale:
        losses["value"] = tracked["Loss / Value loss"] / ppo.cfg.value_loss_scale
    if ppo.cfg.entropy_loss_scale:
        losses["entropy"] = -tracked["Loss / Entropy loss"] / ppo.cfg.entropy_loss_scale
    return losses, tracked["Policy / Standard deviation"]
