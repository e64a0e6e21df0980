"""RSL-RL in the training loop."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mjtrain.config import AgentConfig
from mjtrain.env.base import TaskEnv
from mjtrain.learning.loop import TrainingLoop
from mjtrain.rank import RankContext
from mjtrain.rl.algorithm import RslRlAlgorithm
from mjtrain.rl.construct import make_algorithm
from mjtrain.rl.vec_env import VecEnvAdapter


class Runner(TrainingLoop):
    """`learner.Learner` with RSL-RL's networks, storage and algorithm; the loop is that of all learning libraries."""

    def __init__(
        self,
        context: RankContext,
        env: TaskEnv,
        config: AgentConfig,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Build networks and algorithm.

        Args:
            context: This rank. With several ranks, the process group must be up.
            env: This rank's environments.
            config: Networks, algorithm and rollout.
            settings: RSL-RL's own, put over those that follow from the config.
        """
        self.env = VecEnvAdapter(env)
        """The environments as RSL-RL sees them."""
        self.alg = make_algorithm(context, self.env, config, settings)
        """RSL-RL's algorithm."""
        algorithm = RslRlAlgorithm(context, self.alg)
        self.networks = algorithm.networks
        """Its networks by name, not compiled: actor, and critic or teacher."""
        super().__init__(context, env, algorithm, config.num_steps_per_env, "rsl_rl")
