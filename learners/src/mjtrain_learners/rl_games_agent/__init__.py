"""rl_games' PPO."""

from mjtrain.learning import RankContext, TrainConfig
from mjtrain_learners.mlp_library import MlpLibrary, check_agent, check_settings
from mjtrain_learners.rl_games_agent.translation import OWN_SETTINGS, check_request, find_notes


class RlGames(MlpLibrary):
    """`Library` for rl_games."""

    modules = ("rl_games",)
    install = "mjtrain-learners[rl-games]"
    module = "mjtrain_learners.rl_games_agent.algorithm"
    format = "rl_games"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:
        """Refuse what rl_games has no counterpart for; see `Library`."""
        notes = check_agent(config.agent, "rl_games")
        check_settings(config.learner.settings, OWN_SETTINGS, "rl_games")
        check_request(config, world_size, device)
        return (*notes, *find_notes(config.agent, config.learner.settings))

    def start(self, context: RankContext) -> None:  # noqa: ARG002
        """Import rl_games' agent without PyTorch's compiler.

        Importing rl_games compiles a network for its tests, which is not used here. Importing the compiler takes longer
        than everything else.
        """
        import torch

        compile_ = torch.compile
        torch.compile = lambda model: model  # pyright: ignore[reportAttributeAccessIssue]
        try:
            import rl_games.algos_torch.a2c_continuous  # noqa: F401  # pyright: ignore[reportUnusedImport]
        finally:
            torch.compile = compile_


LIBRARY = RlGames()
