"""Environments of mjlab's tasks, made as mjlab's own command makes them."""

import contextlib
import dataclasses
import io
from collections.abc import Mapping
from typing import Any

from mjtrain.config import MjlabConfig
from mjtrain.env.external.mjlab_task import load_registry
from mjtrain.runtime.errors import RequestError


def make_mjlab(config: MjlabConfig, num_envs: int, device: str, seed: int) -> Any:
    """Make the environments of a rank.

    Returns:
        An object with RSL-RL's `VecEnv` contract.
    """
    settings = read_env_config(config)
    from mjlab.envs import ManagerBasedRlEnv  # pyright: ignore[reportMissingImports]
    from mjlab.rl import RslRlVecEnvWrapper  # pyright: ignore[reportMissingImports]

    settings.scene.num_envs, settings.seed = num_envs, seed
    with contextlib.redirect_stdout(io.StringIO()):  # tables of all terms
        env = ManagerBasedRlEnv(settings, device=device)
    return RslRlVecEnvWrapper(env, clip_actions=config.clip_actions)


def read_env_config(config: MjlabConfig) -> Any:
    """Return mjlab's config of the environments, with what is changed."""
    settings = load_registry(config.task).load_env_cfg(config.task)
    for path, value in config.kwargs.items():
        _change(settings, path, value)
    return settings


def _change(settings: Any, path: str, value: Any) -> None:
    """Set a field by its path, through dataclasses and dictionaries."""
    flag = f"--env.kwargs.{path}"
    *parents, last = path.split(".")
    found = settings
    for part in parents:
        found = _parts(found, part, flag)[part]
    present = _parts(found, last, flag)[last]
    if isinstance(present, float) and type(value) is int:
        value = float(value)
    if present is not None and type(value) is not type(present):
        raise RequestError(f"{flag} {value}: give a {type(present).__name__}, as {present} is")
    if isinstance(found, dict):
        found[last] = value
    else:
        setattr(found, last, value)


def _parts(found: Any, part: str, flag: str) -> Mapping[str, Any]:
    """Return the parts of a config by name, which has one of this name."""
    parts: Mapping[str, Any] = {}
    if isinstance(found, Mapping):
        parts = found
    elif dataclasses.is_dataclass(found):
        parts = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    if part not in parts:
        raise RequestError(f"{flag}: {type(found).__name__} has no {part}; it has {', '.join(parts) or 'no parts'}")
    return parts
