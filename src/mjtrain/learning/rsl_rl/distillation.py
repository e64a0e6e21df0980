"""RSL-RL's distillation, so that it is resumed bit for bit and any number of ranks compute the same."""

from pathlib import Path
from typing import Any

from rsl_rl import algorithms

from mjtrain.learning.collectives import Collectives
from mjtrain.learning.persistence import find_other_shape
from mjtrain.learning.rsl_rl.cnn_model import without_head
from mjtrain.runs.bundle import read_networks
from mjtrain.runs.checkpoint import taking_apart
from mjtrain.runtime.errors import RequestError


class Distillation(algorithms.Distillation):
    """Distillation whose student is saved as an actor, so that it is played and exported as any other policy.

    RSL-RL rewinds a recurrent teacher before each update and does not let it catch up, so it would continue with the
    memory of another moment. Here it keeps what it remembered.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.collectives = Collectives(self.device)

    def update(self) -> dict[str, float]:
        """Learn from a rollout; see RSL-RL."""
        remembered: Any = self.teacher.get_hidden_state()
        losses = super().update()
        self.teacher.reset(hidden_state=remembered)
        self.begin_from_memory()
        return losses

    def begin_from_memory(self) -> None:
        """Have the next update begin with what the student remembers now."""
        self.last_hidden_states = (self.student.get_hidden_state(), None)  # pyright: ignore[reportAttributeAccessIssue]

    def reduce_parameters(self) -> None:
        """Average the gradients over ranks as RSL-RL does."""
        with self.collectives.waiting():
            super().reduce_parameters()

    def load_teacher(self, path: Path) -> None:
        """Take the actor of a checkpoint or of a shared policy as the teacher."""
        with taking_apart(read_networks(path, "cpu"), path) as parts:
            weights = without_head(parts.get("actor_state_dict", {}))
        other = find_other_shape(self._raw_teacher.state_dict(), weights)
        if other is not None:
            raise RequestError(
                f"--agent.algorithm.teacher-run {path}: does not fit the teacher's network and groups here: {other}"
            )
        self._raw_teacher.load_state_dict(weights)
        self.teacher_loaded = True

    def save(self) -> dict[str, Any]:
        """Return all that a checkpoint needs; the student is the actor."""
        return {
            "actor_state_dict": self._raw_student.state_dict(),
            "teacher_state_dict": self._raw_teacher.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
        }

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, bool] | None, strict: bool) -> bool:
        """Load the parts that load_cfg names: actor, teacher, optimizer."""
        parts = load_cfg or {}
        if parts.get("actor"):
            self._raw_student.load_state_dict(loaded_dict["actor_state_dict"], strict=strict)
        if parts.get("teacher"):
            self._raw_teacher.load_state_dict(loaded_dict["teacher_state_dict"], strict=strict)
            self.teacher_loaded = True
        if parts.get("optimizer"):
            self.optimizer.load_state_dict(loaded_dict["optimizer_state_dict"])
        return False
