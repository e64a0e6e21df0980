"""From an agent in RSL-RL's own settings to ours, which have the same names."""

from collections.abc import Mapping
from typing import Any

from mjtrain.config import AgentConfig, from_plain, to_plain
from mjtrain.runtime.errors import RequestError

TAKEN = ("num_steps_per_env", "save_interval", "obs_groups", "actor", "critic", "algorithm")
"""The rest is not about what is learned: where results go, how long it takes, and which run is resumed."""

OURS = {"PPO": "mjtrain.learning.rsl_rl.ppo:Ppo"}
"""Algorithms of RSL-RL, and ours that do the same over all ranks."""


def to_agent(settings: Mapping[str, Any], label: str) -> AgentConfig:
    """Return the agent that RSL-RL's settings describe.

    Args:
        settings: Content of a runner's config, such as mjlab's `RslRlOnPolicyRunnerCfg`.
    """
    plain = to_plain({name: settings[name] for name in TAKEN})
    algorithm = plain["algorithm"]
    algorithm["class_name"] = OURS.get(algorithm["class_name"], algorithm["class_name"])
    for network in ("actor", "critic"):  # None is for a network that has no such part
        kept = {name: value for name, value in plain[network].items() if value is not None}
        plain[network] = kept | {"distribution_cfg": plain[network]["distribution_cfg"]}
    try:
        return from_plain(AgentConfig, plain)
    except ValueError as error:
        raise RequestError(
            f"task {label}: {error}; it trains with an agent of yours, in a task with MjlabConfig"
        ) from error
