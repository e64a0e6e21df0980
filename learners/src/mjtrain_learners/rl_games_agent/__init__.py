"""rl_games' PPO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mjtrain.config import AgentConfig, TrainConfig
from mjtrain.rank import RankContext
from mjtrain_learners.agent_check import check_agent, check_settings
from mjtrain_learners.rl_games_agent.request_check import check_request, find_notes
from mjtrain_learners.rl_games_agent.translation import OWN_SETTINGS

if TYPE_CHECKING:
    import torch

    from mjtrain.env.base import TaskEnv
    from mjtrain.learner import Learner, Policy


class RlGames:
    """`learners.library.Library` for rl_games."""

    modules = ("rl_games",)
    install = "mjtrain-learners[rl-games]"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse what rl_games has no counterpart for; see `Library`."""
        check_agent(config.agent, "rl_games")
        check_settings(config.learner.settings, OWN_SETTINGS, "rl_games")
        check_request(config, device)
        return tuple(find_notes(config.agent, config.learner.settings))

    def make_learner(
        self, context: RankContext, env: "TaskEnv", agent: AgentConfig, settings: Mapping[str, Any]
    ) -> "Learner":
        """Build what learns."""
        from mjtrain_learners.rl_games_agent.start import import_rl_games

        import_rl_games()
        from mjtrain_learners.rl_games_agent.learner import make_learner

        return make_learner(context, env, agent, settings)

    def make_policy(
        self,
        agent: AgentConfig,
        settings: Mapping[str, Any],  # noqa: ARG002
        observations: "Mapping[str, torch.Tensor]",
        num_actions: int,
    ) -> "Policy":
        """Build what was learned; rl_games is not imported."""
        from mjtrain_learners.policy import MlpPolicy
        from mjtrain_learners.rl_games_agent.weights import read_weights

        return MlpPolicy(agent, observations, num_actions, read_weights)


LIBRARY = RlGames()
