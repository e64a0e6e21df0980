"""Which file a training starts from with --load."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mjtrain.config import DEFAULT_LEARNER, AuxiliaryConfig, TrainConfig
from mjtrain.learning.library import make_policy
from mjtrain.runs.bundle import WEIGHTS, read_networks
from mjtrain.runs.bundle_places import PRETRAINED, is_place, open_bundle
from mjtrain.runs.checkpoint import (
    BEST,
    CheckpointError,
    check_recorded_learner,
    find_best,
    hold_checkpoint,
    is_there,
    require_checkpoint,
    taking_apart,
)
from mjtrain.runs.resume import is_resumed
from mjtrain.runs.run_dir import read_params
from mjtrain.runs.storage.store import hide_query
from mjtrain.runs.trained_run import is_run
from mjtrain.runtime.errors import OutsideError, RequestError, require


def resolve_load(config: TrainConfig) -> TrainConfig:
    """Check --load and --load-critic, and replace a run, {run}/best or a shared policy by the file with its weights.

    A requeued job that finds its own run, here or at --checkpoint-url, needs neither, so they may be gone.

    Raises:
        RequestError: It is not there or damaged, or the learner cannot take a critic from elsewhere.
        OutsideError: The place of a shared policy cannot be reached.
    """
    try:
        return _resolve_load(config)
    except (RequestError, OutsideError):
        if not is_resumed(config):
            raise
        return config


def _resolve_load(config: TrainConfig) -> TrainConfig:
    run = config.run
    if run.load_critic is not None and config.learner.name != DEFAULT_LEARNER:
        learner = config.learner.name
        raise RequestError(f"--load-critic: is not supported by --learner {learner}; use --learner {DEFAULT_LEARNER}")
    asked = {"load": run.load, "load_critic": run.load_critic}
    places = {field: place for field, place in asked.items() if place is not None}
    flags = {field: f"--{field.replace('_', '-')} {hide_query(place)}" for field, place in places.items()}
    files = {field: str(_find_file(place, flags[field], config)) for field, place in places.items()}
    if Path(files.get("load", "")).name == WEIGHTS and config.learner.name != DEFAULT_LEARNER:
        raise RequestError(
            f"{flags['load']}: is a shared policy, which has no critic, and --learner {config.learner.name} needs "
            f"one; give a run, or use --learner {DEFAULT_LEARNER}"
        )
    if Path(files.get("load_critic", "")).name == WEIGHTS:
        raise RequestError(f"{flags['load_critic']}: a shared policy has no critic; give a run that learned by PPO")
    for file in map(Path, files.values()):
        check_recorded_learner(read_networks(file, "cpu"), file, config.learner.name)
    return replace(config, run=replace(run, **files)) if files else config


def _find_file(place: str, flag: str, config: TrainConfig) -> Path:
    path = Path(place)
    if place == PRETRAINED or is_place(place):
        require(flag, "share", "safetensors")
        return open_bundle(f"{PRETRAINED}:{config.task}" if place == PRETRAINED else place) / WEIGHTS
    if path.name == BEST and is_run(path.parent):
        path = find_best(path.parent, flag)
    elif is_run(path):
        path, _ = require_checkpoint(path, flag)
    elif path.is_dir():
        raise RequestError(f"{flag}: is neither a run nor a shared policy; give one of them, or a file model_300.pt")
    hold_checkpoint(path)  # a training that still writes there may delete it before it is read
    if not is_there(path):
        raise RequestError(f"{flag}: no such file")
    return path


def check_actor(config: TrainConfig, shapes: Mapping[str, tuple[int, ...]], num_actions: int) -> None:
    """Compare the sizes of the actor in the file of --load with this run's; the ranks compare the other networks.

    Shapes are those of one environment, by group.
    """
    if config.run.load is None or is_resumed(config):
        return
    import torch

    from mjtrain.runtime.worker import same_random_numbers

    file, observations = Path(config.run.load), {name: torch.zeros(1, *shape) for name, shape in shapes.items()}
    agent = config.agent
    if agent.supervised_group:  # by a head, which the file need not have
        agent = replace(agent, algorithm=replace(agent.algorithm, auxiliary_cfg=AuxiliaryConfig()))
    with same_random_numbers("cpu"):
        actor = make_policy(agent, config.learner, observations, num_actions)
    with taking_apart(read_networks(file, "cpu"), file) as parts:
        try:
            actor.load(parts, file)
        except CheckpointError as error:
            actor_there = read_params(file.parent, "agent").get("actor")
            dims = actor_there.get("hidden_dims") if isinstance(actor_there, dict) else None
            right = "the actor and the observations that it was trained with"
            if isinstance(dims, list) and tuple(dims) != tuple(config.agent.actor.hidden_dims):
                right = f"--agent.actor.hidden-dims {' '.join(map(str, dims))}, or another file"
            raise RequestError(f"--load: {error}; give {right}") from error


def note_load(asked: TrainConfig, resolved: TrainConfig) -> list[str]:
    """Say which file --load and --load-critic mean, and what a shared policy does not have."""
    lines = []
    for flag, place, file in (
        ("load", asked.run.load, resolved.run.load),
        ("load-critic", asked.run.load_critic, resolved.run.load_critic),
    ):
        if place is None or file is None or place == file:
            continue
        untrained = Path(file).name == WEIGHTS and asked.run.load_critic is None
        shared = "; a shared policy has no critic, which starts untrained" if untrained else ""
        lines.append(f"--{flag} {hide_query(place)}: starts from {file}{shared}")
    return lines
