"""What the libraries here have in common: they learn with plain networks, and are not needed to play them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mjtrain.learning import AgentConfig, RankContext

if TYPE_CHECKING:
    import torch

    from mjtrain.learning import Learner, Policy, TaskEnv
    from mjtrain_learners.policy import Weights

    Build = Callable[[RankContext, TaskEnv, AgentConfig, Mapping[str, Any]], Learner]
    ReadWeights = Callable[[Mapping[str, Any]], Weights]


class MlpLibrary(ABC):
    """The part of a `learners.library.Library` that builds what learns and what was learned."""

    output_activation = "identity"
    """What the last layer's outputs go through, by the names of configs."""

    @abstractmethod
    def start(self, context: RankContext) -> "Build":
        """Import the library, which is told which rank this is, and return what builds the learner."""

    @abstractmethod
    def weights_reader(self) -> "ReadWeights":
        """Return what finds the policy's weights in a checkpoint; the library is not imported."""

    def make_learner(
        self, context: RankContext, env: "TaskEnv", agent: AgentConfig, settings: Mapping[str, Any]
    ) -> "Learner":
        """Build what learns; see `Library`."""
        return self.start(context)(context, env, agent, settings)

    def make_policy(
        self,
        agent: AgentConfig,
        settings: Mapping[str, Any],  # noqa: ARG002
        observations: "Mapping[str, torch.Tensor]",
        num_actions: int,
    ) -> "Policy":
        """Build what was learned, with layers of torch; see `Library`."""
        from mjtrain_learners.policy import MlpPolicy

        return MlpPolicy(agent, observations, num_actions, self.weights_reader(), self.output_activation)
