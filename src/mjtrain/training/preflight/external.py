"""Whether an agent can be trained in external environments."""

from dataclasses import replace

from mjtrain.config import AgentConfig, ForeignConfig, GymnasiumConfig, MjlabConfig
from mjtrain.env.external.env import ForeignEnv, make_foreign_env
from mjtrain.runtime.errors import RequestError
from mjtrain.training.preflight.config_check import find_missing_groups
from mjtrain.training.preflight.network_check import find_network_problems


def check_agent(env: ForeignEnv, agent: AgentConfig, num_envs: int) -> None:
    """Check that an agent reads what the environments observe, with networks that fit."""
    seen = env.observe()
    problems = list(find_missing_groups(seen, agent))
    shapes = {group: tuple(values.shape[1:]) for group, values in seen.items()}
    problems = problems or list(find_network_problems(agent, shapes, num_envs))
    if problems:
        raise RequestError.of(problems)


def check_before_training(config: ForeignConfig, agent: AgentConfig, num_envs: int) -> None:
    """Step two environments of Gymnasium once, before anything is written; of mjlab, check what is changed.

    What a function makes may be a simulator of which a process can have only one, so it is checked by the ranks. So are
    environments of mjlab, which take long to make.
    """
    if isinstance(config, MjlabConfig):
        from mjtrain.env.external.mjlab_task import read_env_config

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
