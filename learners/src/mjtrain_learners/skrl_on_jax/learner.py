"""skrl's agent, models and memory on JAX, built for the training loop."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from gymnasium.spaces import Box
from skrl import config
from skrl.agents.jax.ppo import PPO_CFG
from skrl.memories.jax import RandomMemory
from skrl.resources.preprocessors.jax import RunningStandardScaler
from skrl.resources.schedulers.jax import KLAdaptiveLR

from mjtrain.learning import AgentConfig, Collectives, RankContext, TaskEnv, TrainingLoop
from mjtrain_learners.skrl_on_jax.algorithm import SkrlJaxAlgorithm
from mjtrain_learners.skrl_on_jax.models import Actor, Critic
from mjtrain_learners.skrl_on_jax.normalization import JobScaler
from mjtrain_learners.skrl_on_jax.ppo import JobPpo
from mjtrain_learners.skrl_settings import translate


def make_learner(context: RankContext, env: TaskEnv, agent: AgentConfig, settings: Mapping[str, Any]) -> TrainingLoop:
    """Build skrl's PPO on JAX in the training loop.

    Args:
        context: This rank; `start.start_skrl` has told skrl of it.
        env: This rank's environments.
        agent: Networks, algorithm and rollout.
        settings: Content of --learner-config.
    """
    options = translate(agent, settings)
    del options["mixed_precision"]
    collectives = Collectives(context.device)
    seen = env.observe()
    groups = {name: agent.obs_groups[name] for name in ("actor", "critic")}
    sizes = {name: sum(seen[group].shape[1] for group in groups[name]) for name in groups}
    spaces = {
        "observation_space": _make_space(sizes["actor"]),
        "state_space": _make_space(sizes["critic"]),
        "action_space": _make_space(env.num_actions),
        "device": config.jax.device,
    }
    models = {
        "policy": Actor(config=agent.actor, options=options.pop("policy"), **spaces),
        "value": Critic(config=agent.critic, **spaces),
    }
    inputs = {
        "observations": np.zeros((1, sizes["actor"]), np.float32),
        "states": np.zeros((1, sizes["critic"]), np.float32),
    }
    for (role, model), key in zip(models.items(), jax.random.split(config.jax.key), strict=True):
        model.init_state_dict(inputs, role=role, key=key)
    for name, size in (("observation", sizes["actor"]), ("state", sizes["critic"]), ("value", 1)):
        if options[f"{name}_preprocessor"] is not None:
            options[f"{name}_preprocessor"] = JobScaler if context.is_distributed else RunningStandardScaler
            shared = {"collectives": collectives, "summed_on": context.device} if context.is_distributed else {}
            options[f"{name}_preprocessor_kwargs"] |= {"size": size, "device": spaces["device"], **shared}
    if options["learning_rate_scheduler"] is None:
        options["learning_rate_scheduler_kwargs"] = {}
    else:
        options["learning_rate_scheduler"] = KLAdaptiveLR
    ppo = JobPpo(
        context,
        collectives,
        models=models,
        memory=RandomMemory(memory_size=options["rollouts"], num_envs=env.num_envs, device=spaces["device"]),
        cfg=PPO_CFG(**options, experiment={"write_interval": 0, "checkpoint_interval": 0}),  # pyright: ignore
        **spaces,
    )
    algorithm = SkrlJaxAlgorithm(ppo, collectives, groups, {name: value.shape[1] for name, value in seen.items()})
    return TrainingLoop(context, env, algorithm, options["rollouts"], "skrl_jax")


def _make_space(size: int) -> Box:
    return Box(-np.inf, np.inf, (size,))
