"""Checkpoint files: written atomically, with a checksum, read without running code; and which one is the best.

A checkpoint is what `torch.save` writes, followed by `MAGIC` and the SHA-256 of everything before it, which
`torch.load` does not mind.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from mjtrain.config import DEFAULT_LEARNER
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import RequestError, message_of, summarise
from mjtrain.runtime.files import may_access, open_regular, read_regular, replacing, write_whole

FORMAT = 1
"""Number of the format that is written today, under the key "format"."""

BEST = "best"
"""What stands for the best checkpoint where a name of a checkpoint is asked for."""

BEST_FILE = "best.json"
"""Name of the record in a run directory, and in object storage."""

WANDB_ID_FILE = "wandb_run_id"
"""Name of the file with the id of its W&B run, which a resumed run continues."""

_KINDS: dict[str, tuple[type, ...]] = {
    "learner": (str,),
    "iter": (int,),
    "infos": (dict,),
    "last_episodes": (dict,),
    "ranks": (list,),
    "learning_rate": (float, int),
}
"""Types of what the training loop writes."""

MAGIC = b"\nmjtrain sha256:"
_TRAILER_SIZE = len(MAGIC) + hashlib.sha256().digest_size
_CHUNK_SIZE = 1 << 20
_MAX_HELD = 4
_held: dict[Path, IO[bytes]] = {}
"""Open files of `hold_checkpoint`."""
_held_lock = threading.Lock()
"""Several threads may load policies; an open file has one position for all of them."""

_ADVICE = re.compile(r"Weights only load failed\.|In PyTorch 2\.6.*?trusted source\.|Please file an issue.*")
"""What torch says before the reason why a file cannot be read: how to run the code in it."""

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
"""Folders of installed modules."""


class CheckpointError(RequestError):
    """A file is not a complete checkpoint of plain values."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values atomically: the file is either the old one or the complete new one."""
    import torch

    with replacing(path) as file:
        writer = _HashingWriter(file)
        try:
            torch.save(_share_names(content), writer)  # pyright: ignore[reportArgumentType]
        except RuntimeError:
            if writer.error is None:
                raise
            raise writer.error from None  # torch only reports that its stream failed
        file.write(MAGIC + writer.hash.digest())


def _share_names(value: Any) -> Any:
    """Return nested values in which equal strings are one object, so that files of equal values are equal."""
    if type(value) is str:
        return sys.intern(value)
    if type(value) is dict:  # not the subclass of networks, which has attributes, and names that nothing else has
        return {_share_names(key): _share_names(item) for key, item in value.items()}
    return [_share_names(item) for item in value] if isinstance(value, list) else value


class _HashingWriter(io.RawIOBase):
    """Passes bytes on and hashes them."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self.hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write a piece; each one counts as progress, since a large file on a slow disk takes long."""
        heartbeat.beat()
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.hash.update(data)
        return len(data)


def read_checkpoint(path: Path) -> bytes:
    """Read a file; raises a CheckpointError if it or its checksum is missing, or the checksum is wrong."""
    data = _read(path)
    if not data[-_TRAILER_SIZE:].startswith(MAGIC):
        raise CheckpointError(f"checkpoint {path}: not a complete checkpoint of mjtrain (it ends without a checksum)")
    return data


def hold_checkpoint(path: Path) -> None:
    """Keep a file readable in this process by its path, even if the training that wrote it deletes it.

    A training with --keep-checkpoints may do so while the environment of the policy is being built. The last four files
    are held. A file that does not exist is an error only for what reads it.
    """
    with contextlib.suppress(OSError):
        file = open_regular(path)
        with _held_lock:
            if path in _held:
                _held.pop(path).close()
            _held[path] = file
            if len(_held) > _MAX_HELD:
                _held.pop(next(iter(_held))).close()


def is_there(path: Path) -> bool:
    """Tell whether a file exists, or this process holds it."""
    return path.is_file() or path in _held


def _read(path: Path) -> bytes:
    """Read a file, and verify its checksum if it has one."""
    try:
        try:
            data = read_regular(path)
        except FileNotFoundError:
            with _held_lock:
                if path not in _held:
                    raise CheckpointError(f"checkpoint {path}: no such file") from None
                _held[path].seek(0)
                data = _held[path].read()
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: cannot be read ({error.strerror})") from error
    body, trailer = data[:-_TRAILER_SIZE], data[-_TRAILER_SIZE:]
    if trailer.startswith(MAGIC) and hashlib.sha256(body).digest() != trailer[len(MAGIC) :]:
        raise CheckpointError(f"checkpoint {path}: its content does not match its checksum")
    return data


def parse_checkpoint(data: bytes, path: Path, device: str) -> dict[str, Any]:
    """Turn the bytes of a checkpoint into its content without running code, or raise a CheckpointError."""
    import torch

    try:
        content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except Exception as error:  # a broken archive can raise anything
        said = [line for line in _ADVICE.sub("", message_of(error)).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {said[0].strip()}" if said else summarise(error)
        raise CheckpointError(f"checkpoint {path}: not a complete checkpoint of plain values ({reason})") from error
    return check_content(content, f"checkpoint {path}")


def check_content(content: Any, name: str) -> dict[str, Any]:
    """Return what was read from a checkpoint or a file of weights, or raise a CheckpointError if it is neither."""
    if not isinstance(content, dict):
        raise CheckpointError(f"{name}: not a checkpoint (it holds a {type(content).__name__})")
    number = content.get("format", FORMAT)
    if not isinstance(number, int) or number != FORMAT:
        advice = "; update mjtrain" if isinstance(number, int) and number > FORMAT else ""
        raise CheckpointError(f"{name}: has format {number}; this version reads format {FORMAT}{advice}")
    if content.get("infos", {}) is None:  # as RSL-RL's own runner writes it
        del content["infos"]
    for key, kinds in _KINDS.items():
        if key in content and not isinstance(content[key], kinds):
            there = type(content[key]).__name__
            raise CheckpointError(f"{name}: is damaged: {key} is of type {there}, not {kinds[0].__name__}")
    return content


class Parts(dict[str, Any]):
    """The content of a checkpoint, which notes which of its keys are read."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.keys_read: dict[str, None] = {}
        """In the order in which they were read last."""

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value as `dict.get` does."""
        self._note(key)
        return super().get(key, default)

    def _note(self, key: str) -> None:
        self.keys_read.pop(key, None)
        self.keys_read[key] = None


@contextlib.contextmanager
def taking_apart(content: Mapping[str, Any], path: Path) -> Iterator[Parts]:
    """Give the content of a checkpoint to a with block that takes it apart.

    A RequestError of the block is passed on, and so is an error of the device, of the other ranks or of a user's code.

    Raises:
        CheckpointError: The block raised an exception that follows from content of another kind than was saved. The
            message names the part that was read last, the exception and where it was raised.
    """
    import torch

    parts = Parts(content)
    try:
        yield parts
    except (RequestError, torch.OutOfMemoryError, torch.AcceleratorError, torch.distributed.DistError):
        raise  # no fault of the file: another start may succeed
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
        file = Path(frame.f_code.co_filename)
        is_own = frame.f_globals.get("__name__", "").partition(".")[0] in ("mjtrain", "mjtrain_learners")
        if not is_own and not any(map(file.is_relative_to, _LIBRARIES)):
            raise  # of a user's own algorithm or network, whose author needs the traceback
        part, place = next(reversed(parts.keys_read), "content"), f"{file.name}:{line}"
        is_missing = isinstance(error, KeyError) and error.args == (part,) and part not in parts
        wrong = "is missing" if is_missing else f"is not as a training saves it ({summarise(error)}, at {place})"
        raise CheckpointError(f"checkpoint {path}: is damaged: {part} {wrong}") from error


def load_checkpoint(path: Path, device: str) -> dict[str, Any]:
    """Read a checkpoint, with or without a checksum; see `read_checkpoint` and `parse_checkpoint`."""
    return parse_checkpoint(_read(path), path, device)


def recorded_learner(content: dict[str, Any]) -> str:
    """Return the name of the learner that wrote the content of a checkpoint."""
    return content.get("learner", DEFAULT_LEARNER)


def check_recorded_learner(content: dict[str, Any], path: Path, learner: str) -> None:
    """Raise a RequestError unless this learner wrote the content of a checkpoint."""
    if (theirs := recorded_learner(content)) != learner:
        raise RequestError(f"checkpoint {path}: was learned with --learner {theirs}, and this is {learner}")


def checkpoint_path(run_dir: Path, iteration: int) -> Path:
    """Name the checkpoint of an iteration."""
    return run_dir / f"model_{iteration}.pt"


def checkpoint_iteration(path: Path) -> int:
    """Read the iteration from a checkpoint's name."""
    return int(path.stem.removeprefix("model_"))


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Return a run's checkpoints, valid or not, the newest first."""
    paths = [path for path in run_dir.glob("model_*.pt") if re.fullmatch(r"model_\d+\.pt", path.name)]
    return sorted(paths, key=checkpoint_iteration, reverse=True)


def find_valid_checkpoint(run_dir: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint of a run whose checksum is right, and lines on why each newer one is not valid."""
    gone: set[Path] = set()
    while True:
        problems = []
        for path in list_checkpoints(run_dir):
            try:
                with open_regular(path) as file:
                    if has_valid_checksum(file):
                        return path, problems
                problems.append(f"checkpoint {path}: its content does not match its checksum")
            except OSError as error:
                if path not in gone and not os.path.lexists(path):
                    gone.add(path)  # a training has deleted it meanwhile, and has a newer one
                    break
                problems.append(f"checkpoint {path}: cannot be read ({error.strerror})")
        else:
            return None, problems


def require_checkpoint(run_dir: Path, what: str) -> tuple[Path, list[str]]:
    """Return what `find_valid_checkpoint` does, with a file; `what` names the run at the beginning of the error."""
    path, problems = find_valid_checkpoint(run_dir)
    if path is None:
        raise RequestError(f"{what}: {describe_lack(run_dir, problems)}")
    return path, problems


def describe_lack(run_dir: Path, problems: list[str]) -> str:
    """Return why a run has no valid checkpoint; `problems` are those of `find_valid_checkpoint`."""
    is_open = may_access(run_dir, os.R_OK | os.X_OK)
    nothing = "no checkpoint found in it" if is_open else "may not be searched; change its permissions"
    return "; ".join(problems) or nothing


def has_valid_checksum(file: IO[bytes]) -> bool:
    """Tell whether an open file is a whole checkpoint, in little memory."""
    size = file.seek(0, io.SEEK_END) - _TRAILER_SIZE
    file.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(size, _CHUNK_SIZE))):
        digest.update(chunk)
        size -= len(chunk)
    return file.read() == MAGIC + digest.digest()


def set_damaged_aside(run_dir: Path, iteration: int) -> list[str]:
    """Rename the damaged checkpoints of a run that are newer than the one it is resumed from.

    Under its name such a file would count as one of those that --keep-checkpoints keeps. What cannot be read now may be
    readable later, and stays.
    """
    lines = []
    for path in list_checkpoints(run_dir):
        if checkpoint_iteration(path) <= iteration:
            break
        try:
            with open_regular(path) as file:
                if has_valid_checksum(file):
                    continue
            aside, number = path.with_name(f"{path.name}.damaged"), 1
            while aside.exists():
                number += 1
                aside = path.with_name(f"{path.name}.damaged-{number}")
            path.rename(aside)
        except OSError:
            continue
        lines.append(f"checkpoint {path.name} is damaged, and is now {aside.name}")
    return lines


def prune_checkpoints(run_dir: Path, keep: int | None, best: int | None = None, newest: int | None = None) -> None:
    """Delete all but the newest checkpoints of a run, and partial files of interrupted saves.

    The newest valid one always stays. Files of later iterations are neither counted nor deleted.

    Args:
        run_dir: The run. This process must be the one that writes its checkpoints.
        keep: How many to keep; None keeps all.
        best: Iteration of one more that is kept.
        newest: Iteration of the newest one that is known to be valid; None looks for it.
    """
    stale = list(run_dir.glob(".model_*.pt*.partial"))
    if keep is not None:
        if newest is None:
            valid = find_valid_checkpoint(run_dir)[0]
            newest = -1 if valid is None else checkpoint_iteration(valid)
        settled = [path for path in list_checkpoints(run_dir) if checkpoint_iteration(path) <= newest]
        stale += [path for path in settled[keep:] if checkpoint_iteration(path) != best]
    for path in stale:
        with contextlib.suppress(OSError):  # a stale file does no harm
            path.unlink()


@dataclass(frozen=True, kw_only=True)
class BestCheckpoint:
    """The best checkpoint of a run so far."""

    metric: str
    """Key in metrics.jsonl by which it is the best."""

    value: float
    iteration: int

    def to_json(self) -> bytes:
        """Return the content of best.json."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"


def parse_best(content: bytes) -> BestCheckpoint | None:
    """Read the content of best.json; None if it is damaged."""
    try:
        best = BestCheckpoint(**json.loads(content))
        is_valid = isinstance(best.iteration, int) and math.isfinite(best.value)  # no later value would be better
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return best if is_valid else None


def write_best(run_dir: Path, best: BestCheckpoint) -> None:
    """Record the best checkpoint of a run, atomically."""
    write_whole(run_dir / BEST_FILE, best.to_json())


def read_best(run_dir: Path) -> BestCheckpoint | None:
    """Return what is recorded about a run, if its file is still there; None if there is none."""
    try:
        best = parse_best(read_regular(run_dir / BEST_FILE))
    except OSError:
        return None
    return best if best is not None and checkpoint_path(run_dir, best.iteration).is_file() else None


def find_best(run_dir: Path, flag: str) -> Path:
    """Return the file of a run's best checkpoint."""
    best = read_best(run_dir)
    if best is None:
        raise RequestError(
            f"{flag}: no best checkpoint is recorded in {run_dir}; train with --eval-interval or --best-metric, or "
            "name a checkpoint such as model_300.pt"
        )
    return checkpoint_path(run_dir, best.iteration)
