"""Which library learns: the one place that chooses the implementations of `learner`'s protocols."""

from typing import TYPE_CHECKING

from mjtrain.config import AgentConfig
from mjtrain.rank import RankContext

if TYPE_CHECKING:
    import torch

    from mjtrain.env.env import Env
    from mjtrain.learner import Learner, Policy


def make_learner(context: RankContext, env: "Env", config: AgentConfig) -> "Learner":
    """Build what learns.

    Args:
        context: This rank. With several ranks, the process group must be up.
        env: This rank's environments.
        config: Networks, algorithm and rollout.
    """
    from mjtrain.rl.runner import Runner  # seconds of imports

    return Runner(context, env, config)


def make_policy(config: AgentConfig, observations: "dict[str, torch.Tensor]", num_actions: int) -> "Policy":
    """Build what was learned, with random weights until `load`.

    Args:
        config: Networks, as they were trained.
        observations: What the environment observes, by group; shape (num_envs, size) each.
        num_actions: Size of an action.

    Raises:
        RequestError: The network reads an observation group that the environment does not have.
    """
    from mjtrain.rl.policy import ActorPolicy  # seconds of imports

    return ActorPolicy(config, observations, num_actions)
