"""skrl's PPO on PyTorch."""

import logging

from mjtrain.learning import RankContext, RequestError, TrainConfig
from mjtrain_learners.mlp_library import MlpLibrary, check_agent, check_settings, environment
from mjtrain_learners.skrl_settings import OWN_SETTINGS, check_mini_batches, check_own

_HIDDEN = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "JAX_WORLD_SIZE")


class SkrlLibrary(MlpLibrary):
    """What skrl's agents on PyTorch share as a `Library`."""

    modules = ("skrl",)
    install = "mjtrain-learners[skrl]"
    format = "skrl"

    def start(self, context: RankContext) -> None:
        """Import skrl, and tell it which rank this is.

        With these variables skrl would start a process group over NCCL when it is imported, and one of JAX where its
        own launcher has started the ranks. They have theirs already, over any backend.
        """
        with environment(dict.fromkeys(_HIDDEN)):
            import skrl
        skrl.logger.setLevel(logging.WARNING)
        torch: object = skrl.config.torch
        vars(torch).update(
            _rank=context.rank,
            _local_rank=context.local_rank,
            _world_size=context.world_size,
            _is_distributed=context.is_distributed,
            _device=context.device,
        )


class SkrlOnTorch(SkrlLibrary):
    """`Library` for skrl's PPO on PyTorch."""

    module = "mjtrain_learners.skrl_on_torch.ppo"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse what skrl has no counterpart for."""
        notes = check_agent(config.agent, "skrl")
        check_settings(config.learner.settings, OWN_SETTINGS, "skrl")
        check_own(config.agent, config.learner.settings, config.num_envs, world_size)
        check_mini_batches(config.agent, config.learner.settings, config.num_envs, world_size)
        if config.num_envs * config.agent.num_steps_per_env * world_size < 2:
            raise RequestError(
                f"--agent.num-steps-per-env {config.agent.num_steps_per_env}: a rollout of 1 env has one sample, whose "
                "advantage cannot be normalised; give more steps or environments"
            )
        return notes


LIBRARY = SkrlOnTorch()
