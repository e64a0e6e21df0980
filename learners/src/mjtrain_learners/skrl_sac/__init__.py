"""skrl's SAC on PyTorch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mjtrain.config import AgentConfig, TrainConfig
from mjtrain.rank import RankContext
from mjtrain_learners.agent_check import check_agent, check_settings
from mjtrain_learners.skrl_sac.translation import OWN_SETTINGS, WITHOUT_EFFECT, check_own

if TYPE_CHECKING:
    import torch

    from mjtrain.env.base import TaskEnv
    from mjtrain.learner import Learner, Policy


class SkrlSac:
    """`learners.library.Library` for skrl's SAC on PyTorch."""

    modules = ("skrl",)
    install = "mjtrain-learners[skrl]"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse what skrl has no counterpart for."""
        check_agent(config.agent, "skrl's SAC")
        check_settings(config.learner.settings, OWN_SETTINGS, "skrl's SAC")
        check_own(config.agent, config.learner.settings, config.num_envs)
        return (f"--learner skrl_sac: does not use --agent.algorithm.{{{', '.join(WITHOUT_EFFECT)}}}, which are PPO's",)

    def make_learner(
        self, context: RankContext, env: "TaskEnv", agent: AgentConfig, settings: Mapping[str, Any]
    ) -> "Learner":
        """Build what learns."""
        from mjtrain_learners.skrl_on_torch.start import start_skrl

        start_skrl(context)
        from mjtrain_learners.skrl_sac.learner import make_learner  # imports skrl

        return make_learner(context, env, agent, settings)

    def make_policy(
        self,
        agent: AgentConfig,
        settings: Mapping[str, Any],  # noqa: ARG002
        observations: "Mapping[str, torch.Tensor]",
        num_actions: int,
    ) -> "Policy":
        """Build what was learned; skrl is not imported."""
        from mjtrain_learners.policy import MlpPolicy
        from mjtrain_learners.skrl_on_torch.weights import read_weights

        return MlpPolicy(agent, observations, num_actions, read_weights, output_activation="tanh")


LIBRARY = SkrlSac()
