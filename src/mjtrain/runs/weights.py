"""The weights of a policy as a safetensors file: tensors by name, and plain values in its header."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjtrain.runs.bundle import WEIGHTS
from mjtrain.runs.checkpoint import CheckpointError, load_checkpoint
from mjtrain.runtime.errors import require
from mjtrain.runtime.files import write_whole

_KEY = "mjtrain"
"""Key of the plain values in the header, as JSON."""


def write_weights(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors and plain values, in nested mappings."""
    require("weights to share", "share", "safetensors")
    from safetensors.torch import save

    tensors: dict[str, Any] = {}
    plain = _take_tensors(content, "", tensors)
    write_whole(path, save(tensors, {_KEY: json.dumps(plain)}))


def _take_tensors(content: Mapping[str, Any], prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the plain values of a mapping; its tensors go to `tensors`, under the path of their names."""
    plain = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            plain[key] = _take_tensors(value, f"{prefix}{key}/", tensors)
        elif hasattr(value, "numel"):
            tensors[prefix + key] = value.detach().cpu().contiguous().clone()
        else:
            plain[key] = value
    return plain


def read_networks(path: Path, device: str) -> dict[str, Any]:
    """Return the content of a checkpoint, or of the weights of a shared policy; errors as those of either."""
    return (read_weights if path.name == WEIGHTS else load_checkpoint)(path, device)


def read_weights(path: Path, device: str) -> dict[str, Any]:
    """Read what `write_weights` wrote, with the tensors on a torch device; another file is a CheckpointError."""
    require(f"policy {path.name}", "share", "safetensors")
    from safetensors import safe_open

    try:
        with safe_open(path, "pt", device=device) as file:
            content = json.loads((file.metadata() or {})[_KEY])
            for name in list(file.keys()):
                *folders, last = name.split("/")
                place = content
                for folder in folders:
                    place = place[folder]
                place[last] = file.get_tensor(name)
    except Exception as error:  # the library has its own
        raise CheckpointError(f"policy {path}: is not a file of weights ({error})") from error
    return content
