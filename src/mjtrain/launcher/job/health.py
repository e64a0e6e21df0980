"""What the launcher knows about each rank, and which ranks hang."""

from dataclasses import dataclass
from typing import Any

from mjtrain.launcher.ipc.messages import Sender


@dataclass(kw_only=True)
class RankState:
    """A rank, as seen from the launcher. Times are monotonic, in seconds."""

    rank: int
    pid: int
    host: str
    sender: Sender
    """Sends messages to it."""
    heard_s: float
    """When its last message arrived."""
    progressed_s: float
    """When it last made progress."""
    progress: int = 0
    phase: str = "start"
    waits: bool = False
    """Whether it waits for other ranks."""
    overdue: str = ""
    """Why it hangs by the limit that it has learned of its phase; empty if it does not."""
    done: bool = False
    """Whether its function has returned, or was interrupted as asked."""
    interrupted: bool = False
    """Whether its function was interrupted as asked."""
    report: dict[str, Any] | None = None
    """Its report of its own failure: the fields of the message `failed`."""
    pickled_error: bytes = b""
    lost_s: float | None = None
    """When it closed its connection, or its process ended, without a report."""
    exit_code: int | None = None
    """How its process ended: its status, or the negative number of the signal that killed it; None while not known."""

    def take_beat(self, message: dict[str, Any], now_s: float) -> None:
        """Take in a heartbeat."""
        if message["progress"] != self.progress:
            self.progress, self.progressed_s = message["progress"], now_s
        self.phase, self.waits, self.overdue = message["phase"], message["waits"], message["overdue"]


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Ranks that hang."""

    culprits: list[RankState]
    reason: str
    all_wait: bool = False
    """Whether all ranks wait for others, so that none of them is known to be the cause."""


_BEAT_MARGIN_S = 2.0
"""How much less than its time without progress a stopped rank may be silent: it sends a heartbeat once a second."""

OTHER_HOST_S = 10.0
"""Where all ranks of a host wait, the one to blame is on another host, which gets this much longer to report it."""


def find_hang(states: list[RankState], timeout_s: float, now_s: float, *, alone: bool = True) -> Hang | None:
    """Look for ranks that hang.

    A rank hangs when its process sends no heartbeat (it is stopped, or native code keeps Python's lock), or when it
    makes no progress, for the time-out or for as long as it has learned of its phase itself. A rank that waits for
    others is not to blame unless all of them do.

    Args:
        timeout_s: Time without a message or progress after which a rank hangs, in seconds.
        alone: Whether these are all ranks of the job, and none is on another host.
    """
    running = [state for state in states if not state.done]
    unresponsive = [state for state in running if now_s - state.heard_s > timeout_s]
    if unresponsive:
        return _make_stopped(unresponsive, timeout_s)
    stuck = [state for state in running if now_s - state.progressed_s > timeout_s]
    to_blame = [state for state in stuck if not state.waits]
    if silent := [state for state in to_blame if now_s - state.heard_s > timeout_s - _BEAT_MARGIN_S]:
        return _make_stopped(silent, timeout_s)
    if to_blame:
        return Hang(culprits=to_blame, reason=f"no progress for {timeout_s:g} s (--heartbeat-timeout-s)")
    overdue = [state for state in running if state.overdue]
    if overdue:
        return Hang(culprits=overdue, reason=overdue[0].overdue)
    patience_s = timeout_s if alone else timeout_s + OTHER_HOST_S
    if stuck and all(now_s - state.progressed_s > patience_s for state in running):
        return Hang(
            culprits=stuck,
            reason=f"no progress for {timeout_s:g} s (--heartbeat-timeout-s): all ranks wait for others",
            all_wait=True,
        )
    return None


def _make_stopped(states: list[RankState], timeout_s: float) -> Hang:
    reason = f"no heartbeat for {timeout_s:g} s: the process is stopped, or stuck in native code"
    return Hang(culprits=states, reason=reason)
