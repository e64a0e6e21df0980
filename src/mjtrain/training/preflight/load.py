"""Which file a training starts from with --load."""

from dataclasses import replace
from pathlib import Path

from mjtrain.config import TrainConfig
from mjtrain.runs.best_checkpoint import BEST, find_best
from mjtrain.runs.bundle import WEIGHTS
from mjtrain.runs.bundle_places import PRETRAINED, is_place, open_bundle
from mjtrain.runs.checkpoint import find_valid_checkpoint
from mjtrain.runs.trained_run import is_run
from mjtrain.runtime.errors import RequestError, require


def resolve_load(config: TrainConfig) -> TrainConfig:
    """Check --load, and replace a run, {run}/best or a shared policy by the file with its weights.

    Raises:
        RequestError: It is not there or damaged.
        OutsideError: The place of a shared policy cannot be reached.
    """
    place = config.run.load
    return config if place is None else replace(config, run=replace(config.run, load=str(_find_file(place, config))))


def _find_file(place: str, config: TrainConfig) -> Path:
    path, flag = Path(place), f"--load {place}"
    if place == PRETRAINED or is_place(place):
        require(flag, "share", "safetensors")
        return open_bundle(f"{PRETRAINED}:{config.task}" if place == PRETRAINED else place) / WEIGHTS
    if path.name == BEST and is_run(path.parent):
        path = find_best(path.parent, flag)
    elif is_run(path):
        found, problems = find_valid_checkpoint(path)
        if found is None:
            raise RequestError(f"{flag}: {'; '.join(problems) or 'the run has no checkpoint'}")
        path = found
    elif path.is_dir():
        raise RequestError(f"{flag}: is neither a run nor a shared policy; give one of them, or a file model_300.pt")
    if not path.is_file():
        raise RequestError(f"{flag}: no such file")
    return path


def note_load(asked: TrainConfig, resolved: TrainConfig) -> list[str]:
    """Say which file a --load means, and what a shared policy does not have."""
    place, file = asked.run.load, resolved.run.load
    if place is None or file is None or place == file:
        return []
    shared = "; a shared policy has no critic, which starts untrained" if Path(file).name == WEIGHTS else ""
    return [f"--load {place}: starts from {file}{shared}"]
