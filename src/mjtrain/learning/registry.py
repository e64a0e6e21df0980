"""Which learning library learns: found by its name among those that installed packages register."""

import importlib.util
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from mjtrain.config import AgentConfig, LearnerConfig, TrainConfig
from mjtrain.config.type_check import show
from mjtrain.learning.library import GROUP, Library
from mjtrain.runtime.errors import RequestError, StoppedError, message_of, suggest
from mjtrain.runtime.machine import find_entry_points
from mjtrain.runtime.rank import RankContext

if TYPE_CHECKING:
    import torch

    from mjtrain.env.base import TaskEnv
    from mjtrain.learning.learner import Learner, Policy

_SEPARATELY_INSTALLED = {"skrl": "skrl", "skrl_sac": "skrl", "skrl_jax": "skrl-jax", "rl_games": "rl-games"}
"""Learners of the distribution mjtrain-learners, and its extras that bring their libraries."""


def list_learners() -> list[EntryPoint]:
    """Return the registered learners, sorted by name; nothing is imported."""
    return sorted(find_entry_points(GROUP), key=lambda entry: entry.name)


def find_library(name: str) -> Library:
    """Return a registered learning library, which must be installed; the library itself is not imported."""
    registered = {entry.name: entry for entry in list_learners()}
    if name not in registered:
        raise RequestError(f"--learner {name}: {_advise(name, list(registered))}")
    what = f"--learner {name}: {registered[name].value}"
    try:
        library: Library = registered[name].load()
    except StoppedError:
        raise
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise RequestError(f"{what} cannot be imported ({kind}{message_of(error)})") from error
    if isinstance(library, type):
        raise RequestError(f"{what} is a class; register an object of it")
    if missing := [part for part in _PARTS if not hasattr(library, part)]:
        raise RequestError(f"{what} lacks {', '.join(missing)}; see mjtrain.learning.Library")
    if isinstance(library.modules, str):
        raise RequestError(f"{what} has the modules {library.modules!r}; give a tuple, ({library.modules!r},)")
    for module in library.modules:
        if not _is_installed(module):
            raise RequestError(f'--learner {name}: needs {module}; pip install "{library.install}"')
    return library


_PARTS = ("modules", "install", "check", "make_learner", "make_policy")
"""What a `Library` has."""


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def _advise(name: str, registered: list[str]) -> str:
    if name in _SEPARATELY_INSTALLED:
        return f'is not installed; pip install "mjtrain-learners[{_SEPARATELY_INSTALLED[name]}]"'
    hint = suggest(name, [*registered, *_SEPARATELY_INSTALLED], "")
    return f"unknown learner{hint} (installed: {', '.join(registered)})"


def check_learner(config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:
    """Return the lines of `Library.check` for the learner of a training."""
    name = config.learner.name
    lines = find_library(name).check(config, world_size, device)
    if not isinstance(lines, Sequence) or isinstance(lines, str):
        raise RequestError(f"--learner {name}: its check returned {show(lines)}; it must return a list of lines")
    return tuple(lines)


def make_learner(context: RankContext, env: "TaskEnv", agent: AgentConfig, learner: LearnerConfig) -> "Learner":
    """Build what learns on this rank; with several ranks, the process group must be up."""
    _defer_imports()
    made = find_library(learner.name).make_learner(context, env, agent, learner.settings)
    if (name := getattr(made, "learner", learner.name)) != learner.name:
        raise RequestError(f"--learner {learner.name}: its TrainingLoop has the name {name}; give it {learner.name}")
    return made


def make_policy(
    agent: AgentConfig, learner: LearnerConfig, observations: "dict[str, torch.Tensor]", num_actions: int
) -> "Policy":
    """Build what was learned, with random weights until `load`, for observations by group, (num_envs, *shape) each.

    Raises:
        RequestError: The network asks for an observation group that the environment does not have.
    """
    _defer_imports()
    library = find_library(learner.name)
    for group in agent.obs_groups.get("actor", ()):
        if group not in observations:
            raise RequestError(f"--agent.obs-groups.actor {group}: the environment observes {', '.join(observations)}")
    return library.make_policy(agent, learner.settings, observations, num_actions)


def _defer_imports() -> None:
    """Make the imports of a library cheaper; this module itself imports no torch."""
    from mjtrain.learning.deferred_imports import defer_imports

    defer_imports()
