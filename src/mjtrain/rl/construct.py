"""RSL-RL's networks and algorithm, built for any device and backend."""

import contextlib
import io
from collections.abc import Callable
from typing import Any

from rsl_rl.algorithms import PPO
from rsl_rl.utils import resolve_callable, resolve_nn_activation

from mjtrain.config import AgentConfig, to_plain
from mjtrain.errors import RequestError
from mjtrain.rank import RankContext
from mjtrain.rl.networks import OWN_MODELS, resolve_model
from mjtrain.rl.vec_env import VecEnvAdapter


def make_algorithm(context: RankContext, env: VecEnvAdapter, config: AgentConfig) -> PPO:
    """Build networks, storage and algorithm as RSL-RL's own runner does.

    RSL-RL's runner insists on CUDA, NCCL and making the process group itself; here the context says who the ranks are.

    Args:
        context: This rank.
        env: This rank's environments.
        config: Networks, algorithm and rollout.

    Raises:
        RequestError: There is no such class or activation function.
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
    _check_names(config)
    for name in ("actor", "critic"):
        wanted[name] = resolve_model(wanted[name])
    algorithm: Any = resolve_callable(wanted["algorithm"]["class_name"])
    with contextlib.redirect_stdout(io.StringIO()):  # RSL-RL prints its networks
        return algorithm.construct_algorithm(env.get_observations(), env, wanted, context.device)


def _check_names(config: AgentConfig) -> None:
    named: list[tuple[str, str, Callable[[str], Any]]] = [
        ("algorithm.class-name", config.algorithm.class_name, resolve_callable)
    ]
    for name, model in (("actor", config.actor), ("critic", config.critic)):
        if model.class_name not in OWN_MODELS:
            named.append((f"{name}.class-name", model.class_name, resolve_callable))
        named.append((f"{name}.activation", model.activation, resolve_nn_activation))
        named.append((f"{name}.cnn-cfg.activation", model.cnn_cfg.activation, resolve_nn_activation))
        if model.distribution_cfg is not None:
            place = f"{name}.distribution-cfg.class-name"
            named.append((place, model.distribution_cfg.class_name, resolve_callable))
    for flag, value, resolve in named:
        try:
            resolve(value)
        except (ValueError, ImportError, AttributeError) as error:
            raise RequestError(f"--agent.{flag} {value}: {error}") from error
