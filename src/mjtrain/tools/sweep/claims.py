"""Which process does what in a sweep's folder: locks that the kernel gives back when their holder ends."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mjtrain.runtime.files import lock, open_lock_file


@dataclass(eq=False, kw_only=True)
class Claim:
    """Names that no other process has, with open files. A process that inherits one keeps the claim to it alive."""

    shared: bool
    descriptors: dict[str, int] = field(default_factory=dict)

    def is_held(self) -> bool:
        """Tell whether no other process has any of it, and lock again what a restarted server of NFS has lost."""
        try:
            return all(lock(descriptor, shared=self.shared) for descriptor in self.descriptors.values())
        except OSError:  # a file system without locks loses none
            return True

    def release(self) -> None:
        """Give it back; what child processes have inherited stays theirs until they end."""
        while self.descriptors:
            os.close(self.descriptors.popitem()[1])


class Claims:
    """The claims to what a folder's processes share: locks that NFS and others pass on to all hosts."""

    def __init__(self, folder: Path, *, needs_locks: bool) -> None:
        """Make the folder; without locks in its file system, each claim is an OSError, or granted."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._needs_locks = needs_locks

    def take(self, *names: str, shared: bool = False) -> Claim | None:
        """Claim all of these; None if another process has one of them."""
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
