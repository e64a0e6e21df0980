"""Which metrics a training writes; pure."""

from mjtrain.config import DistillationConfig, EnvConfig, TrainConfig
from mjtrain.evaluation.names import list_eval_metrics

_ITERATION = (
    "iteration",
    "env_steps_total",
    "env_steps_per_second",
    "collect_time_s",
    "learn_time_s",
    "wait_time_s",
    "mean_reward",
    "mean_episode_length",
    "nan_resets",
    "kl",
    "action_std",
    "world_size",
    "num_envs_total",
    "learning_rate",
)


def list_metrics(config: TrainConfig) -> list[str]:
    """Return the keys of metrics.jsonl that hold a number of the whole job, the same on all ranks."""
    env = config.env
    return [
        *_ITERATION,
        *(f"loss/{name}" for name in _list_losses(config)),
        *(f"reward/{name}" for name in env.rewards),
        *(f"termination/{name}" for name in env.terminations),
        *(f"success/{name}" for name in env.successes),
        *(f"curriculum/{name}" for name in env.curriculum),
        *(list_eval_metrics(env, config.agent) if isinstance(env, EnvConfig) else ()),
    ]


def _list_losses(config: TrainConfig) -> tuple[str, ...]:
    algorithm = config.agent.algorithm
    if isinstance(algorithm, DistillationConfig):
        return ("behavior",)
    further = {"auxiliary": bool(algorithm.auxiliary_cfg.group), "symmetry": algorithm.symmetry_cfg.mirrors_samples}
    return ("value", "surrogate", "entropy", *(name for name, is_there in further.items() if is_there))
