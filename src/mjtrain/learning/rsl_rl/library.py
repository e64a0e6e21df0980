"""RSL-RL, registered as any other learning library."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mjtrain.config import AgentConfig, ImitationConfig, TrainConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext

if TYPE_CHECKING:
    import torch

    from mjtrain.env.base import TaskEnv
    from mjtrain.learning.learner import Policy
    from mjtrain.learning.loop import TrainingLoop


class RslRl:
    """`Library` for RSL-RL, whose own names `AgentConfig` has: nothing needs to be translated or refused."""

    modules = ("rsl_rl", "tensordict")
    install = "mjtrain"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:  # noqa: ARG002
        """Check that networks have hidden layers, and that --learner-config is for parts that there are."""
        for name, model in (("actor", config.agent.actor), ("critic", config.agent.critic)):
            if not model.hidden_dims:
                raise RequestError(f"--agent.{name}.hidden-dims (none): RSL-RL's networks have at least one; give 64")
            is_mixed = getattr(config.agent.algorithm, "use_mixed_precision", False)
            is_lstm = model.class_name == "RNNModel" and model.rnn_type == "lstm"
            if is_mixed and is_lstm and device == "cpu" and not _has_lstm_in_bfloat16():
                raise RequestError(
                    "--agent.algorithm.use-mixed-precision: PyTorch has no LSTM in bfloat16 for this CPU; leave it "
                    f"out, or give --agent.{name}.rnn-type gru"
                )
        is_taught = isinstance(config.agent.algorithm, ImitationConfig)
        parts = ("algorithm", "student", "teacher") if is_taught else ("algorithm", "actor", "critic")
        for name, value in config.learner.settings.items():
            if name not in parts or not isinstance(value, Mapping):
                raise RequestError(f"--learner-config {name}: RSL-RL takes settings below {', '.join(parts)}")
        own, samples = config.learner.settings.get("algorithm", {}), config.num_envs * config.agent.num_steps_per_env
        for name, most in (("num_learning_epochs", None), ("num_mini_batches", samples)):
            number = own.get(name, 1)
            if not isinstance(number, int) or number < 1 or number > (most or number):
                limits = "1 or more" if most is None else f"1 to {most}, the samples of a rollout"
                raise RequestError(f"--learner-config algorithm.{name} {number}: give {limits}")
        if own.get("rnd_cfg"):
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
    ) -> "TrainingLoop":
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


def _has_lstm_in_bfloat16() -> bool:
    """Whether an LSTM computes in bfloat16 on this CPU; oneDNN lacks it where AVX-512 is missing, and has no query."""
    import torch

    try:
        with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.bfloat16):  # pyright: ignore[reportPrivateImportUsage]
            torch.nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
    except RuntimeError:
        return False
    return True
