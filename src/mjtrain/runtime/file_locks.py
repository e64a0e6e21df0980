"""Locks of regular files that every process sees, on other hosts too, and that the kernel gives back.

They are open-file-description locks: they belong to an open file, not to a process, and NFS and other shared file
systems pass them on to all hosts. A process that inherits the open file keeps the lock alive.
"""

import errno
import fcntl
import os
import struct
from pathlib import Path

_FLOCK = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, length (0: all), pid
_HELD = (errno.EAGAIN, errno.EACCES)


def open_lock_file(path: Path) -> int:
    """Open a file for writing, as locks between hosts need; make it if it is missing. A link is not followed."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file.

    Args:
        shared: Whether others may lock it too, if they share it.
        wait: Whether to wait until it is free.

    Returns:
        Whether it is locked now; False if another open file has the lock.

    Raises:
        OSError: The file system has no locks.
    """
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    try:
        fcntl.fcntl(descriptor, command, _FLOCK.pack(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


def unlock(descriptor: int) -> None:
    """Give the lock of an open file back, also where a fork of this process has inherited the file."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0))


def is_locked(path: Path) -> bool:
    """Tell whether any process has locked a file; this asks, and takes no lock even for a moment.

    Raises:
        OSError: It cannot be read, or the file system has no locks.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
    finally:
        os.close(descriptor)
    return _FLOCK.unpack(answer)[0] != fcntl.F_UNLCK
