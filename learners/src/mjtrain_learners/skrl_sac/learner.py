"""skrl's agent, models and memory, built for the training loop."""

from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Box
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.memories.torch import RandomMemory

from mjtrain.learning import AgentConfig, Collectives, RankContext, TaskEnv, TrainingLoop
from mjtrain_learners.skrl_on_torch.base import Inputs, fill_in_scalers
from mjtrain_learners.skrl_sac.algorithm import CRITICS, SacAlgorithm
from mjtrain_learners.skrl_sac.models import ActionCritic, BoundedActor
from mjtrain_learners.skrl_sac.translation import translate


def make_learner(context: RankContext, env: TaskEnv, agent: AgentConfig, settings: Mapping[str, Any]) -> TrainingLoop:
    """Build skrl's SAC in the training loop.

    Args:
        context: This rank; `start.start_skrl` has told skrl of it.
        env: This rank's environments.
        agent: Networks, algorithm and rollout.
        settings: Content of --learner-config.
    """
    options = translate(agent, settings, env.num_envs)
    collectives, inputs = Collectives(context.device), Inputs(env, agent)
    spaces = inputs.make_spaces(Box(-1.0, 1.0, (env.num_actions,)))
    device = context.device
    actor = BoundedActor(spaces, device, agent.actor, collectives, clip_actions=True, **options.pop("policy"))
    critics = {name: ActionCritic(spaces, device, agent.critic, collectives) for name in CRITICS}
    sizes = {"observation": inputs.sizes["actor"], "state": inputs.sizes["critic"]}
    fill_in_scalers(options, sizes, context, collectives)
    memory_size = options.pop("memory_size")
    sac = SAC(
        models={"policy": actor, **critics},
        memory=RandomMemory(memory_size=memory_size, num_envs=env.num_envs, device=device, replacement=True),
        cfg=SAC_CFG(**options, experiment={"write_interval": 0, "checkpoint_interval": 0}),  # pyright: ignore
        device=device,
        **spaces,
    )
    algorithm = SacAlgorithm(sac, context, collectives, inputs, agent.num_steps_per_env)
    return TrainingLoop(context, env, algorithm, agent.num_steps_per_env, "skrl_sac")
