"""rl_games' PPO."""

from typing import TYPE_CHECKING

from mjtrain.learning import RankContext, TrainConfig
from mjtrain_learners.agent_check import check_agent, check_settings
from mjtrain_learners.mlp_library import MlpLibrary
from mjtrain_learners.rl_games_agent.request_check import check_request, find_notes
from mjtrain_learners.rl_games_agent.translation import OWN_SETTINGS

if TYPE_CHECKING:
    from mjtrain_learners.mlp_library import Build, ReadWeights


class RlGames(MlpLibrary):
    """`learners.library.Library` for rl_games."""

    modules = ("rl_games",)
    install = "mjtrain-learners[rl-games]"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse what rl_games has no counterpart for; see `Library`."""
        notes = check_agent(config.agent, "rl_games")
        check_settings(config.learner.settings, OWN_SETTINGS, "rl_games")
        check_request(config, device)
        return (*notes, *find_notes(config.agent, config.learner.settings))

    def start(self, context: RankContext) -> "Build":  # noqa: ARG002
        """Import rl_games, and return what builds the learner."""
        from mjtrain_learners.rl_games_agent.start import import_rl_games

        import_rl_games()
        from mjtrain_learners.rl_games_agent.learner import make_learner

        return make_learner

    def weights_reader(self) -> "ReadWeights":
        """Return what finds the policy's weights in a checkpoint."""
        from mjtrain_learners.rl_games_agent.weights import read_weights

        return read_weights


LIBRARY = RlGames()
