"""skrl's SAC on PyTorch."""

from mjtrain.learning import TrainConfig
from mjtrain_learners.mlp_library import check_agent, check_settings
from mjtrain_learners.skrl_on_torch import SkrlLibrary
from mjtrain_learners.skrl_sac.translation import OWN_SETTINGS, WITHOUT_EFFECT, check_own


class SkrlSac(SkrlLibrary):
    """`Library` for skrl's SAC on PyTorch."""

    module = "mjtrain_learners.skrl_sac.sac"
    output_activation = "tanh"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse what skrl has no counterpart for."""
        notes = check_agent(config.agent, "skrl's SAC")
        check_settings(config.learner.settings, OWN_SETTINGS, "skrl's SAC")
        check_own(config.agent, config.learner.settings, config.num_envs)
        without = f"--learner skrl_sac: does not use --agent.algorithm.{{{', '.join(WITHOUT_EFFECT)}}}, which are PPO's"
        return (*notes, without)


LIBRARY = SkrlSac()
