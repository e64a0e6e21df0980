"""An agent for any environment of Gymnasium whose actions are numbers."""

from mjtrain.config.agent import AgentConfig, PpoConfig
from mjtrain.config.foreign import GymnasiumConfig
from mjtrain.config.networks import DistributionConfig, ModelConfig
from mjtrain.config.train import TaskConfig


def gymnasium_task(environment: str) -> TaskConfig:
    """Return the task `gymnasium:ID`."""
    agent = AgentConfig(
        num_steps_per_env=64,
        actor=ModelConfig(hidden_dims=(64, 64), activation="tanh", distribution_cfg=DistributionConfig(init_std=1.0)),
        critic=ModelConfig(hidden_dims=(64, 64), activation="tanh"),
        algorithm=PpoConfig(
            learning_rate=3e-4,
            num_learning_epochs=8,
            num_mini_batches=8,
            entropy_coef=0.0,
            use_clipped_value_loss=False,  # clip_param would be a bound in the unit of the returns, which is not known
        ),
        obs_groups={"actor": ("observation",), "critic": ("observation",)},
    )
    return TaskConfig(env=GymnasiumConfig(id=environment), agent=agent, num_envs=32, max_iterations=500)
