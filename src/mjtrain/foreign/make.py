"""From a config to foreign environments, checked against who shall learn in them."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mjtrain.config import AgentConfig, ForeignConfig, GymnasiumConfig, MjlabConfig
from mjtrain.errors import RequestError
from mjtrain.foreign.env import ForeignEnv, ForeignWorlds
from mjtrain.network_check import find_network_problems


def make_foreign_env(config: ForeignConfig, num_envs: int, device: str, seed: int) -> ForeignEnv:
    """Make a rank's environments.

    Args:
        config: Which.
        num_envs: How many.
        device: Torch device of the rank.
        seed: Seed of the rank.

    Raises:
        RequestError: They cannot be made, or do not fit.
    """
    worlds = _make_worlds(config, num_envs, device, seed)
    if worlds.num_envs != num_envs:
        worlds.close()
        raise RequestError(f"{config.label}: made {worlds.num_envs} environments; {num_envs} were asked for (num_envs)")
    return ForeignEnv(config, worlds, config.label)


def _make_worlds(config: ForeignConfig, num_envs: int, device: str, seed: int) -> ForeignWorlds:
    if isinstance(config, GymnasiumConfig):
        if importlib.util.find_spec("gymnasium") is None:
            raise RequestError(f"{config.label}: needs gymnasium; pip install 'mjtrain[gymnasium]'")
        from mjtrain.foreign.gymnasium_worlds import GymnasiumWorlds, make_gymnasium

        return GymnasiumWorlds(make_gymnasium(config, num_envs), seed, device, config.label)
    if isinstance(config, MjlabConfig):
        from mjtrain.foreign.mjlab_worlds import make_mjlab
        from mjtrain.foreign.vec_env_worlds import VecEnvWorlds

        return VecEnvWorlds(make_mjlab(config, num_envs, device, seed), config.label)
    make: Callable[..., Any] = config.make
    envs = make(num_envs=num_envs, device=device, seed=seed, **config.kwargs)
    gymnasium = sys.modules.get("gymnasium")  # it has been imported, if it has made them
    if gymnasium is not None and isinstance(envs, gymnasium.vector.VectorEnv):
        from mjtrain.foreign.gymnasium_worlds import GymnasiumWorlds

        return GymnasiumWorlds(envs, seed, device, config.label)
    from mjtrain.foreign.vec_env_worlds import VecEnvWorlds

    return VecEnvWorlds(envs, config.label)


def check_agent(env: ForeignEnv, agent: AgentConfig, num_envs: int) -> None:
    """Check that an agent reads what the environments observe, with networks that fit.

    Args:
        env: Some of the environments.
        agent: The agent.
        num_envs: Environments of a rank.

    Raises:
        RequestError: It does not.
    """
    seen = env.observe()
    problems = [
        f"--agent.obs-groups.{name} {group}: the environment observes {', '.join(seen)}"
        for name, groups in agent.obs_groups.items()
        for group in groups
        if group not in seen
    ]
    shapes = {group: tuple(values.shape[1:]) for group, values in seen.items()}
    problems = problems or list(find_network_problems(agent, shapes, num_envs))
    if problems:
        raise RequestError.of(problems)


def check_before_training(config: ForeignConfig, agent: AgentConfig, num_envs: int) -> None:
    """Step two environments of Gymnasium once, before anything is written; of mjlab, check what is changed.

    What a function makes may be a simulator of which a process can have only one, so it is checked by the ranks. So are
    environments of mjlab, which take long to make.

    Raises:
        RequestError: They cannot be made or trained on.
    """
    if isinstance(config, MjlabConfig):
        from mjtrain.foreign.mjlab_worlds import read_env_config

        read_env_config(config)
    if not isinstance(config, GymnasiumConfig):
        return
    import torch

    env = make_foreign_env(replace(config, vectorization="sync"), 2, "cpu", seed=0)
    try:
        check_agent(env, agent, num_envs)
        env.step(torch.zeros(env.num_envs, env.num_actions))
    finally:
        env.close()
