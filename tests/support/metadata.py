"""The metadata of a task's policy, without a training."""

import json
from dataclasses import replace
from typing import Any

from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.evaluation.export.metadata import describe_policy
from mjtrain.learning.rsl_rl.policy import ActorPolicy
from mjtrain.runs.trained_run import TrainedRun
from support.envs import make_env


def describe_task(task: str, num_envs: int = 1, history: int = 1) -> tuple[Env, dict[str, Any]]:
    """Return worlds of a task without noise, and the metadata that its policy would have."""
    config = load_task(task)
    calm = to_eval_config(config.env)
    (group,) = config.agent.obs_groups["actor"]
    terms = {name: term.replace(history=history) for name, term in calm.observations[group].items()}
    actions = {name: replace(term, delay=(0, 0)) for name, term in calm.actions.items()}
    calm = replace(calm, actions=actions, observations={**calm.observations, group: terms})
    env = make_env(calm, num_envs=num_envs, seed=3)
    policy = ActorPolicy(config.agent, env.observe(), env.num_actions)
    metadata = describe_policy(TrainedRun(task=task, env=calm, agent=config.agent), env, policy)
    return env, json.loads(json.dumps(metadata))
