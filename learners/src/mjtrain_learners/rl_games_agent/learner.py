"""rl_games' agent, built for the training loop."""

import contextlib
import io
import tempfile
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.spaces import Box
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.ivecenv import IVecEnv
from rl_games.common.tr_helpers import DefaultRewardsShaper

from mjtrain.learning import AgentConfig, Collectives, RankContext, TaskEnv, TrainingLoop
from mjtrain_learners.rl_games_agent.agent import JobAgent
from mjtrain_learners.rl_games_agent.algorithm import RlGamesAlgorithm
from mjtrain_learners.rl_games_agent.translation import translate


def make_learner(context: RankContext, env: TaskEnv, agent: AgentConfig, settings: Mapping[str, Any]) -> TrainingLoop:
    """Build rl_games' PPO in the training loop.

    Args:
        context: This rank. With several ranks, the process group must be up.
        env: This rank's environments.
        agent: Networks, algorithm and rollout.
        settings: Content of --learner-config.
    """
    params = translate(agent, settings, env.num_envs)
    groups = {name: agent.obs_groups[name] for name in ("actor", "critic")}
    widths = {group: value.shape[-1] for group, value in env.observe().items()}
    sizes = {name: sum(widths[group] for group in groups[name]) for name in groups}
    config = params["config"]
    config |= {
        "name": "mjtrain",
        "env_name": "mjtrain",
        "num_actors": env.num_envs,
        "env_info": {
            "observation_space": _make_space(sizes["actor"]),
            "state_space": _make_space(sizes["critic"]),
            "action_space": _make_space(env.num_actions),
        },
        "vec_env": IVecEnv(),  # which is told of each update, and never asked to step
        "device": context.device,
        "reward_shaper": DefaultRewardsShaper(**config["reward_shaper"]),
        "features": {"observer": AlgoObserver()},
    }
    collectives = Collectives(context.device)
    job_agent = _make_agent(params, collectives, context.world_size)
    algorithm = RlGamesAlgorithm(job_agent, collectives, groups, widths)
    return TrainingLoop(context, env, algorithm, agent.num_steps_per_env, "rl_games")


def _make_agent(params: dict[str, Any], collectives: Collectives, world_size: int) -> JobAgent:
    """Build the agent, without what rl_games prints and the folders and files that it writes meanwhile."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(action="ignore", category=FutureWarning),  # of torch.jit, which is then replaced
    ):
        params["config"]["train_dir"] = folder
        agent = JobAgent(params, collectives, world_size)
        assert agent.writer is not None
        agent.writer.close()
    agent.writer = None
    if agent.has_central_value:
        agent.central_value_net.writter = None
    return agent


def _make_space(size: int) -> Box:
    return Box(-torch.inf, torch.inf, (size,))
