"""Files that appear under their name only when they are complete, are read only if they are files, or are locked."""

import contextlib
import errno
import fcntl
import glob
import os
import re
import secrets
import shutil
import stat
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from mjtrain.runtime.errors import OutsideError, RequestError

full: set[Path] = set()
"""Files whose next replacement finds the disk full, as --inject-fault kind=disk-full asks for."""

guards: dict[Path, Callable[[], None]] = {}
"""Called before files of a folder are replaced. What it raises leaves the earlier file."""

_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM}
"""Errors of file systems that cannot synchronise a folder, and of folders that may be written but not read."""

_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd", "/proc/self/fd")
"""Names of open streams; a file that one of them leads to has what was printed before."""

# Open-file-description locks belong to an open file, not to a process. NFS and other shared file systems pass them on
# to all hosts, and the kernel gives them back. A process that inherits the open file keeps the lock alive.
_FLOCK = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, length (0: all), pid


def find_file_problem(path: Path) -> str | None:
    """Say why a path is not that of a file; None if it is."""
    try:
        if path.is_file():
            return None
        return "is a folder; give a file" if path.is_dir() else "no such file"
    except OSError as error:  # such as a name that is too long
        return error.strerror


def is_something_else(path: Path, is_kind: Callable[[int], bool] = stat.S_ISREG) -> bool:
    """Tell whether a path exists and leads to something else than a regular file, such as a pipe, or to itself.

    `is_kind` decides by its mode. Raises an OSError if its file system does not respond.
    """
    try:
        return not is_kind(path.stat().st_mode)  # Path.is_file of Python 3.14 says False of such a file system
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return True


def shorten(path: Path) -> Path:
    """Return a path as a message shows it: relative if it is below the working directory."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def check_working_directory() -> None:
    """Check that the working directory was not deleted: MKL would end the import of torch with other words."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise RequestError("the working directory does not exist any more; change to another folder") from error


def partial_path(path: Path) -> Path:
    """Name the file or folder that is written before it gets the name of `path`; nobody can guess the name."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def find_partials(path: Path) -> list[Path]:
    """Return what interrupted writes of a file have left beside it."""
    return list(path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}.partial"))


def remove_partials(folders: Iterable[Path]) -> None:
    """Remove the files that interrupted writes have left in these folders; no other process may be writing them."""
    for folder in folders:
        for path in folder.glob(".*.partial"):
            if re.fullmatch(r"\..+\.([0-9a-f]{16}|pt|json|jsonl|yaml)\.partial", path.name):
                with contextlib.suppress(OSError):  # a folder, or it cannot be removed and does no harm
                    path.unlink()


def may_access(path: Path, mode: int) -> bool:
    """Return whether this process may do with a file what `os.access` names by its mode."""
    # Old containers refuse the system call that asks with the effective IDs, which nearly always are the real ones.
    return os.access(path, mode, effective_ids=os.geteuid() != os.getuid())


def describe_absence(folder: Path) -> str | None:
    """Say why a folder cannot be used now, after its name; None if it exists."""
    try:
        mode = folder.stat().st_mode  # Path.is_dir of Python 3.14 takes a file system without a server for missing
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except OSError as error:  # its file system does not respond, as one of FUSE or NFS whose server is gone
        return f"cannot be reached ({error.strerror})"
    return None if stat.S_ISDIR(mode) else "is missing (deleted or renamed)"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Replace a file at the end of the with block; an exception leaves the earlier file, and no partial one.

    The content and the new name survive a power failure, as far as the file system can promise that.

    Yields:
        The new file, for writing and reading. Its name so far cannot be guessed, and no link is followed.
    """
    check = guards.get(path.parent, bool)
    check()
    partial = partial_path(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(partial, flags, 0o666), "w+b") as file:
            if path in full:
                full.discard(path)
                _fill(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        check()  # again, because writing may have taken long, as on a host that slept
        partial.replace(path)
    except OSError as error:
        if error.filename is None:  # of a write, as to a full disk; the message would not name a file
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextlib.contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Make a new or empty folder whole at the end of the with block; an exception in it leaves nothing.

    Yields the folder to write into during the block. Raises an OSError if it cannot be written, or has content by then.
    """
    folder = Path(os.path.realpath(folder))  # Path.resolve raises RuntimeError where links form a circle
    is_there = folder.is_dir()  # then it stays, because it may be on another disk or somebody's current folder
    partial = partial_path(folder / "new" if is_there else folder)
    try:
        partial.mkdir(parents=True)
        yield partial
        if is_there and any(path != partial for path in folder.iterdir()):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))
        for path in sorted(partial.iterdir()) if is_there else ():
            path.rename(folder / path.name)
        if not is_there:
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file by this content, as `replacing` does; text is UTF-8."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_writable(flag: str, path: Path) -> None:
    """Check, before any work, that `write_out` can write a file; the error begins with the flag that names it."""
    words, problem = f"{flag} {path}".strip(), ""
    try:
        place = _find_place(path)
        if place.is_dir():
            problem = "is a folder; give a file"
        elif not place.parent.is_dir():
            folder = place.parent if path.is_symlink() else path.parent
            problem = f"the folder {folder} does not exist"
        elif _is_replaced(place):
            with tempfile.TemporaryFile(dir=place.parent):
                pass
        elif not os.access(place, os.W_OK):
            problem = "cannot be written (Permission denied)"
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle; a name with a null character
        problem = f"cannot be written ({getattr(error, 'strerror', None) or error})"
    if problem:
        raise RequestError(f"{words}: {problem}")


def write_out(path: Path, content: str | bytes) -> None:
    """Write the result of a command: `write_whole` to the file of a link, and into a device, pipe or stream."""
    place = _find_place(path)
    if _is_replaced(place):
        write_whole(place, content)
        return
    with place.open("wb" if place.is_file() and not _is_stream(place) else "ab") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _is_stream(path: Path) -> bool:
    return any(path.is_relative_to(name) for name in _STREAMS)


def _find_place(path: Path) -> Path:
    """Return the file that a link leads to, but devices, pipes and streams by the name that was given."""
    is_special = _is_stream(path) or (path.exists() and not path.is_file() and not path.is_dir())
    return path if is_special else path.resolve()


def _is_replaced(place: Path) -> bool:
    """Whether a file is new or may be replaced by another one of its name."""
    if _is_stream(place) and place.exists():
        return False
    return not place.exists() or (place.is_file() and os.access(place.parent, os.W_OK))


@contextlib.contextmanager
def saying_where(flag: str, path: str | Path) -> Iterator[None]:
    """Turn an OSError of the with block into an `OutsideError` that begins with the flag, if any, that names a file."""
    try:
        yield
    except OSError as error:
        raise OutsideError(f"{flag} {path}: cannot be written ({error.strerror or error})".lstrip()) from error


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power failure, if its file system can promise that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def read_regular(path: Path, limit: int | None = None) -> bytes:
    """Read a file, or its first bytes; a device or a pipe, which may never end, is an OSError."""
    with open_regular(path) as file:
        return file.read() if limit is None else file.read(limit)


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading; see `read_regular`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # an error of fdopen would not name a folder
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def _fill(descriptor: int) -> None:
    """Have the kernel refuse all bytes that are written to an open file with ENOSPC."""
    device = os.open("/dev/full", os.O_RDWR)
    os.dup2(device, descriptor, inheritable=False)
    os.close(device)


def open_lock_file(path: Path) -> int:
    """Open a file for writing, as locks between hosts need; make it if it is missing. A link is not followed."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file, alone or shared with others that share it too; return whether no other file has the lock.

    Raises an OSError where the file system has no locks.
    """
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    try:
        fcntl.fcntl(descriptor, command, _FLOCK.pack(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(descriptor: int) -> None:
    """Give the lock of an open file back, also where a fork of this process has inherited the file."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0))


def is_locked(path: Path) -> bool:
    """Tell whether any process has locked a file, without taking the lock; raises an OSError if that cannot be told."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
    finally:
        os.close(descriptor)
    return _FLOCK.unpack(answer)[0] != fcntl.F_UNLCK
