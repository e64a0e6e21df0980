"""Which process does what in a sweep's folder: locks that the kernel gives back when their holder ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Claim:
    """Something that no other process has."""

    def __init__(self, descriptors: dict[str, int]) -> None:
        self._descriptors = descriptors

    def descriptor(self, name: str) -> int:
        """Return the open file of one of its names; a process that inherits it keeps the claim to that name alive."""
        return self._descriptors[name]

    def release(self) -> None:
        """Give it back; what child processes have inherited stays theirs until they end."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


class Claims:
    """The claims to what a folder's processes share, by name.

    They are locks of `flock`, which NFS and other shared file systems pass on to all hosts.
    """

    def __init__(self, folder: Path, *, needs_locks: bool) -> None:
        """Make the folder.

        Args:
            folder: Where the files are that are locked.
            needs_locks: What follows on a file system without locks: an OSError with each claim, or trust.

        Raises:
            OSError: It cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._needs_locks = needs_locks

    def take(self, *names: str, shared: bool = False) -> Claim | None:
        """Claim all of these, or none.

        Args:
            names: What is claimed.
            shared: Whether others may claim it too, if they share it.

        Returns:
            None if another process has one of them.

        Raises:
            OSError: The file system has no locks, and they are needed.
        """
        claim = Claim(descriptors := {})
        try:
            for name in names:
                descriptors[name] = self._open(name)
                if not self._lock(descriptors[name], (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB):
                    claim.release()
                    return None
        except BaseException:
            claim.release()
            raise
        return claim

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process is in such a with block of this folder."""
        descriptor = self._open("study")
        try:
            self._lock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        return os.open(self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def _lock(self, descriptor: int, operation: int) -> bool:
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            return False
        except OSError:
            if self._needs_locks:
                raise
        return True
