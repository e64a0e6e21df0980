"""Motions that commands name by a place are fetched before ranks start."""

from collections.abc import Iterator
from dataclasses import replace

from mjtrain.config import EnvConfig, TrainConfig
from mjtrain.runs.motion_places import find_motion, is_motion_place
from mjtrain.runtime.errors import OutsideError, RequestError


def resolve_motions(config: TrainConfig) -> TrainConfig:
    """Replace each place that the parameter `file` of a command names by the file that was fetched from there.

    Raises:
        RequestError: The place has no such motion.
        OutsideError: The place cannot be reached.
    """
    env = config.env
    if not isinstance(env, EnvConfig):
        return config
    commands = dict(env.commands)
    for name, place in _list_places(env):
        params = {**commands[name].params, "file": _find(f"--env.commands.{name}.params.file", place, config)}
        commands[name] = replace(commands[name], params=params)
    return replace(config, env=replace(env, commands=commands)) if commands != env.commands else config


def _find(flag: str, place: str, config: TrainConfig) -> str:
    try:
        return str(find_motion(place, again=config.run.resume is None))
    except (RequestError, OutsideError) as error:
        raise type(error)(f"{flag} {error}") from error


def note_motions(asked: TrainConfig, resolved: TrainConfig) -> list[str]:
    """Say which file is read for each place."""
    if not isinstance(asked.env, EnvConfig):
        return []
    files = {name: resolved.env.commands[name].params["file"] for name, _ in _list_places(asked.env)}
    return [f"motion {place}: read from {files[name]}" for name, place in _list_places(asked.env)]


def _list_places(env: EnvConfig) -> Iterator[tuple[str, str]]:
    for name, command in env.commands.items():
        file = command.params.get("file")
        if isinstance(file, str) and is_motion_place(file):
            yield name, file
