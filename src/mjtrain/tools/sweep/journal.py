"""The study's journal in the sweep's folder, which survives processes that are killed."""

import contextlib
import fcntl
import os
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock


def open_journal(path: Path) -> JournalStorage:
    """Open a journal; the file is made if it is not there.

    Raises:
        OSError: It cannot be written.
    """
    return JournalStorage(JournalFileBackend(str(path), lock_obj=_KernelLock(path)))


class _KernelLock(JournalFileOpenLock):
    """A lock that the kernel gives back when its process ends, however it ends.

    Optuna's own locks are files that a killed process leaves behind; the next process waits half a minute for them. A
    line that was cut short makes Optuna refuse the journal once another follows it, so whoever gets the lock removes
    it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._descriptor = -1

    def acquire(self) -> bool:
        """Wait for the lock, and mend the journal."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks; the sweep's folder is claimed besides
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        _remove_torn_line(self._descriptor)
        return True

    def release(self) -> None:
        """Give it back."""
        os.close(self._descriptor)


def _remove_torn_line(descriptor: int) -> None:
    """Cut a file after its last whole line."""
    size = end = os.fstat(descriptor).st_size
    while end > 0:
        begin = max(0, end - 4096)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            end = begin + newline + 1
            break
        end = begin
    if end < size:
        os.ftruncate(descriptor, end)
