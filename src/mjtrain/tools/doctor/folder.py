"""The folder below which runs live: free space, and what checkpoints do there (write, fsync, rename, read)."""

import errno
import os
import shutil
import time
import uuid
from pathlib import Path

from mjtrain.runtime.machine import format_bytes
from mjtrain.tools.doctor.finding import Finding, Question, failure, ok, skipped, warning

PREFIX = ".mjtrain-doctor-"
"""Beginning of the names of what is written, and deleted again."""

_LEAST_BYTES, _GOOD_BYTES = 100 << 20, 2 << 30
_PROBE_BYTES = 16 << 20
_SLOW_BYTES_PER_S = 10e6

_ADVICE = {
    errno.EROFS: "mount it with write permission (`mount -o remount,rw`), or give another --log-root",
    errno.EACCES: "make it writable for this user (`chown`, `chmod u+w`), or give another --log-root",
    errno.EPERM: "make it writable for this user (`chown`, `chmod u+w`), or give another --log-root",
    errno.ENOSPC: "delete old runs, keep fewer checkpoints (--keep-checkpoints N), or give another --log-root",
    errno.EDQUOT: "the user's quota is used up: delete old runs, or give another --log-root",
    errno.ESTALE: "the server has exported it again: remount it on this host",
}


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or the first above it that exists: a run creates the rest."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def check_log_root(question: Question) -> list[Finding]:
    """Check free space, then write, and delete what was written."""
    root = Path(question.log_root)
    place = nearest_existing(root)
    if not place.is_dir():
        return [failure("log root", f"{place} is a file", "give a folder as --log-root")]
    space = check_space(place)
    if space.result == "failure":
        return [space, skipped("log root", f"{root}: no space to try")]
    return [space, check_writes(root, place)]


def check_space(place: Path) -> Finding:
    """Look at the free space of a folder's file system."""
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if found.f_files and not found.f_favail:
        advice = "no more files can be made there: delete many small ones, or give another --log-root"
        return failure("disk space", f"{format_bytes(free)}, but no inode free at {place}", advice)
    figure = f"{format_bytes(free)} free at {place}"
    if free < _LEAST_BYTES:
        return failure("disk space", figure, _ADVICE[errno.ENOSPC])
    if free < _GOOD_BYTES:
        return warning("disk space", figure, _ADVICE[errno.ENOSPC])
    return ok("disk space", figure)


def check_writes(root: Path, place: Path) -> Finding:
    """Do what saving a checkpoint does, in a separate folder."""
    folder = place / f"{PREFIX}{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        try:
            speed, fsync_s = _write(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "look at the kernel's messages (dmesg), or give another --log-root")
        return failure("log root", f"{root}: {(error.strerror or str(error)).lower()}", advice)
    figure = f"{root}: {format_bytes(int(speed))}/s, fsync {fsync_s * 1000:.1f} ms, rename"
    if speed < _SLOW_BYTES_PER_S:
        return warning("log root", figure, "give a --log-root on a faster disk, or a larger --agent.save-interval")
    return ok("log root", figure)


def _write(folder: Path) -> tuple[float, float]:
    """Write a file, replace another by it, and read it.

    Returns:
        Bytes per second with the fsync at the end, and the seconds that an fsync after a small write takes.
    """
    content = os.urandom(1 << 20)
    final = folder / "file"
    final.write_bytes(b"before")
    partial = folder / ".file.partial"
    begin_s = time.monotonic()
    with partial.open("wb") as file:
        for _ in range(_PROBE_BYTES >> 20):
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
        wrote_s = time.monotonic() - begin_s
        file.write(b"end")
        file.flush()
        begin_s = time.monotonic()
        os.fsync(file.fileno())
        fsync_s = time.monotonic() - begin_s
    partial.replace(final)
    if partial.exists() or final.stat().st_size != _PROBE_BYTES + 3 or final.read_bytes()[: 1 << 20] != content:
        raise OSError(errno.EIO, "it gives back other bytes than were written")
    return _PROBE_BYTES / max(wrote_s, 1e-6), fsync_s
