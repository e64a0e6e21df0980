"""Tasks of mjlab's registry, with the agents that it has for them, and their environments."""

import contextlib
import dataclasses
import importlib.util
import io
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from mjtrain.config import AgentConfig, MjlabConfig, TaskConfig, from_plain, to_plain
from mjtrain.runtime.errors import RequestError, suggest

NUM_ENVS, NUM_ENVS_GPU = 64, 4096
"""Environments of a rank on a CPU and on a GPU. The registry has none: mjlab's own command asks for them."""

TAKEN = ("num_steps_per_env", "save_interval", "obs_groups", "actor", "critic", "algorithm")
"""Settings that are read. The others do not affect what is learned, such as where results go."""

OURS = {"PPO": "mjtrain.learning.rsl_rl.ppo:Ppo"}
"""Algorithms of RSL-RL, and mjtrain's that do the same over all ranks."""


def load_mjlab_task(name: str) -> TaskConfig:
    """Return the task `mjlab:NAME`."""
    label = f"mjlab:{name}"
    settings = load_registry(name).load_rl_cfg(name)
    return TaskConfig(
        env=MjlabConfig(task=name, clip_actions=settings.clip_actions),
        agent=to_agent(dataclasses.asdict(settings), label),
        num_envs=NUM_ENVS,
        num_envs_gpu=NUM_ENVS_GPU,
        max_iterations=settings.max_iterations,
    )


def load_registry(name: str) -> ModuleType:
    """Import mjlab and the packages that register tasks with it, and return its registry."""
    if importlib.util.find_spec("mjlab") is None:
        raise RequestError(
            f"task mjlab:{name}: mjlab is not installed; it needs an older MuJoCo than mjtrain's engines and so a "
            "separate environment, see docs/other-environments.md"
        )
    os.environ.setdefault("MJLAB_WARP_QUIET", "1")  # or each kernel that is loaded is a line
    try:
        with contextlib.redirect_stdout(sys.stderr):
            from mjlab.tasks import registry  # pyright: ignore[reportMissingImports]
    except Exception as error:  # of packages that register tasks, too
        said = " ".join(str(error).split())
        raise RequestError(
            f"task mjlab:{name}: mjlab cannot be imported here ({type(error).__name__}: {said}); "
            "docs/other-environments.md says what to install"
        ) from error
    names = registry.list_tasks()
    if name not in names:
        raise RequestError(f"task mjlab:{name}: mjlab has no such task{suggest(name, names)}")
    return registry


def to_agent(settings: Mapping[str, Any], label: str) -> AgentConfig:
    """Return the agent that RSL-RL's settings describe, such as those of mjlab's `RslRlOnPolicyRunnerCfg`."""
    plain = to_plain({name: settings[name] for name in TAKEN})
    algorithm = plain["algorithm"]
    algorithm["class_name"] = OURS.get(algorithm["class_name"], algorithm["class_name"])
    for network in ("actor", "critic"):  # None is for a network that has no such part
        kept = {name: value for name, value in plain[network].items() if value is not None}
        plain[network] = kept | {"distribution_cfg": plain[network]["distribution_cfg"]}
    try:
        return from_plain(AgentConfig, plain)
    except ValueError as error:
        raise RequestError(
            f"task {label}: {error}; it trains with an agent of yours, in a task with MjlabConfig"
        ) from error


def make_mjlab(config: MjlabConfig, num_envs: int, device: str, seed: int) -> Any:
    """Make the environments of a rank, as mjlab's own command does; they have RSL-RL's `VecEnv` contract."""
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
    parts: Mapping[str, Any] = {}
    if isinstance(found, Mapping):
        parts = found
    elif dataclasses.is_dataclass(found):
        parts = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    if part not in parts:
        raise RequestError(f"{flag}: {type(found).__name__} has no {part}; it has {', '.join(parts) or 'no parts'}")
    return parts
