"""Checkpoints on disk: whole or not there, with a checksum, and never code.

A checkpoint is what `torch.save` writes, followed by `MAGIC` and the SHA-256 of everything before it, which
`torch.load` does not mind.
"""

import contextlib
import hashlib
import io
import os
import re
from pathlib import Path
from typing import IO, Any

from mjtrain import heartbeat
from mjtrain.checkpoint_formats import upgrade
from mjtrain.errors import RequestError

MAGIC = b"\nmjtrain sha256:"
_TRAILER_SIZE = len(MAGIC) + hashlib.sha256().digest_size
_CHUNK_SIZE = 1 << 20


class CheckpointError(RequestError):
    """A file is not a whole checkpoint of plain values."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint; a file of that name is either the old one or the whole new one.

    Args:
        path: Where it goes.
        content: Tensors, numbers, strings, and lists and dictionaries of them.

    Raises:
        OSError: It could not be written; what was at the path before is still there.
    """
    import torch

    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            writer = _HashingWriter(file)
            try:
                torch.save(content, writer)  # pyright: ignore[reportArgumentType]
            except RuntimeError:
                if writer.error is None:
                    raise
                raise writer.error from None  # torch only says that something went wrong with its stream
            file.write(MAGIC + writer.digest())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _sync_folder(path.parent)


class _HashingWriter(io.RawIOBase):
    """Hands bytes on and sums them up."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write a piece; every piece is a sign of progress, as a large file on a slow disk takes its time."""
        heartbeat.beat()
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._hash.update(data)
        return len(data)

    def digest(self) -> bytes:
        """Return the SHA-256 of all that was written."""
        return self._hash.digest()


def _sync_folder(folder: Path) -> None:
    """Have the new name survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_checkpoint(path: Path) -> bytes:
    """Read a file and verify its checksum.

    Returns:
        The bytes, for `parse_checkpoint`.

    Raises:
        CheckpointError: There is no such file, it carries no checksum, or another one than it should.
    """
    data = _read(path)
    body, trailer = data[:-_TRAILER_SIZE], data[-_TRAILER_SIZE:]
    if not trailer.startswith(MAGIC):
        raise CheckpointError(f"checkpoint {path}: not a whole checkpoint of mjtrain (it ends without a checksum)")
    if hashlib.sha256(body).digest() != trailer[len(MAGIC) :]:
        raise CheckpointError(f"checkpoint {path}: its content does not match its checksum")
    return data


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: cannot be read ({error.strerror})") from error


def parse_checkpoint(data: bytes, path: Path, device: str) -> dict[str, Any]:
    """Turn the bytes of a checkpoint of any format into its content in today's, without running any code it may carry.

    Args:
        data: The bytes.
        path: Where they come from, for messages.
        device: Where the tensors go.

    Raises:
        CheckpointError: They are not a whole checkpoint of plain values, or a newer version of mjtrain wrote them.
    """
    import torch

    try:
        content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except Exception as error:  # whatever a broken archive makes of the reader
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise CheckpointError(f"checkpoint {path}: not a whole checkpoint of plain values ({reason})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"checkpoint {path}: is no checkpoint; it holds a {type(content).__name__}")
    try:
        return upgrade(content)
    except ValueError as error:
        raise CheckpointError(f"checkpoint {path}: {error}") from None


def load_checkpoint(path: Path, device: str) -> dict[str, Any]:
    """Read a checkpoint, one without a checksum too; see `read_checkpoint` and `parse_checkpoint`."""
    data = _read(path)
    if data[-_TRAILER_SIZE:].startswith(MAGIC):
        read_checkpoint(path)
    return parse_checkpoint(data, path, device)


def checkpoint_path(run_dir: Path, iteration: int) -> Path:
    """Name the checkpoint of an iteration."""
    return run_dir / f"model_{iteration}.pt"


def checkpoint_iteration(path: Path) -> int:
    """Read the iteration off a checkpoint's name."""
    return int(path.stem.removeprefix("model_"))


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Return a run's checkpoints, whole or not, the newest first."""
    paths = [path for path in run_dir.glob("model_*.pt") if re.fullmatch(r"model_\d+\.pt", path.name)]
    return sorted(paths, key=checkpoint_iteration, reverse=True)


def find_valid_checkpoint(run_dir: Path) -> tuple[Path | None, list[str]]:
    """Look for the newest checkpoint of a run whose checksum is right.

    Returns:
        The file, or None; and why newer files do not count, a line each.
    """
    problems = []
    for path in list_checkpoints(run_dir):
        try:
            verify_checkpoint(path)
        except CheckpointError as error:
            problems.append(str(error))
        else:
            return path, problems
    return None, problems


def verify_checkpoint(path: Path) -> None:
    """Do what `read_checkpoint` does in little memory."""
    try:
        size = path.stat().st_size - _TRAILER_SIZE
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while size > 0 and (chunk := file.read(min(size, _CHUNK_SIZE))):
                digest.update(chunk)
                size -= len(chunk)
            trailer = file.read()
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: cannot be read ({error.strerror})") from error
    if trailer != MAGIC + digest.digest():
        raise CheckpointError(f"checkpoint {path}: its content does not match its checksum")


def prune_checkpoints(run_dir: Path, keep: int | None) -> None:
    """Delete all but the newest checkpoints of a run, and what a save that was cut short has left.

    Args:
        run_dir: Where they are. The newest must be known to be whole.
        keep: How many to keep; None keeps all.
    """
    stale = list(run_dir.glob(".model_*.pt.partial"))
    if keep is not None:
        stale += list_checkpoints(run_dir)[keep:]
    for path in stale:
        with contextlib.suppress(OSError):  # it is only in the way
            path.unlink()
