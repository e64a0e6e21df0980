"""What a package registers to bring a learning library."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mjtrain.config import AgentConfig, TrainConfig
from mjtrain.runtime.rank import RankContext

if TYPE_CHECKING:
    import torch

    from mjtrain.env.base import TaskEnv
    from mjtrain.learning.learner import Learner, Policy

GROUP = "mjtrain.learners"
"""Entry-point group in which a package registers learning libraries: name -> module:object."""


class Library(Protocol):
    """A learning library that is registered in `GROUP`.

    Its module is imported by every command that trains or plays with it, so it imports the library itself, and torch,
    in its methods only.
    """

    modules: Sequence[str]
    """Modules that must be there, by the names that `import` takes."""

    install: str
    """What installs them, such as "mjtrain-learners[skrl]"; follows `pip install`."""

    def check(self, config: TrainConfig, world_size: int, device: str) -> Sequence[str]:
        """Check, without importing the library, that it can train what is asked for.

        Args:
            config: The training, with the environments of one rank. `config.learner.settings` are the library's own.
            world_size: Ranks of the job.
            device: Torch device of the first rank.

        Returns:
            A line for each setting of the agent that has no counterpart in the library and does no harm.

        Raises:
            RequestError: A setting has no counterpart; the message names the flag.
        """
        ...

    def make_learner(
        self, context: RankContext, env: "TaskEnv", agent: AgentConfig, settings: Mapping[str, Any]
    ) -> "Learner":
        """Build what learns; see `registry.make_learner`."""
        ...

    def make_policy(
        self,
        agent: AgentConfig,
        settings: Mapping[str, Any],
        observations: "Mapping[str, torch.Tensor]",
        num_actions: int,
    ) -> "Policy":
        """Build what was learned; see `registry.make_policy`."""
        ...
