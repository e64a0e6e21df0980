"""skrl's agent, models and memory, built for the training loop."""

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.spaces import Box
from skrl.agents.torch.ppo import PPO_CFG
from skrl.memories.torch import RandomMemory

from mjtrain.learning import AgentConfig, Collectives, RankContext, TaskEnv, TrainingLoop
from mjtrain_learners.skrl_on_torch.algorithm import SkrlAlgorithm
from mjtrain_learners.skrl_on_torch.base import Inputs, fill_in_scalers
from mjtrain_learners.skrl_on_torch.models import Actor, Critic
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
    collectives, inputs = Collectives(context.device), Inputs(env, agent)
    spaces = inputs.make_spaces(Box(-torch.inf, torch.inf, (env.num_actions,)))
    device = context.device
    models = {
        "policy": Actor(spaces, device, agent.actor, collectives, **options.pop("policy")),
        "value": Critic(spaces, device, agent.critic, collectives),
    }
    sizes = {"observation": inputs.sizes["actor"], "state": inputs.sizes["critic"], "value": 1}
    fill_in_scalers(options, sizes, context, collectives)
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
    return TrainingLoop(context, env, SkrlAlgorithm(ppo, collectives, inputs), options["rollouts"], "skrl")
