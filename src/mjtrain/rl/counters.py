"""What RSL-RL's algorithms keep in plain attributes, and not in modules that are saved."""

from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.extensions import RandomNetworkDistillation
from rsl_rl.modules import EmpiricalDiscountedVariationNormalization

from mjtrain.rl.distillation import Distillation


def get_counters(algorithm: PPO | Distillation) -> dict[str, int]:
    """Return counts that the future of all ranks depends on: the updates of a distillation, the env steps of an RND.

    The weight of the rewards of random network distillation may follow a schedule of env steps.
    """
    if isinstance(algorithm, Distillation):
        return {"num_updates": algorithm.num_updates}
    rnd = _rnd_of(algorithm)
    return {} if rnd is None else {"rnd_env_steps": rnd.update_counter}


def set_counters(algorithm: PPO | Distillation, counters: dict[str, int]) -> None:
    """Restore what `get_counters` returned; what is missing, as in files of earlier versions, starts at zero."""
    if isinstance(algorithm, Distillation):
        algorithm.num_updates = counters.get("num_updates", 0)
    rnd = _rnd_of(algorithm)
    if rnd is not None:
        rnd.update_counter = counters.get("rnd_env_steps", 0)


def get_discounted_rewards(algorithm: PPO | Distillation) -> torch.Tensor | None:
    """Return the discounted sum of each environment's RND rewards, from which their scale is estimated.

    Shape (num_envs,). None where there is none, or none yet.
    """
    normaliser = _reward_normaliser_of(algorithm)
    return None if normaliser is None else normaliser.disc_avg.avg


def set_discounted_rewards(algorithm: PPO | Distillation, sums: torch.Tensor | None, device: str) -> None:
    """Restore what `get_discounted_rewards` returned."""
    normaliser = _reward_normaliser_of(algorithm)
    if normaliser is not None:
        restored: Any = None if sums is None else sums.to(device, copy=True)
        normaliser.disc_avg.avg = restored


def _rnd_of(algorithm: Any) -> RandomNetworkDistillation | None:
    return getattr(algorithm, "rnd", None)


def _reward_normaliser_of(algorithm: Any) -> EmpiricalDiscountedVariationNormalization | None:
    rnd = _rnd_of(algorithm)
    normaliser = None if rnd is None else rnd.reward_normalizer
    return normaliser if isinstance(normaliser, EmpiricalDiscountedVariationNormalization) else None
