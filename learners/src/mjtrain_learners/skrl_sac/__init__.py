"""skrl's SAC on PyTorch."""

from typing import TYPE_CHECKING

from mjtrain.learning import RankContext, TrainConfig
from mjtrain_learners.agent_check import check_agent, check_settings
from mjtrain_learners.mlp_library import MlpLibrary
from mjtrain_learners.skrl_sac.translation import OWN_SETTINGS, WITHOUT_EFFECT, check_own

if TYPE_CHECKING:
    from mjtrain_learners.mlp_library import Build, ReadWeights


class SkrlSac(MlpLibrary):
    """`learners.library.Library` for skrl's SAC on PyTorch."""

    modules = ("skrl",)
    install = "mjtrain-learners[skrl]"
    output_activation = "tanh"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse what skrl has no counterpart for."""
        notes = check_agent(config.agent, "skrl's SAC")
        check_settings(config.learner.settings, OWN_SETTINGS, "skrl's SAC")
        check_own(config.agent, config.learner.settings, config.num_envs)
        without = f"--learner skrl_sac: does not use --agent.algorithm.{{{', '.join(WITHOUT_EFFECT)}}}, which are PPO's"
        return (*notes, without)

    def start(self, context: RankContext) -> "Build":
        """Import skrl, and return what builds the learner."""
        from mjtrain_learners.skrl_on_torch.start import start_skrl

        start_skrl(context)
        from mjtrain_learners.skrl_sac.learner import make_learner

        return make_learner

    def weights_reader(self) -> "ReadWeights":
        """Return what finds the policy's weights in a checkpoint."""
        from mjtrain_learners.skrl_on_torch.weights import read_weights

        return read_weights


LIBRARY = SkrlSac()
