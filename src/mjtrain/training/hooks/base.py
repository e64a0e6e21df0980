"""What hooks have in common."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain.config import TrainConfig
from mjtrain.env.base import TaskEnv
from mjtrain.learning.collectives import Collectives
from mjtrain.learning.learner import IterationResult
from mjtrain.learning.loop import TrainingLoop
from mjtrain.runs.history import read_last_row
from mjtrain.runtime.rank import RankContext
from mjtrain.training.metric_rules import StopCondition, parse_stop_condition
from mjtrain.training.reporting.report import RunReport


@dataclass(kw_only=True)
class HookContext:
    """A training on one rank, as its hooks see it."""

    rank_context: RankContext
    config: TrainConfig
    run_dir: Path
    """Where the run lives. Only the main rank writes there, except NaN dumps."""

    env: TaskEnv
    learner: TrainingLoop
    claim: str = ""
    """Session of the claim to the run directory; empty for none."""

    is_new: bool = True
    """Whether the run is not resumed."""

    last_iteration: int
    """Iteration with which the training ends, unless something ends it before."""

    report: RunReport | None
    """Takes metrics and warnings; None on all ranks except the main one."""

    ended_by: str | None = None
    """What has ended the training early as planned, in words; None for nothing."""

    is_paused: bool = False
    """Whether the training ends here, saved, to be started again with hosts that wait; the same on all ranks."""

    def read_restored(self) -> dict[str, Any]:
        """Return what metrics.jsonl has of the restored iteration, on the main rank; empty without a whole line."""
        last = read_last_row(self.run_dir) if self.rank_context.is_main else {}
        shown = ("mean_reward", "mean_episode_length", "env_steps_per_second")
        is_whole = all(isinstance(last.get(name, ""), int | float | None) for name in shown)
        return last if is_whole and last.get("iteration") == self.learner.iteration else {}

    def from_main(self, number: float | None) -> float | None:
        """Return on all ranks what the main rank gives, None for what is not a number; every rank must call it."""
        number = number if isinstance(number, int | float) else None  # anyone may have edited metrics.jsonl
        return Collectives(self.rank_context.device).gather_plain(number, self.rank_context)[0]

    def warn(self, line: str) -> None:
        """Show a warning, on the main rank."""
        if self.report is not None:
            self.report.warn(line)

    def is_save_due(self, result: IterationResult) -> bool:
        """Tell whether an iteration ends with a checkpoint: every save_interval iterations, the best and the last."""
        return result.is_last or result.is_best or result.iteration % self.config.agent.save_interval == 0

    def find_met(self, metrics: dict[str, Any]) -> StopCondition | None:
        """Return the first condition of --stop-when that an iteration meets."""
        conditions = map(parse_stop_condition, self.config.run.stop_when)
        return next((condition for condition in conditions if condition.is_met(metrics)), None)


class Hook:
    """Does something after each iteration of a training, or nothing. Use as a context manager."""

    def __init__(self, context: HookContext) -> None:
        self._context = context

    def after_iteration(self, result: IterationResult) -> None:
        """Called after each iteration; the hook decides whether it is due. What it raises ends the training."""

    def finish(self) -> None:
        """Called once when the training ends without an error, before the context is left."""

    def __enter__(self) -> "Hook":
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Release what the hook holds; also after an error."""
