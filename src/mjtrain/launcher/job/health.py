"""What the launcher knows about each rank, and who has fallen silent."""

from dataclasses import dataclass, field
from typing import Any

from mjtrain.launcher.ipc.messages import Sender


@dataclass(kw_only=True)
class RankState:
    """A rank, as seen from the launcher. Times are monotonic, in seconds."""

    rank: int
    pid: int
    host: str
    speaker: Sender
    heard_s: float
    """When it last said anything."""
    progressed_s: float
    """When it last got anywhere."""
    progress: int = 0
    phase: str = "start"
    waits: bool = False
    """Whether it waits for other ranks."""
    done: bool = False
    """Whether its function has returned, or was interrupted as asked."""
    report: dict[str, Any] | None = None
    """What it said about its failure."""
    pickled_error: bytes = b""
    lost_s: float | None = None
    """When its process was found to have ended without a word."""
    exit_code: int | None = None
    """How its process ended: its status, or the negative number of the signal that killed it."""

    def take_beat(self, message: dict[str, Any], now_s: float) -> None:
        """Take in a sign of life."""
        if message["progress"] != self.progress:
            self.progress, self.progressed_s = message["progress"], now_s
        self.phase, self.waits = message["phase"], message["waits"]


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Ranks from which nothing comes any more."""

    culprits: list[RankState] = field(default_factory=list)
    reason: str = ""


ELSEWHERE_S = 10.0
"""Where all ranks of a host wait, the one to blame is on another, and its host gets so much longer to say so."""


def find_silence(members: list[RankState], timeout_s: float, now_s: float, *, alone: bool = True) -> Silence | None:
    """Look for ranks that hang.

    A rank hangs when its process gives no sign of life (it is stopped, or native code keeps the interpreter), or when
    it makes no progress; a rank that waits for others is not to blame unless all of them do.

    Args:
        members: All ranks that have begun.
        timeout_s: Silence from which on a rank hangs, in seconds.
        now_s: The time, monotonic, in seconds.
        alone: Whether these are all ranks of the job, and none is on another host.
    """
    running = [member for member in members if not member.done]
    dead = [member for member in running if now_s - member.heard_s > timeout_s]
    if dead:
        return Silence(
            culprits=dead,
            reason=f"no sign of life for {timeout_s:g} s: the process is stopped, or stuck in native code",
        )
    stuck = [member for member in running if now_s - member.progressed_s > timeout_s]
    to_blame = [member for member in stuck if not member.waits]
    if to_blame:
        return Silence(culprits=to_blame, reason=f"no progress for {timeout_s:g} s (--heartbeat-timeout-s)")
    patience_s = timeout_s if alone else timeout_s + ELSEWHERE_S
    if stuck and all(now_s - member.progressed_s > patience_s for member in running):
        return Silence(
            culprits=stuck,
            reason=f"no progress for {timeout_s:g} s (--heartbeat-timeout-s): it waits for ranks that do not come",
        )
    return None
