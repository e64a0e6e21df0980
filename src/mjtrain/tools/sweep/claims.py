"""Which process does what in a sweep's folder: locks that the kernel gives back when their holder ends."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mjtrain.runtime.file_locks import lock, open_lock_file


@dataclass(eq=False, kw_only=True)
class Claim:
    """Something that no other process has, or of a shared one, something that is not another's alone."""

    shared: bool
    descriptors: dict[str, int] = field(default_factory=dict)
    """Open files by name. A process that inherits one keeps the claim to that name alive."""

    def is_held(self) -> bool:
        """Tell whether no other process has any of it: a server of NFS that was restarted can lose locks silently.

        What was lost and is free is locked again. A file system without locks loses none.
        """
        try:
            return all(lock(descriptor, shared=self.shared) for descriptor in self.descriptors.values())
        except OSError:
            return True

    def release(self) -> None:
        """Give it back; what child processes have inherited stays theirs until they end."""
        while self.descriptors:
            os.close(self.descriptors.popitem()[1])


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
        claim = Claim(shared=shared)
        with ExitStack() as undo:
            undo.callback(claim.release)
            for name in names:
                if not self._lock(claim, name):
                    return None
            undo.pop_all()
        return claim

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process is in such a with block of this folder."""
        claim = Claim(shared=False)
        try:
            self._lock(claim, "study", wait=True)
            yield
        finally:
            claim.release()

    def _lock(self, claim: Claim, name: str, *, wait: bool = False) -> bool:
        claim.descriptors[name] = open_lock_file(self._folder / f"{name}.lock")
        try:
            return lock(claim.descriptors[name], shared=claim.shared, wait=wait)
        except OSError:
            if self._needs_locks:
                raise
        return True
