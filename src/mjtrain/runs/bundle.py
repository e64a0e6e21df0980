"""A policy as files that can be passed on: network, weights, robot, settings, a card and a list of hashes.

Its settings and its robot lie where a run directory has them, so it is played like a run. Nothing in it is code: what
`bundle.json` does not list is not looked at, and what it lists has a kind that only parsers of data read.
"""

import hashlib
import json
import os.path
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from mjtrain.config import DEFAULT_LEARNER
from mjtrain.env.catalog import CUSTOM
from mjtrain.runs.checkpoint import CheckpointError, check_content, load_checkpoint
from mjtrain.runs.run_dir import parse_yaml
from mjtrain.runtime.errors import RequestError, require
from mjtrain.runtime.files import write_whole

FORMAT = 1
"""Increased whenever a reader of the older format would misread the newer one."""

MANIFEST, CARD, ONNX, METADATA = "bundle.json", "README.md", "policy.onnx", "policy.json"
WEIGHTS = "policy.safetensors"

MAX_FILES, MAX_BYTES, MAX_MANIFEST_BYTES = 2000, 512 << 20, 1 << 20

_FIXED = {
    CARD,
    ONNX,
    METADATA,
    WEIGHTS,
    *(f"params/{name}.yaml" for name in ("env", "agent", "learner", "launch", "data")),
}
_SUFFIXES = {
    "robot": {".xml", ".mjcf", ".stl", ".obj", ".msh", ".skn", ".bin", ".png", ".ktx"},
    "data": {".npz", ".npy", ".csv", ".txt", ".json", ".yaml", ".yml"},
}

Read = Callable[[str, int], bytes]
"""Returns the content of a file by its name in the bundle; of a larger one than the given size an error, or more bytes
than that."""

_KEY = "mjtrain"
"""Key of the plain values in the header, as JSON."""

_CONDITIONS = ("num_envs", "episodes", "seed", "engine", "noise", "pushes", "randomization")
_FIGURES = ("reward", "length", "errors", "successes", "terminations")


class BundleError(RequestError):
    """A bundle is not complete or not allowed."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a bundle consists of."""

    task: str
    """Task of the policy, as its run recorded it."""

    files: Mapping[str, tuple[str, int]]
    """SHA-256 and size of each file by its name."""

    digest: str
    """SHA-256 of the list itself."""


def write_manifest(folder: Path, task: str) -> None:
    """List the files of a bundle, as its last file; raises a BundleError if one must not be in a bundle."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    contents = {name: (folder / name).read_bytes() for name in names}
    files = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in contents.items()
    }
    text = json.dumps({"format": FORMAT, "task": task, "files": files}, indent=1) + "\n"
    _check(parse_manifest(text.encode(), str(folder)), contents, str(folder))
    write_whole(folder / MANIFEST, text)


def parse_manifest(data: bytes, place: str) -> Manifest:
    """Read bundle.json, or raise a BundleError that names the place: it is damaged, or lists what must not be there."""
    try:
        content = json.loads(data[: MAX_MANIFEST_BYTES + 1])
        number, task = content["format"], str(content["task"])
        files = {name: (str(entry["sha256"]), int(entry["size"])) for name, entry in content["files"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BundleError(f"{place}: {MANIFEST} is not the list of a policy's files") from error
    if number != FORMAT:
        raise BundleError(f"{place}: has format {number!r}; this version reads format {FORMAT}")
    for name, (digest, size) in files.items():
        if not is_allowed(name):
            raise BundleError(f"{place}: {name!r} must not be in a policy bundle")
        if not re.fullmatch(r"[0-9a-f]{64}", digest) or size < 0:
            raise BundleError(f"{place}: {MANIFEST} has no valid hash and size of {name}")
    if len(files) > MAX_FILES or sum(size for _, size in files.values()) > MAX_BYTES:
        raise BundleError(f"{place}: lists more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB")
    missing = {CARD, WEIGHTS, "params/env.yaml", "params/agent.yaml", "params/launch.yaml"} - files.keys()
    if missing:
        raise BundleError(f"{place}: lists no {min(missing)}; it is not a policy bundle")
    return Manifest(task=task, files=files, digest=hashlib.sha256(data).hexdigest())


def is_allowed(name: str) -> bool:
    """Whether a file of this name may be in a bundle: a relative path in one of its folders, of a known kind."""
    path = PurePosixPath(name)
    if name in _FIXED:
        return True
    is_plain = name.isprintable() and "\\" not in name and ":" not in name and len(name.encode()) <= 250
    is_below = str(path) == name and len(path.parts) > 1 and not any(part.startswith(".") for part in path.parts)
    return is_plain and is_below and path.suffix.lower() in _SUFFIXES.get(name.partition("/")[0], ())


def fetch_bundle(manifest: Manifest, read: Read, place: str, folder: Path) -> None:
    """Write the files of a bundle that the list names, if all of them are as it says, into a new, empty folder.

    Settings or a robot that refer to files outside are refused. What `read` returns is not trusted.
    """
    contents = {}
    for name, (digest, size) in manifest.files.items():
        content = read(name, size)
        if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
            raise BundleError(f"{place}: {name} is not the file that {MANIFEST} lists; get it again, or tell its maker")
        contents[name] = content
    _check(manifest, contents, place)
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _check(manifest: Manifest, contents: Mapping[str, bytes], place: str) -> None:
    """Raise a BundleError if settings or robot name files that are not in the bundle."""
    from mjtrain.sim.robots.robot_bundle import RobotBundleError, list_references

    def parse(name: str) -> Any:
        try:
            content = parse_yaml(contents.get(f"params/{name}.yaml", b"{}"))
        except Exception as error:  # YAML has several errors
            raise BundleError(f"{place}: params/{name}.yaml is not valid YAML ({error})") from error
        if not isinstance(content, dict):
            raise BundleError(f"{place}: params/{name}.yaml holds no settings by their names")
        return content

    env, data = parse("env"), parse("data")
    robot = env.get("robot")
    file = robot.get("file") if isinstance(robot, dict) else None
    if robot is not None and (file not in manifest.files or not str(file).startswith("robot/")):
        raise BundleError(f"{place}: its robot is {file!r}, which is not one of its files")
    for kept in data.values():
        copy = kept.get("copy") if isinstance(kept, dict) else None
        if not isinstance(copy, str) or not any(f"{name}/".startswith(f"{copy}/") for name in manifest.files):
            raise BundleError(f"{place}: its data is {copy!r}, which is not one of its files")
    for text in _list_texts([env, list(data)]):
        if text.startswith(("/", "~")) or ".." in PurePosixPath(text).parts:
            raise BundleError(f"{place}: params/env.yaml names {text!r}, a file outside of it")
    for name in manifest.files:
        if name.startswith("robot/") and name.lower().endswith((".xml", ".mjcf")):
            try:
                references = list_references(contents[name], f"{place}/{name}")
            except RobotBundleError as error:
                raise BundleError(str(error)) from error
            for reference in references:
                if os.path.normpath(f"{PurePosixPath(name).parent}/{reference}") not in manifest.files:
                    raise BundleError(f"{place}: {name} names {reference!r}, which is not one of its files")


def _list_texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return [text for item in value for text in _list_texts(item)]
    return [value] if isinstance(value, str) else []


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
    return check_content(content, f"policy {path}")


def write_card(
    folder: Path,
    launch: Mapping[str, Any],
    content: Mapping[str, Any],
    figures: Mapping[str, Any] | None,
    license_name: str | None,
) -> None:
    """Write README.md, the card: what the policy is and how good, for readers and, in its front matter, for programs.

    Args:
        launch: Content of its params/launch.yaml; `content` is that of its weights.
        figures: What `play` reported; None for no figures.
        license_name: SPDX identifier; None for none.
    """
    task, packages = launch["task"], launch["packages"]
    is_custom = task == CUSTOM  # no command finds it by this name
    learner = content.get("learner", DEFAULT_LEARNER)
    given = {**launch["run"], "seed": launch["seed"], "learner": None if learner == DEFAULT_LEARNER else learner}
    flags = "".join(f" --{name.replace('_', '-')} {value}" for name, value in given.items() if value is not None)
    front: dict[str, Any] = {
        "library_name": "mjtrain",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "robotics", "mujoco", task],
        **({} if license_name is None else {"license": license_name}),
        "task": task,
        **({} if is_custom else {"command": f"mjtrain train {task}{flags}"}),
        "trained": {"iterations": content.get("iter"), "learner": learner},
        "versions": {name: packages[name] for name in ("mjtrain", "mujoco", "torch") if name in packages},
    }
    body = (
        f"# {task}\n\nA policy that mjtrain trained. `SOURCE` is where this folder is: a path, or a URL.\n\n"
        f"```sh\nmjtrain play {'' if is_custom else f'{task} --policy '}SOURCE\nmjtrain deploy SOURCE\n```\n"
    )
    if figures is not None:
        conditions, play = {key: figures[key] for key in _CONDITIONS}, f"mjtrain play {'SOURCE' if is_custom else task}"
        shown = {key: _round(figures[key]) for key in _FIGURES if figures.get(key)}
        metric = {"type": "mean_reward", "value": _round(figures["reward"]["mean"]), "name": "mean return"}
        kind = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
        result = {"task": kind, "dataset": {"name": task, "type": task}, "metrics": [metric]}
        front["judge"] = {"command": play, **conditions}
        front["figures"] = shown
        front["model-index"] = [{"name": task, "results": [result]}]  # as the Hugging Face Hub lists results
        rows = "\n".join(_list_rows(shown))
        measured = ", ".join(f"{key} {json.dumps(value)}" for key, value in conditions.items())
        body += f"\n| figure | value |\n|---|---|\n{rows}\n\nMeasured by `{play}`:\n{measured}.\n"
    header = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)
    (folder / CARD).write_text(f"---\n{header}---\n\n{body}", encoding="utf-8")


def _round(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _round(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _list_rows(figures: Mapping[str, Any], prefix: str = "") -> list[str]:
    rows = []
    for name, value in figures.items():
        if not isinstance(value, Mapping):
            rows.append(f"| {prefix}{name} | {value} |")
        elif "mean" in value:
            unit = f" {value['unit']}" if value.get("unit") else ""
            rows.append(f"| {prefix}{name} | {value['mean']:g} ± {value.get('std', 0):g}{unit} |")
        elif "fraction" in value:
            rows.append(f"| {prefix}{name} | {100 * value['fraction']:g} % of episodes |")
        else:
            rows += _list_rows(value, f"{prefix}{name}/")
    return rows
