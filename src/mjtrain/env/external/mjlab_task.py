"""Tasks of mjlab's registry, with the agents that it has for them."""

import contextlib
import dataclasses
import importlib.util
import os
import sys
from types import ModuleType

from mjtrain.config import MjlabConfig, TaskConfig
from mjtrain.env.external.rsl_rl_settings import to_agent
from mjtrain.runtime.errors import RequestError, suggest

NUM_ENVS, NUM_ENVS_GPU = 64, 4096
"""Environments of a rank on a CPU and on a GPU. The registry has none: mjlab's own command asks for them."""


def load_mjlab_task(name: str) -> TaskConfig:
    """Return the task `mjlab:NAME`.

    Raises:
        RequestError: mjlab is missing or cannot be imported, has no such task, or has settings for its agent that have
            no counterpart here.
    """
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
            f"task mjlab:{name}: mjlab is not installed; it needs an older MuJoCo than mjtrain's engines and so an "
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
