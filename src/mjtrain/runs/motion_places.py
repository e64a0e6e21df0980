"""Motions that are not files of this machine: fetched once into a cache, and read from there by all ranks."""

import hashlib
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mjtrain.runs.bundle_places import SCHEMES, cache_dir, read_file
from mjtrain.runs.storage import is_url
from mjtrain.runs.wandb_artifact import fetch_from_artifact
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import write_whole

_WANDB = "wandb://"
_REGISTRY = re.compile(r"([^/:]+/)?wandb-registry-[^/:]+/[^/:]+(:[^/:]+)?")
_ARTIFACT = re.compile(r"[^/:]+/[^/:]+/[^/:]+(:[^/:]+)?")
_FIXED = re.compile(r".*:v\d+")


def is_motion_place(text: str) -> bool:
    """Return whether a text names a motion by a URL, or by its name in a registry of W&B, and not by a path."""
    return is_url(text) or (_REGISTRY.fullmatch(text) is not None and not Path(text).exists())


def find_motion(place: str, *, again: bool = True) -> Path:
    """Return the path of a motion's file; what is not a path is fetched into ~/.cache/mjtrain/motions.

    The name of the folder there depends on the content, so a file that a run reads is never replaced.

    Args:
        again: Fetch it although one was fetched from this place before. A version of an artifact, such as v3, cannot
            change, so it never is.

    Raises:
        RequestError: The place has no such motion, or it is too large.
        OutsideError: The place cannot be reached.
    """
    if not is_motion_place(place):
        return Path(place)
    cache = cache_dir("motions")
    index = cache / "places" / hashlib.sha256(place.encode()).hexdigest()
    try:
        is_enough = not again or (_is_artifact(place) and _FIXED.fullmatch(place))
        if is_enough and index.is_file() and (known := cache / index.read_text()).is_file():
            return known
        name, content = _fetch(place)
        path = cache / hashlib.sha256(content).hexdigest()[:16] / name
        for file, data in ((path, content), (index, str(path.relative_to(cache)).encode())):
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(file, data)
    except OSError as error:
        raise RequestError(f"{place}: cannot be kept in {cache} ({error.strerror}); set XDG_CACHE_HOME") from error
    return path


def _is_artifact(place: str) -> bool:
    return place.startswith(_WANDB) or not is_url(place)


def _fetch(place: str) -> tuple[str, bytes]:
    """Return name and content of a motion's file."""
    from mjtrain.motion.files import SUFFIXES  # imports MuJoCo
    from mjtrain.motion.npz import MAX_MIB

    size = MAX_MIB << 20
    if _is_artifact(place):
        name = place.removeprefix(_WANDB)
        if not _ARTIFACT.fullmatch(name) and not _REGISTRY.fullmatch(name):
            raise RequestError(f"{place}: give wandb://entity/project/name:version, or wandb-registry-motions/name")
        return fetch_from_artifact(place, name if ":" in name else f"{name}:latest", ".npz", size)
    scheme, name = urlsplit(place).scheme, Path(unquote(urlsplit(place).path)).name
    if scheme not in SCHEMES:
        known = ", ".join((*SCHEMES, "wandb"))
        raise RequestError(f"{scheme}://…: motions are not read from there; give a path, or a URL of {known}")
    if Path(name).suffix not in SUFFIXES:
        raise RequestError(f"{place}: is not a motion; give a file that ends in {', '.join(SUFFIXES)}")
    content = read_file(place, size)
    if len(content) > size:
        raise RequestError(f"{place}: is larger than {MAX_MIB} MiB")
    return name, content
