"""The content of `latest.json`, the names of objects, and which objects are stale; pure."""

import json
import re
from dataclasses import asdict, dataclass

LATEST = "latest.json"


@dataclass(frozen=True, kw_only=True)
class Latest:
    """The newest checkpoint below a URL."""

    iteration: int
    """Iterations that it holds."""

    object: str
    """Its name below the URL."""

    sha256: str
    """SHA-256 of its bytes, in hexadecimal."""

    size: int
    """Its size in bytes."""

    run: str
    """Name of the run directory that it comes from."""

    host: str
    """The host it was published from."""

    time: float
    """When it was published, in seconds since the epoch."""

    def to_json(self) -> bytes:
        """Return the content of latest.json."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"


def parse_latest(content: bytes) -> Latest | None:
    """Read latest.json; None if it is damaged."""
    try:
        latest = Latest(**json.loads(content))
        return latest if object_iteration(latest.object) == latest.iteration else None
    except (ValueError, TypeError, RecursionError):
        return None


def object_name(iteration: int, sha256: str) -> str:
    """Name the object of a checkpoint after its content, so that no writer ever changes what another one stored."""
    return f"model_{iteration}-{sha256[:16]}.pt"


def object_iteration(name: str) -> int | None:
    """Read the iteration from an object's name; None if it is not the name of a checkpoint."""
    found = re.fullmatch(r"model_(\d+)-[0-9a-f]{16}\.pt", name)
    return None if found is None else int(found[1])


def newest_first(names: list[str], latest: Latest | None) -> list[str]:
    """Order the checkpoints among names; among those of one iteration, the one that latest.json names comes first."""
    found = [(iteration, name) for name in names if (iteration := object_iteration(name)) is not None]
    named = None if latest is None else latest.object
    return [name for _, name in sorted(found, key=lambda item: (item[0], item[1] == named, item[1]), reverse=True)]


def choose_stale(names: list[str], latest: Latest, keep: int, best: int | None = None) -> list[str]:
    """Choose the objects to delete so that the newest `keep` iterations remain, and the best one if it is given.

    Objects newer than the one that latest.json names belong to another writer. The one that it names is never chosen.
    """
    settled = [name for name in newest_first(names, latest) if (object_iteration(name) or 0) <= latest.iteration]
    kept = [*sorted({object_iteration(name) or 0 for name in settled}, reverse=True)[:keep], best]
    return [name for name in settled if object_iteration(name) not in kept and name != latest.object]
