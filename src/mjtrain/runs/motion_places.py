"""Motions that are not files of this machine: fetched once into a cache, and read from there by all ranks."""

import hashlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mjtrain.config import CommandTerm, EnvConfig, TrainConfig
from mjtrain.runs.bundle_places import SCHEMES, cache_dir, read_file
from mjtrain.runs.sources import replace_data
from mjtrain.runs.storage.store import hide_query, is_url, split_url
from mjtrain.runs.wandb_artifact import fetch_from_artifact
from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.runtime.files import write_whole

_WANDB = "wandb://"
_PACKAGE = "package://"
_REGISTRY = re.compile(r"([^/:]+/)?wandb-registry-[^/:]+/[^/:]+(:[^/:]+)?")
_ARTIFACT = re.compile(r"[^/:]+/[^/:]+/[^/:]+(:[^/:]+)?")
_FIXED = re.compile(r".*:v\d+")
_READS_MOTION = ("mjtrain.mdp.tracking", "motion_command")


def resolve_motions(
    env: Any, kept: Mapping[str, str] | None = None, *, again: bool = True
) -> tuple[Any, dict[str, str]]:
    """Let every motion command of an environment read a file: what its `file` names by a place is fetched.

    Args:
        kept: Copies that a run has, by `name_place`; these places are not asked.
        again: See `find_motion`, whose errors this raises.

    Returns:
        The environment; and the files by `name_place`.
    """
    files: dict[str, str] = {}
    for command, place in list_places(env):
        try:
            files[place] = (kept or {}).get(name_place(place)) or str(find_motion(place, again=again))
        except (RequestError, OutsideError) as error:
            raise type(error)(f"--env.commands.{command}.params.file {error}") from error
    return (replace_data(env, files) if files else env), {name_place(place): file for place, file in files.items()}


def with_place_names(env: Any) -> Any:
    """Return an environment as a run records it: with the names of places, as `name_place` gives them."""
    names = {place: name_place(place) for _, place in list_places(env)}
    return replace_data(env, names) if names else env


def list_places(env: Any) -> Iterator[tuple[str, str]]:
    """Yield command and place of each motion that is not named by a path."""
    for name, command in _motion_commands(env):
        file = command.params.get("file")
        if isinstance(file, str) and is_motion_place(file):
            yield name, file


def _motion_commands(env: Any) -> Iterator[tuple[str, CommandTerm]]:
    for name, command in env.commands.items() if isinstance(env, EnvConfig) else ():
        if (getattr(command.func, "__module__", ""), getattr(command.func, "__name__", "")) == _READS_MOTION:
            yield name, command


def use_motion(config: TrainConfig) -> TrainConfig:
    """Move the motion of --motion, if there is one, to all commands that follow one; it may hold a key."""
    motion = config.run.motion
    if motion is None:
        return config
    found = {
        name: command.replace(params={**command.params, "file": motion})
        for name, command in _motion_commands(config.env)
    }
    if not found:
        raise RequestError(f"--motion {name_place(motion)}: {config.task} imitates no motion; leave it out")
    if not is_motion_place(motion) and not Path(motion).exists():
        raise RequestError(f"--motion {motion}: no such file")
    env = replace(config.env, commands={**config.env.commands, **found})
    return replace(config, env=env, run=replace(config.run, motion=None))


def name_place(place: str) -> str:
    """Return a place as runs record it and as it is printed. A query, which may be a key, becomes its hash."""
    shown = hide_query(place)
    return shown if shown == place else f"{shown}?{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def is_motion_place(text: str) -> bool:
    """Return whether a text names a motion by a URL, or by its name in a registry of W&B, and not by a path."""
    return is_url(text) or (_REGISTRY.fullmatch(text) is not None and not Path(text).exists())


def find_motion(place: str, *, again: bool = True) -> Path:
    """Return the path of a motion's file; what no package has is fetched into ~/.cache/mjtrain/motions.

    The name of the folder there depends on the content, so a file that a run reads is never replaced.

    Args:
        again: Fetch it although one was fetched from this place before. A version of an artifact, such as v3, cannot
            change, so it never is.

    Raises:
        OutsideError: The place cannot be reached.
    """
    if not is_motion_place(place):
        return Path(place)
    if place.startswith(_PACKAGE):
        return _find_in_package(place)
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
        raise RequestError(
            f"{hide_query(place)}: cannot be kept in {cache} ({error.strerror}); set XDG_CACHE_HOME"
        ) from error
    return path


def _find_in_package(place: str) -> Path:
    """Return the path of a file that an installed package has; nothing of the package is run."""
    name, _, inside = place.removeprefix(_PACKAGE).partition("/")
    found = importlib.util.find_spec(name) if name.isidentifier() and name != "__main__" else None
    if found is None or not found.submodule_search_locations:
        raise RequestError(f"{place}: package {name or 'NAME'} is not installed; give package://NAME/path/in/it")
    for folder in map(Path, found.submodule_search_locations):
        path = folder / inside
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            return path
    raise RequestError(f"{place}: the package {name} has no file {inside}")


def _is_artifact(place: str) -> bool:
    return place.startswith(_WANDB) or not is_url(place)


def _fetch(place: str) -> tuple[str, bytes]:
    from mjtrain.motion.files import MAX_MIB, SUFFIXES  # imports MuJoCo

    size = MAX_MIB << 20
    if _is_artifact(place):
        name = place.removeprefix(_WANDB)
        if not _ARTIFACT.fullmatch(name) and not _REGISTRY.fullmatch(name):
            raise RequestError(f"{place}: give wandb://entity/project/name:version, or wandb-registry-motions/name")
        return fetch_from_artifact(place, name if ":" in name else f"{name}:latest", size)
    parts, shown = split_url(place), hide_query(place)
    scheme, name = parts.scheme, Path(unquote(parts.path)).name
    if scheme not in SCHEMES:
        known = ", ".join((*SCHEMES, "package", "wandb"))
        raise RequestError(f"{scheme}://…: motions are not read from there; give a path, or a URL of {known}")
    if Path(name).suffix not in SUFFIXES:
        raise RequestError(f"{shown}: is not a motion; give a file that ends in {', '.join(SUFFIXES)}")
    content = read_file(place, size)
    if len(content) > size:
        raise RequestError(f"{shown}: is larger than {MAX_MIB} MiB")
    return name, content
