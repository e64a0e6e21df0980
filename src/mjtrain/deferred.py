"""torch as terms see it: imported by its first use, so that naming a term, as a help page does, does not import it.

from __future__ import annotations  # annotations would be a use

from mjtrain.deferred import torch
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch  # what type checkers see


class DeferredModule:
    """Stands for a module that its first use imports."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Look an attribute up in the module, and keep it: the next time, it is found without this function."""
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        """A function of a task file travels to other processes with the names that it uses."""
        return DeferredModule, (self._name,)


if not TYPE_CHECKING:
    torch = DeferredModule("torch")
