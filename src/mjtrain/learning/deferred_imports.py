"""Imports that a training does not need: PyTorch's compiler, and W&B where only RSL-RL's own logger asks for it.

`import tensordict` and the first step of a torch optimizer import torch._dynamo, which takes longer than torch itself,
only to say how the compiler is to treat some of their functions. As long as nothing is compiled, it is enough to
remember what they said.
"""

import sys
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch

from mjtrain.runtime.deferred_imports import DeferredImport, defer_import


def defer_imports() -> None:
    """Have torch._dynamo and wandb imported by the first use of what is in them.

    To be called before tensordict and RSL-RL are imported; a module that has been imported stays as it is.
    """
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
        """Call the function as it is; once the compiler is there, as the compiler's own decorator has it."""
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
