"""Build external environments from a config."""

import sys
from collections.abc import Callable
from typing import Any

from mjtrain.config import ForeignConfig, GymnasiumConfig, MjlabConfig
from mjtrain.env.external.env import ForeignEnv, ForeignWorlds
from mjtrain.runtime.errors import RequestError, require


def make_foreign_env(config: ForeignConfig, num_envs: int, device: str, seed: int) -> ForeignEnv:
    """Make a rank's environments."""
    worlds = _make_worlds(config, num_envs, device, seed)
    if worlds.num_envs != num_envs:
        worlds.close()
        raise RequestError(f"{config.label}: made {worlds.num_envs} environments; {num_envs} were asked for (num_envs)")
    return ForeignEnv(config, worlds, config.label)


def _make_worlds(config: ForeignConfig, num_envs: int, device: str, seed: int) -> ForeignWorlds:
    if isinstance(config, GymnasiumConfig):
        require(f"{config.label}:", "gymnasium", "gymnasium")
        from mjtrain.env.external.gymnasium_worlds import GymnasiumWorlds, make_gymnasium

        return GymnasiumWorlds(make_gymnasium(config, num_envs), seed, device, config.label)
    if isinstance(config, MjlabConfig):
        from mjtrain.env.external.mjlab_worlds import make_mjlab
        from mjtrain.env.external.vec_env_worlds import VecEnvWorlds

        return VecEnvWorlds(make_mjlab(config, num_envs, device, seed), config.label)
    make: Callable[..., Any] = config.make
    envs = make(num_envs=num_envs, device=device, seed=seed, **config.kwargs)
    gymnasium = sys.modules.get("gymnasium")  # it has been imported, if it has made them
    if gymnasium is not None and isinstance(envs, gymnasium.vector.VectorEnv):
        from mjtrain.env.external.gymnasium_worlds import GymnasiumWorlds

        return GymnasiumWorlds(envs, seed, device, config.label)
    from mjtrain.env.external.vec_env_worlds import VecEnvWorlds

    return VecEnvWorlds(envs, config.label)
