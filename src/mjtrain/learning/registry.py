"""Which learning library learns: found by its name among those that installed packages register."""

import importlib.util
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from mjtrain.config import AgentConfig, LearnerConfig, TrainConfig
from mjtrain.learning.library import GROUP, Library
from mjtrain.runtime.entry_points import find_entry_points
from mjtrain.runtime.errors import RequestError, suggest
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
    """Return a registered learning library; the library itself is not imported.

    Raises:
        RequestError: There is none of this name, or it is not installed; the message says what to install.
    """
    registered = {entry.name: entry for entry in list_learners()}
    if name not in registered:
        raise RequestError(f"--learner {name}: {_advise(name, list(registered))}")
    try:
        library: Library = registered[name].load()
    except (ImportError, AttributeError) as error:
        raise RequestError(f"--learner {name}: {registered[name].value} cannot be imported ({error})") from error
    for module in library.modules:
        if importlib.util.find_spec(module) is None:
            raise RequestError(f'--learner {name}: needs {module}; pip install "{library.install}"')
    return library


def _advise(name: str, registered: list[str]) -> str:
    if name in _SEPARATELY_INSTALLED:
        return f'is not installed; pip install "mjtrain-learners[{_SEPARATELY_INSTALLED[name]}]"'
    hint = suggest(name, [*registered, *_SEPARATELY_INSTALLED], "")
    return f"unknown learner{hint} (installed: {', '.join(registered)})"


def check_learner(config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:
    """Check that the learner can train what is asked for; arguments and errors as of `Library.check`.

    Returns:
        Lines that the user should see.
    """
    return tuple(find_library(config.learner.name).check(config, world_size, device))


def make_learner(context: RankContext, env: "TaskEnv", agent: AgentConfig, learner: LearnerConfig) -> "Learner":
    """Build what learns on this rank; with several ranks, the process group must be up."""
    _defer_imports()
    return find_library(learner.name).make_learner(context, env, agent, learner.settings)


def make_policy(
    agent: AgentConfig, learner: LearnerConfig, observations: "dict[str, torch.Tensor]", num_actions: int
) -> "Policy":
    """Build what was learned, with random weights until `load`.

    Args:
        observations: What the environment observes, by group; shape (num_envs, size) each.

    Raises:
        RequestError: The network reads an observation group that the environment does not have, or the library is not
            installed.
    """
    _defer_imports()
    return find_library(learner.name).make_policy(agent, learner.settings, observations, num_actions)


def _defer_imports() -> None:
    """Make the imports of a library cheaper; this module itself imports no torch."""
    from mjtrain.learning.deferred_imports import defer_imports

    defer_imports()
