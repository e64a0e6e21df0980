"""What is asked of a host: plain values, which travel to it as JSON."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a run on the host would use."""

    log_root: str
    """Absolute path of the folder below which runs live."""

    checkpoint_url: str | None = None
    """Object storage; None for none."""

    video: bool = False
    """Whether the run would record videos: then it fails where nothing can be rendered."""

    gpu_ids: list[int] | str | None = "auto"
    """As `LaunchConfig.gpu_ids`."""

    num_ranks: int | None = None
    """Ranks on the host; None for one per GPU, or one."""

    world_size: int = 1
    """Ranks of the whole job, as far as they are known."""

    num_threads: int | None = None
    """Threads of each rank; None for the cores divided by the ranks."""

    interface: str | None = None
    """Network interface that was asked for."""

    listens_at: tuple[str, int] | None = None
    """Name and port at which this host waits for the others; None if it does not, or at a port that is free."""

    skip: tuple[str, ...] = ()
    """Checks to leave out, of `timed.SLOW_CHECKS`."""

    timeout_s: float = 60.0
    """Time that a check may take, in seconds."""

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values, see `from_plain`."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Question":
        """Restore it from what `to_plain` returned, after a way through JSON."""
        address = plain["listens_at"]
        return cls(**{**plain, "listens_at": None if address is None else (address[0], address[1])})
