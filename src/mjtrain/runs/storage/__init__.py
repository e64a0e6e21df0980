"""Checkpoints in object storage: `{url}/latest.json` names a complete object beside it.

Nothing here is imported by a run that has no --checkpoint-url and does not resume from a URL.
"""

from mjtrain.runs.storage.fetch import fetch_checkpoint, find_stored_iteration
from mjtrain.runs.storage.owner import TakenError, take_url
from mjtrain.runs.storage.store import (
    Storage,
    StorageError,
    StorageRefusedError,
    check_url,
    hide_query,
    is_url,
    local_folder,
    split_url,
)
from mjtrain.runs.storage.uploader import Uploader, UploadEvent

__all__ = [
    "Storage",
    "StorageError",
    "StorageRefusedError",
    "TakenError",
    "UploadEvent",
    "Uploader",
    "check_url",
    "fetch_checkpoint",
    "find_stored_iteration",
    "hide_query",
    "is_url",
    "local_folder",
    "split_url",
    "take_url",
]
