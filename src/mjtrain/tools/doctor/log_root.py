"""The folder below which runs live: free space, and what checkpoints do there (write, fsync, rename, read)."""

import errno
import os
import shutil
import time
import uuid
from pathlib import Path

from mjtrain.runtime.files import replacing
from mjtrain.runtime.machine import format_bytes, nearest_existing
from mjtrain.tools.doctor.finding import Finding, Question, failure, grade, skipped

PREFIX = ".mjtrain-doctor-"
"""Beginning of the names of what is written, and deleted again."""

_LEAST_BYTES, _GOOD_BYTES = 100 << 20, 2 << 30
_PROBE_BYTES = 16 << 20
_SLOW_BYTES_PER_S = 10e6

_OTHER = "or give another --log-root"
_ADVICE = {
    errno.EROFS: f"mount it with write permission (`mount -o remount,rw`), {_OTHER}",
    errno.EACCES: f"make it writable for this user (`chown`, `chmod u+w`), {_OTHER}",
    errno.EPERM: f"make it writable for this user (`chown`, `chmod u+w`), {_OTHER}",
    errno.ENOSPC: f"delete old runs, keep fewer checkpoints (--keep-checkpoints N), {_OTHER}",
    errno.EDQUOT: f"the user's quota is used up: delete old runs, {_OTHER}",
    errno.ESTALE: "the server has exported it again: remount it on this host",
}


def check(question: Question) -> list[Finding]:
    """Check free space, then write, and delete what was written."""
    root = Path(question.log_root)
    place = nearest_existing(root)
    if not place.is_dir():
        return [failure("log root", f"{place} is a file", "give a folder as --log-root")]
    found = os.statvfs(place)
    free, advice = found.f_bavail * found.f_frsize, _ADVICE[errno.ENOSPC]
    figure = f"{format_bytes(free)} free at {place}"
    space = grade("disk space", figure, advice, warns=free < _GOOD_BYTES, fails=free < _LEAST_BYTES)
    if found.f_files and not found.f_favail:
        advice = f"no more files can be made there: delete many small ones, {_OTHER}"
        space = failure("disk space", f"{format_bytes(free)}, but no inode free at {place}", advice)
    if space.result == "failure":
        return [space, skipped("log root", f"{root}: no space to try")]
    return [space, _check_writes(root, place)]


def _check_writes(root: Path, place: Path) -> Finding:
    """Do what saving a checkpoint does, in a separate folder."""
    folder = place / f"{PREFIX}{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        try:
            speed, fsync_s = _write(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, f"look at the kernel's messages (dmesg), {_OTHER}")
        return failure("log root", f"{root}: {(error.strerror or str(error)).lower()}", advice)
    figure = f"{root}: {format_bytes(int(speed))}/s, fsync {fsync_s * 1000:.1f} ms, rename"
    advice = "give a --log-root on a faster disk, or a larger --agent.save-interval"
    return grade("log root", figure, advice, warns=speed < _SLOW_BYTES_PER_S)


def _write(folder: Path) -> tuple[float, float]:
    """Replace a file, as saving does, and read it; bytes/s with an fsync, and the seconds of a small fsync."""
    content, path = os.urandom(1 << 20), folder / "file"
    path.write_bytes(b"before")
    with replacing(path) as file:
        times_s = [time.monotonic()]
        for data in (content * (_PROBE_BYTES >> 20), b"end"):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            times_s.append(time.monotonic())
    if path.stat().st_size != _PROBE_BYTES + 3 or path.read_bytes()[: 1 << 20] != content:
        raise OSError(errno.EIO, "it gives back other bytes than were written")
    begin_s, wrote_s, end_s = times_s
    return _PROBE_BYTES / max(wrote_s - begin_s, 1e-6), end_s - wrote_s
