"""Which process does what in a sweep's folder: locks that the kernel gives back when their holder ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mjtrain.runtime.file_locks import lock, open_lock_file


class Claim:
    """Something that no other process has."""

    def __init__(self, descriptors: dict[str, int], *, shared: bool = False) -> None:
        self._descriptors = descriptors
        self._shared = shared

    def descriptor(self, name: str) -> int:
        """Return the open file of one of its names; a process that inherits it keeps the claim to that name alive."""
        return self._descriptors[name]

    def is_held(self) -> bool:
        """Tell whether no other process has any of it: a server of NFS that was restarted can lose locks silently.

        What was lost and is free is locked again. A file system without locks loses none.
        """
        try:
            return all(lock(descriptor, shared=self._shared) for descriptor in self._descriptors.values())
        except OSError:
            return True

    def release(self) -> None:
        """Give it back; what child processes have inherited stays theirs until they end."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


class Claims:
    """The claims to what a folder's processes share, by name.

    They are locks of open files, which NFS and other shared file systems pass on to all hosts.
    """

    def __init__(self, folder: Path, *, needs_locks: bool) -> None:
        """Make the folder.

        Args:
            needs_locks: What follows on a file system without locks: an OSError with each claim, or trust.

        Raises:
            OSError: It cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._needs_locks = needs_locks

    def take(self, *names: str, shared: bool = False) -> Claim | None:
        """Claim all of these, or none.

        Returns:
            None if another process has one of them.

        Raises:
            OSError: The file system has no locks, and they are needed.
        """
        claim = Claim(descriptors := {}, shared=shared)
        try:
            for name in names:
                descriptors[name] = self._open(name)
                if not self._lock(descriptors[name], shared=shared):
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
            self._lock(descriptor, wait=True)
            yield
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        return open_lock_file(self._folder / f"{name}.lock")

    def _lock(self, descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
        try:
            return lock(descriptor, shared=shared, wait=wait)
        except OSError:
            if self._needs_locks:
                raise
        return True
