"""Which run a URL belongs to: `{url}/run.json`, which only one of two writers can create."""

import json
import socket
import time
from dataclasses import asdict, dataclass

from mjtrain.runs.storage.record import object_iteration
from mjtrain.runs.storage.store import ConflictError, Storage, StorageError, Version

OWNER = "run.json"
_MAX_CONFLICTS = 10


class TakenError(Exception):
    """Another run, or another start of the same one, stores its checkpoints at the URL."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who stores checkpoints at a URL."""

    session: str
    """Session of the claim to its run directory, see `runs.claim`."""

    run: str
    """Name of the run directory."""

    host: str
    """Host of its first rank."""

    time: float
    """When it took the URL, in seconds since the epoch."""

    def __str__(self) -> str:
        return f"run {self.run} on host {self.host}"


def take_url(storage: Storage, session: str, run: str, *, is_new: bool) -> None:
    """Record that a run stores its checkpoints at a URL from now on.

    Args:
        is_new: Whether it is a new run. A run that is resumed takes the place of whatever is recorded.

    Raises:
        TakenError: A new run finds that another one has just taken the URL, or has stored checkpoints there.
    """
    own = Owner(session=session, run=run, host=socket.gethostname(), time=time.time())
    for _ in range(_MAX_CONFLICTS):
        found = storage.read(OWNER)
        theirs = _parse(found)
        if theirs is not None and theirs.session == session:
            return
        if is_new and any(object_iteration(name) is not None for name in storage.list_objects()):
            raise TakenError(f"{theirs or 'another run'} has stored checkpoints there")
        try:
            storage.replace(OWNER, json.dumps(asdict(own)).encode() + b"\n", None if found is None else found[1])
        except ConflictError:
            if is_new:
                raise TakenError(f"{read_owner(storage) or 'another run'} began there at the same time") from None
        else:
            return
    raise StorageError(f"{storage.url}/{OWNER} is changed by other writers all the time")


def read_owner(storage: Storage) -> Owner | None:
    """Return who stores checkpoints at a URL; None if nobody is recorded, or the record is damaged."""
    return _parse(storage.read(OWNER))


def _parse(found: tuple[bytes, Version] | None) -> Owner | None:
    try:
        return None if found is None else Owner(**json.loads(found[0]))
    except (ValueError, TypeError, RecursionError):
        return None


def check_owner(storage: Storage, session: str, run: str) -> None:
    """Raise a TakenError unless the URL belongs to this session; one that belongs to nobody is taken."""
    theirs = read_owner(storage)
    if theirs is None:
        take_url(storage, session, run, is_new=False)
    elif theirs.session != session:
        raise TakenError(f"{theirs} has stored there since, so this job no longer does")
