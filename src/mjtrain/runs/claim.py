"""Which process trains in a run directory: a lock that other hosts see, and a session that keeps late writers out.

The lock is that of {run}/.lock. The file also says who holds it. Where a file system has no locks, or a host slept
until its lock was lost, two processes can believe that they train there. The session in the file is that of the one
that came last. Rank 0 compares before each save.
"""

import contextlib
import errno
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from mjtrain.runs.run_dir import NotWrittenError
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.event_log import METRICS_FILE
from mjtrain.runtime.files import (
    is_locked,
    is_something_else,
    lock,
    may_access,
    open_lock_file,
    read_regular,
    unlock,
)

LOCK_FILE = ".lock"

_REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.EISDIR, errno.ENXIO}
"""Errors that are the same at the next attempt, unlike those of a full disk or of a server."""

_SIZE = 1024
"""Bytes of the record, padded with blanks: one write replaces it as a whole."""


class RunTakenError(RuntimeError):
    """Another process trains in the run directory now."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who trains in a run directory."""

    host: str
    """Name of the host of the job's launcher."""

    pid: int
    """Number of the launcher's process there."""

    started: str
    """When it claimed the directory, local time in ISO format."""

    session: str
    """Random, and another one for each claim."""

    start: int = 0
    """How many times this job was restarted."""

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}, since {self.started}"


@contextmanager
def claim_run_dir(run_dir: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Be the only process that trains in a run directory during a with block.

    A request that the block refuses leaves the file as it was.

    Yields:
        The session of the claim, see `Holder`; and lines for the user.

    Raises:
        RequestError: Another process trains there, or something else has the place of a file.
        NotWrittenError: The claim could not be recorded.
    """
    _check_places(run_dir)
    path = run_dir / LOCK_FILE
    is_new = not path.exists()
    descriptor, notices = _open_locked(path)
    pid = os.getpid()
    try:
        before, times = os.pread(descriptor, _SIZE, 0), os.fstat(descriptor)
        started = datetime.now().astimezone().isoformat(timespec="seconds")
        holder = Holder(host=socket.gethostname(), pid=pid, started=started, session=secrets.token_hex(8))
        try:
            try:
                _write(descriptor, holder)
            except OSError as error:
                raise NotWrittenError(f"{path}: cannot be written ({error.strerror})") from error
            yield holder.session, notices
        except (RequestError, NotWrittenError):
            with contextlib.suppress(OSError):
                if is_new:
                    path.unlink()
                else:
                    os.pwrite(descriptor, before, 0)
                    os.ftruncate(descriptor, len(before))
                    os.utime(descriptor, ns=(times.st_atime_ns, times.st_mtime_ns))
            raise
    finally:
        if os.getpid() == pid:  # a fork that leaves the block has no claim to give back
            with contextlib.suppress(OSError):
                unlock(descriptor)  # a process that the task has forked may outlive the training
        with contextlib.suppress(OSError):  # a function of the task has closed it, as by os.closerange
            os.close(descriptor)
        with contextlib.suppress(OSError):
            run_dir.rmdir()  # of a new run that was refused: NFS keeps an open file until it is closed


def _check_places(run_dir: Path) -> None:
    """Refuse a run in which something else has the place of a file or a folder that a training writes."""
    code, params = run_dir / "code", run_dir / "params"
    for path in (params, run_dir / "robot", run_dir / "data", code, code / "previous"):
        if is_something_else(path, stat.S_ISDIR) or (path.is_symlink() and not path.exists()):
            raise RequestError(f"--resume {run_dir}: {path.relative_to(run_dir)} is not a folder; remove it")
    copies = (path for path in code.rglob("*.py") if path.is_dir())  # anything else is replaced
    files = (run_dir / LOCK_FILE, run_dir / METRICS_FILE, *params.glob("*.yaml"), *copies)
    for path in files:
        if is_something_else(path):
            raise RequestError(f"--resume {run_dir}: {path.relative_to(run_dir)} is not a regular file; remove it")
        if path.exists() and not may_access(path, os.R_OK):
            raise RequestError(
                f"--resume {run_dir}: {path.relative_to(run_dir)} may not be read; change its permissions"
            )
    if files[0].exists() and not may_access(run_dir, os.W_OK):
        raise RequestError(f"--resume {run_dir}: is read-only; change its permissions, or resume a copy")


def _open_locked(path: Path) -> tuple[int, tuple[str, ...]]:
    while True:
        try:
            descriptor = open_lock_file(path)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise NotWrittenError(f"{path}: cannot be written ({error.strerror})") from error
            raise RequestError(f"--resume {path.parent}: {path.name} cannot be written ({error.strerror})") from error
        try:
            notices = _lock(descriptor, path.parent)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor, notices
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # a refused request has removed the file since it was opened


def _lock(descriptor: int, run_dir: Path) -> tuple[str, ...]:
    try:
        is_free = lock(descriptor)
    except OSError as error:
        return (
            f"warning: {run_dir} is on a file system without locks ({error.strerror}): make sure that no other process "
            "trains there",
        )
    if not is_free:
        holder = read_holder(run_dir)
        who = "" if holder is None else f" ({holder})"
        raise RequestError(f"--resume {run_dir}: another process is training there{who}")
    return ()


def _write(descriptor: int, holder: Holder) -> None:
    os.pwrite(descriptor, json.dumps(asdict(holder)).encode().ljust(_SIZE - 1) + b"\n", 0)


def is_claimed(run_dir: Path) -> bool:
    """Tell whether a process trains in a run directory, see `claim_run_dir`; that process is not disturbed."""
    try:
        return is_locked(run_dir / LOCK_FILE)
    except OSError:
        return False  # it was never claimed, or its file system has no locks


def read_holder(run_dir: Path) -> Holder | None:
    """Return who claimed a run directory last; None if that cannot be read."""
    try:
        holder = Holder(**json.loads(read_regular(run_dir / LOCK_FILE, _SIZE)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return holder if isinstance(holder.session, str) and type(holder.start) is int else None


def begin_start(run_dir: Path, session: str, start: int) -> None:
    """Note that a start of the job that claimed a run directory writes there from now on; called by its rank 0.

    Earlier starts of the same job, as on a host that slept, are thereby kept out. Rank 0 may be on a host that does not
    share the launcher's file system.
    """
    holder = read_holder(run_dir)
    if holder is None or holder.session != session:
        now = datetime.now().isoformat()
        holder = Holder(host=socket.gethostname(), pid=os.getpid(), started=now, session=session)
    with contextlib.suppress(OSError):  # the disk is full, say: saving reports it
        descriptor = open_lock_file(run_dir / LOCK_FILE)
        try:
            _write(descriptor, replace(holder, start=start))
        finally:
            os.close(descriptor)


def check_claim(run_dir: Path, session: str, start: int | None = None) -> None:
    """Raise a RunTakenError if another process, or a later start of this job, has claimed a run directory since.

    A file that is gone or damaged is not a claim.

    Args:
        session: That of the claim of this job; empty for none.
        start: The start of the job that asks; None if that does not matter.
    """
    holder = read_holder(run_dir) if session else None
    if holder is None:
        return
    if holder.session != session:
        raise RunTakenError(
            f"{run_dir}: {holder} trains here now, so this job ends without saving; its lock was lost, as after a host "
            "slept, or the file system has no locks between hosts"
        )
    if start is not None and holder.start > start:
        raise RunTakenError(
            f"{run_dir}: a later start of this job trains here now, so this process ends without saving; it was "
            "stopped or asleep while the job was restarted without it"
        )


def holds_claim(run_dir: Path, session: str) -> bool:
    """Tell whether no other process has claimed a run directory since, see `check_claim`."""
    try:
        check_claim(run_dir, session)
    except RunTakenError:
        return False
    return True
