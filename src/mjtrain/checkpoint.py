"""Checkpoints on disk: whole or not there, and never code."""

import os
from pathlib import Path
from typing import Any

import torch

from mjtrain.errors import RequestError


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint; a file of that name is either the old one or the whole new one.

    Args:
        path: Where it goes.
        content: Tensors, numbers, strings, and lists and dictionaries of them.

    Raises:
        OSError: It could not be written; what was at the path before is still there.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_checkpoint(path: Path, device: str) -> dict[str, Any]:
    """Read a checkpoint without running any code it may carry.

    Args:
        path: The file.
        device: Where its tensors go.

    Raises:
        RequestError: There is no such file, or it is not a whole checkpoint of plain values.
    """
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise RequestError(f"checkpoint {path}: no such file") from None
    except Exception as error:  # whatever a broken archive makes of the reader
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise RequestError(f"checkpoint {path}: not a whole checkpoint of plain values ({reason})") from error
