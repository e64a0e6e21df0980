"""skrl's agent, models and memory, built for the training loop."""

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.spaces import Box
from skrl.agents.torch.ppo import PPO_CFG
from skrl.memories.torch import RandomMemory
from skrl.resources.preprocessors.torch import RunningStandardScaler

from mjtrain.config import AgentConfig
from mjtrain.env.base import TaskEnv
from mjtrain.learning.collectives import Collectives
from mjtrain.learning.loop import TrainingLoop
from mjtrain.rank import RankContext
from mjtrain_learners.skrl_on_torch.algorithm import SkrlAlgorithm
from mjtrain_learners.skrl_on_torch.models import Actor, Critic
from mjtrain_learners.skrl_on_torch.normalization import JobScaler
from mjtrain_learners.skrl_on_torch.ppo import JobPpo, NotedKlAdaptiveLr
from mjtrain_learners.skrl_settings import translate


def make_learner(context: RankContext, env: TaskEnv, agent: AgentConfig, settings: Mapping[str, Any]) -> TrainingLoop:
    """Build skrl's PPO in the training loop.

    Args:
        context: This rank; `start.start_skrl` has told skrl of it.
        env: This rank's environments.
        agent: Networks, algorithm and rollout.
        settings: Content of --learner-config.
    """
    options = translate(agent, settings)
    collectives = Collectives(context.device)
    seen = env.observe()
    groups = {name: agent.obs_groups[name] for name in ("actor", "critic")}
    sizes = {name: sum(seen[group].shape[1] for group in groups[name]) for name in groups}
    spaces = {
        "observation_space": _make_space(sizes["actor"]),
        "state_space": _make_space(sizes["critic"]),
        "action_space": _make_space(env.num_actions),
    }
    device = context.device
    models = {
        "policy": Actor(spaces, device, agent.actor, collectives, **options.pop("policy")),
        "value": Critic(spaces, device, agent.critic, collectives),
    }
    for name, size in (("observation", sizes["actor"]), ("state", sizes["critic"]), ("value", 1)):
        if options[f"{name}_preprocessor"] is not None:
            options[f"{name}_preprocessor"] = JobScaler if context.is_distributed else RunningStandardScaler
            shared = {"collectives": collectives} if context.is_distributed else {}
            options[f"{name}_preprocessor_kwargs"] |= {"size": size, "device": device, **shared}
    if options["learning_rate_scheduler"] is None:
        options["learning_rate_scheduler_kwargs"] = {}
    else:
        options["learning_rate_scheduler"] = NotedKlAdaptiveLr
    ppo = JobPpo(
        collectives,
        models=models,
        memory=RandomMemory(memory_size=options["rollouts"], num_envs=env.num_envs, device=device, replacement=False),
        cfg=PPO_CFG(**options, experiment={"write_interval": 0, "checkpoint_interval": 0}),  # pyright: ignore
        device=device,
        **spaces,
    )
    algorithm = SkrlAlgorithm(ppo, collectives, groups, {name: value.shape[1] for name, value in seen.items()})
    return TrainingLoop(context, env, algorithm, options["rollouts"], "skrl")


def _make_space(size: int) -> Box:
    return Box(-torch.inf, torch.inf, (size,))
