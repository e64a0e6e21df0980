"""Learning libraries: what a package registers, which one is found by its name, and cheaper imports of all.

`import tensordict` and the first step of a torch optimizer import torch._dynamo, which takes longer than torch itself,
only to say how the compiler is to treat some of their functions. As long as nothing is compiled, it is enough to
remember what they said.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from mjtrain.config import DEFAULT_LEARNER, AgentConfig, LearnerConfig, TrainConfig
from mjtrain.config.limits import show
from mjtrain.runtime.deferred_imports import DeferredImport, defer_import
from mjtrain.runtime.errors import RequestError, StoppedError, message_of, suggest
from mjtrain.runtime.machine import find_entry_points
from mjtrain.runtime.rank import RankContext

if TYPE_CHECKING:
    import torch

    from mjtrain.env.base import TaskEnv
    from mjtrain.learning.learner import Policy
    from mjtrain.learning.loop import TrainingLoop

_GROUP = "mjtrain.learners"
"""Entry-point group in which a package registers learning libraries: name -> module:object."""

_SEPARATELY_INSTALLED = {"skrl": "skrl", "skrl_sac": "skrl", "skrl_jax": "skrl-jax", "rl_games": "rl-games"}
"""Learners of the distribution mjtrain-learners, and its extras that bring their libraries."""

_PARTS = ("modules", "install", "check", "make_learner", "make_policy")
"""What a `Library` has."""


class Library(Protocol):
    """A learning library that is registered in the entry-point group `mjtrain.learners`.

    Its module is imported by every command that trains or plays with it, so it imports the library itself, and torch,
    in its methods only.
    """

    modules: Sequence[str]
    """Modules that must be there, by the names that `import` takes."""

    install: str
    """What installs them, such as "mjtrain-learners[skrl]"; follows `pip install`."""

    def check(self, config: TrainConfig, world_size: int, device: str) -> Sequence[str]:
        """Check, without importing the library, that it can train what is asked for.

        Args:
            config: The training, with the environments of one rank. `config.learner.settings` are the library's own.
            world_size: Ranks of the job.
            device: Torch device of the first rank.

        Returns:
            A line for each setting of the agent that has no counterpart in the library and does no harm.

        Raises:
            RequestError: A setting has no counterpart; the message names the flag.
        """
        ...

    def make_learner(
        self, context: RankContext, env: "TaskEnv", agent: AgentConfig, settings: Mapping[str, Any]
    ) -> "TrainingLoop":
        """Build what learns; see `make_learner`."""
        ...

    def make_policy(
        self,
        agent: AgentConfig,
        settings: Mapping[str, Any],
        observations: "Mapping[str, torch.Tensor]",
        num_actions: int,
    ) -> "Policy":
        """Build what was learned; see `make_policy`."""
        ...


def list_learners() -> list[EntryPoint]:
    """Return the registered learners, sorted by name; nothing is imported."""
    return sorted(find_entry_points(_GROUP), key=lambda entry: entry.name)


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


def make_learner(context: RankContext, env: "TaskEnv", agent: AgentConfig, learner: LearnerConfig) -> "TrainingLoop":
    """Build what learns on this rank; with several ranks, the process group must be up."""
    defer_imports()
    library = find_library(learner.name)
    try:
        made = library.make_learner(context, env, agent, learner.settings)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        known = (DEFAULT_LEARNER, *_SEPARATELY_INSTALLED)  # other libraries keep their traceback
        if isinstance(error, RequestError) or not learner.settings or learner.name not in known:
            raise
        raise RequestError(
            f"--learner-config: {learner.name} says {type(error).__name__}: {message_of(error)}"
        ) from error
    if (name := getattr(made, "learner", learner.name)) != learner.name:
        raise RequestError(f"--learner {learner.name}: its TrainingLoop has the name {name}; give it {learner.name}")
    return made


def make_policy(
    agent: AgentConfig, learner: LearnerConfig, observations: "dict[str, torch.Tensor]", num_actions: int
) -> "Policy":
    """Build what was learned, with random weights until `load`, for observations by group, (num_envs, *shape) each."""
    defer_imports()
    library = find_library(learner.name)
    for group in agent.obs_groups.get("actor", ()):
        if group not in observations:
            raise RequestError(f"--agent.obs-groups.actor {group}: the environment observes {', '.join(observations)}")
    return library.make_policy(agent, learner.settings, observations, num_actions)


def defer_imports() -> None:
    """Have torch._dynamo and wandb imported by the first use of what is in them.

    To be called before tensordict and RSL-RL are imported; a module that has been imported stays as it is.
    """
    import torch  # this module itself imports no torch

    if "torch._dynamo" not in sys.modules:
        torch._dynamo = sys.modules["torch._dynamo"] = _DeferredCompiler("torch._dynamo")
    defer_import("wandb")


class _DeferredCompiler(DeferredImport):
    """torch._dynamo before its import, with what tensordict, torch.optim and torch.distributed always use."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._marked: list[tuple[str, Any]] = []
        self.allow_in_graph = self._remember("allow_in_graph")
        self.assume_constant_result = self._remember("assume_constant_result")
        self.disable = self._disable
        self.graph_break = lambda: None
        self.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)  # used by destroy_process_group()

    def _import(self) -> None:
        marked = self._marked
        super()._import()
        for decorator, functions in marked:
            getattr(self, decorator)(functions)

    def _remember(self, decorator: str) -> Callable[[Any], Any]:
        def mark(functions: Any) -> Any:
            self._marked.append((decorator, functions))
            return functions

        return mark

    def _disable(self, function: Any = None, recursive: bool = True, **options: Any) -> Any:
        """Call the function as it is or, once the compiler is loaded, as its decorator changes it."""
        if function is None:
            self._import()
            return self.disable(None, recursive, **options)
        disabled: list[Any] = []

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if isinstance(self, _DeferredCompiler):
                return function(*args, **kwargs)
            if not disabled:
                disabled.append(self.disable(function, recursive, **options))
            return disabled[0](*args, **kwargs)

        return call
