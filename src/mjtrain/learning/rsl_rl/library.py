"""RSL-RL, registered as any other learning library."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mjtrain.config import AgentConfig, ImitationConfig, TrainConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext

if TYPE_CHECKING:
    import torch

    from mjtrain.env.base import TaskEnv
    from mjtrain.learning.learner import Learner, Policy


class RslRl:
    """`Library` for RSL-RL, whose own names `AgentConfig` has: nothing needs to be translated or refused."""

    modules = ("rsl_rl", "tensordict")
    install = "mjtrain"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:  # noqa: ARG002
        """Check that networks have hidden layers, and that --learner-config is for parts that there are."""
        for name, model in (("actor", config.agent.actor), ("critic", config.agent.critic)):
            if not model.hidden_dims:
                raise RequestError(f"--agent.{name}.hidden-dims (none): RSL-RL's networks have at least one; give 64")
        is_taught = isinstance(config.agent.algorithm, ImitationConfig)
        parts = ("algorithm", "student", "teacher") if is_taught else ("algorithm", "actor", "critic")
        for name, value in config.learner.settings.items():
            if name not in parts or not isinstance(value, Mapping):
                raise RequestError(f"--learner-config {name}: RSL-RL takes settings below {', '.join(parts)}")
        if config.learner.settings.get("algorithm", {}).get("rnd_cfg"):
            if is_taught:
                raise RequestError("--learner-config algorithm.rnd_cfg: a student has no rewards to add to")
            if "rnd_state" not in config.agent.obs_groups:
                raise RequestError(
                    "--learner-config algorithm.rnd_cfg: nothing says which observation groups it looks at; give the "
                    'task AgentConfig(obs_groups={..., "rnd_state": ("actor",)})'
                )
        return ()

    def make_learner(
        self, context: RankContext, env: "TaskEnv", agent: AgentConfig, settings: Mapping[str, Any]
    ) -> "Learner":
        """Build what learns."""
        from mjtrain.learning.rsl_rl.construct import Runner  # seconds of imports

        return Runner(context, env, agent, settings)

    def make_policy(
        self,
        agent: AgentConfig,
        settings: Mapping[str, Any],
        observations: "Mapping[str, torch.Tensor]",
        num_actions: int,
    ) -> "Policy":
        """Build what was learned."""
        from mjtrain.learning.rsl_rl.policy import ActorPolicy  # seconds of imports

        return ActorPolicy(agent, dict(observations), num_actions, settings)


LIBRARY = RslRl()
