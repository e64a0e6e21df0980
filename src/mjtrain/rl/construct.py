"""RSL-RL's networks and algorithm, built for any device and backend."""

import contextlib
import io
from typing import Any

from rsl_rl.algorithms import PPO
from rsl_rl.utils import resolve_callable

from mjtrain.config import AgentConfig, to_plain
from mjtrain.rank import RankContext
from mjtrain.rl.vec_env import VecEnvAdapter


def make_algorithm(context: RankContext, env: VecEnvAdapter, config: AgentConfig) -> PPO:
    """Build networks, storage and algorithm as RSL-RL's own runner does.

    RSL-RL's runner insists on CUDA, NCCL and making the process group itself; here the context says who the ranks are.

    Args:
        context: This rank.
        env: This rank's environments.
        config: Networks, algorithm and rollout.
    """
    plain = to_plain(config)
    wanted: dict[str, Any] = {
        key: plain[key]
        for key in ("num_steps_per_env", "actor", "critic", "algorithm", "obs_groups", "torch_compile_mode")
    }
    wanted["multi_gpu"] = None
    if context.is_distributed:
        wanted["multi_gpu"] = {
            "global_rank": context.rank,
            "local_rank": context.local_rank,
            "world_size": context.world_size,
        }
    algorithm: Any = resolve_callable(wanted["algorithm"]["class_name"])
    with contextlib.redirect_stdout(io.StringIO()):  # RSL-RL prints its networks
        return algorithm.construct_algorithm(env.get_observations(), env, wanted, context.device)
