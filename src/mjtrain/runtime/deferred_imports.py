"""Modules that are imported by their first use, torch as terms see it among them."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch  # what type checkers see


def defer_import(name: str, then: Callable[[], None] | None = None) -> None:
    """Have a module imported by the first use of what is in it.

    To be called before others import it. A module that has been imported, or that is not installed, stays as it is.
    """
    if name not in sys.modules and importlib.util.find_spec(name) is not None:
        sys.modules[name] = DeferredImport(name, then)


def forget_import(name: str) -> None:
    """Undo `defer_import`; a module that has been imported since stays."""
    module = sys.modules.get(name)
    if isinstance(module, DeferredImport):
        module.then = None  # who has imported it can still use it
        del sys.modules[name]


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Let imports of a module fail within a with block, as if it was not installed; not if it has been imported."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        del sys.modules[name]


class DeferredImport(ModuleType):
    """A module before its import: an attribute that is missing imports it, in place.

    importlib.util.LazyLoader would do so for any attribute, also for the `__file__` that inspect asks of all modules.
    """

    def __init__(self, name: str, then: Callable[[], None] | None = None) -> None:
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        super().__init__(name)
        self.then = then
        self.__spec__ = spec
        self.__file__ = spec.origin

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # a module inside it is looked for in __path__
            raise AttributeError(name)
        self._import()
        return getattr(self, name)

    def _import(self) -> None:
        spec, then = self.__spec__, self.then
        assert spec is not None
        assert spec.loader is not None
        sys.modules[spec.name] = self
        self.__dict__.clear()
        self.__dict__.update(vars(importlib.util.module_from_spec(spec)))
        self.__class__ = ModuleType  # pyright: ignore[reportAttributeAccessIssue]
        spec.loader.exec_module(self)
        if then is not None:
            then()


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
