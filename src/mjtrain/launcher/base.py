"""How this process agrees with the others that something else has started, and how it then runs its part of the job."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

from mjtrain.launcher.failure import Failure
from mjtrain.launcher.ipc.signals import NotSavedError
from mjtrain.launcher.planning.membership import Change
from mjtrain.launcher.planning.plan import LaunchPlan
from mjtrain.runtime.standard_streams import printable

Decision = dict[str, Any]
"""What a job has agreed on: plain values."""

Decide = Callable[[Decision | None], Decision]
"""Takes what the job agreed on before something else restarted it (None the first time), and returns its choice."""

OnRestart = Callable[[Failure | None, int, float, Change], None]
"""Takes the failure, or None where the job has paused for hosts that wait; the number of restarts after failures so
far; the seconds until the next start; and what is different from then."""


def find_other_line(theirs: str, mine: str, me: str) -> str | None:
    """Say how the request of another node or rank differs from that of `me`, as in node 0; None if it does not."""
    if theirs == mine:
        return None
    pairs = zip_longest(theirs.splitlines(), mine.splitlines(), fillvalue="nothing")
    theirs, mine = next((pair for pair in pairs if pair[0] != pair[1]), ("something", "something else"))
    asked = f"asks for {theirs.strip().rstrip(',')} and {me} for {mine.strip().rstrip(',')}"
    return printable(f"{asked}: start all of them with the same command, variables and files")


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """A function to run on every rank, and how."""

    plan: LaunchPlan
    fn: Callable[..., Any]
    """The function; cloudpickle must be able to carry it to ranks in other processes."""

    args: tuple[Any, ...] = ()
    """Its arguments after the context."""

    crash_dir: Path | None = None
    """Folder for the traceback of a failed rank; None writes none."""

    preload: tuple[str, ...] = ()
    """Modules that the function imports; the spawned ranks of a host share one import of them."""

    on_restart: OnRestart | None = None
    on_not_saved: Callable[[NotSavedError], None] | None = None
    """Called before this process ends because its function has not finished within the grace time of a stop. Where
    ranks have their own processes, the error is raised instead."""

    saved_progress: Callable[[], int] = lambda: 0
    """How much of the work a restart would not repeat, in any unit. A job that got further restarts without delay."""


class Rendezvous(Protocol):
    """This process's place among those that something else has started, or alone."""

    @property
    def leads(self) -> bool:
        """Whether this process decides for the job."""
        ...

    def agree(self, decide: Decide, /) -> Decision:
        """Return what the leader chooses. Every process of the job must call this.

        Raises:
            RequestError: The leader found that the request is wrong.
            ConnectionError: The leader could not decide, or is gone.
            Exception: On the leader, what `decide` raised.
        """
        ...

    def run(self, request: LaunchRequest) -> Any:
        """Run this process's part of the job; return the result of rank 0, or of this rank if it is one of many."""
        ...

    def close(self) -> None:
        """Leave the others; further calls do nothing."""
