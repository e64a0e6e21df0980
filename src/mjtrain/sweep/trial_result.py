"""What is known about a trial; plain values."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["running", "paused", "complete", "pruned", "failed"]


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One trial of a sweep."""

    number: int
    """From 0, in the order in which they were begun."""

    state: State
    """running: not ended; if no process trains it, the next start of the sweep goes on with it. paused: not ended; it
    goes on if it turns out to be among the best."""

    params: dict[str, Any]
    """Value of each parameter, by its name."""

    value: float | None = None
    """The metric: at the end of a trial that is complete, averaged over its seeds; the last one of a trial that was
    pruned. None if there is none."""

    seed_values: tuple[float, ...] = ()
    """The metric at the end of each seed's run that came to its end."""

    env_steps: int = 0
    """Env steps of all its runs, whole jobs."""

    train_s: float = 0.0
    """Seconds of their iterations, without starts and saves."""

    iterations: int = 0
    """Iterations of its last run."""

    cause: str = ""
    """Why it failed; empty otherwise."""

    runs: tuple[str, ...] = ()
    """Its run directories, below the sweep's folder."""

    curve: dict[int, float] = field(default_factory=dict)
    """The metric by iteration, of its first seed."""

    def to_plain(self) -> dict[str, Any]:
        """Return all but the curve for JSON."""
        plain = asdict(self)
        del plain["curve"]
        return plain


def find_best(trials: Iterable[TrialResult], *, maximize: bool) -> TrialResult | None:
    """Return the complete trial with the best value; None if no trial is complete."""
    complete = [trial for trial in trials if trial.state == "complete" and trial.value is not None]
    return max(complete, key=lambda trial: (trial.value or 0.0) * (1 if maximize else -1), default=None)


def count_states(trials: Sequence[TrialResult]) -> dict[State, int]:
    """Count the trials by their state."""
    states: tuple[State, ...] = ("complete", "pruned", "failed", "paused", "running")
    return {state: sum(trial.state == state for trial in trials) for state in states}
