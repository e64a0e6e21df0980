"""Modules that are imported by their first use, such as torch for terms; and the start of Warp.

Warp starts without its banner, on the device of the rank, with a folder for kernels that can be written.
"""

import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.standard_streams import flush_standard_streams

if TYPE_CHECKING:
    import torch as torch  # what type checkers see


def defer_import(name: str, then: Callable[[], None] | None = None) -> None:
    """Have a module imported by the first use of what is in it.

    To be called before others import it. A module that has been imported, or that is not installed, stays as it is.
    """
    if name not in sys.modules and importlib.util.find_spec(name) is not None:
        sys.modules[name] = DeferredImport(name, then)


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


@contextmanager
def warp_on(device: str) -> Iterator[None]:
    """Make a device the one that Warp uses for the length of a with block.

    Warp is imported and started by its first use, as worlds of the native engine do without it.
    """
    before: list[Any] = []

    def start() -> None:
        import warp as wp

        start_warp(on_cpu=device == "cpu")
        before.append(wp.get_device())
        wp.set_device(device)

    defer_import("warp", start)
    if not isinstance(sys.modules["warp"], DeferredImport):
        start()
    try:
        yield
    finally:
        if isinstance(module := sys.modules.get("warp"), DeferredImport):
            module.then = None  # who has imported it can still use it
            del sys.modules["warp"]
        if before:
            import warp as wp

            wp.set_device(before[0])


def start_warp(*, on_cpu: bool) -> None:
    """Start Warp without its banner, and on the CPU without its native line that says that no CUDA driver was found."""
    import warp as wp

    wp.config.log_level = wp.LOG_WARNING
    if wp.config.kernel_cache_dir is None:
        folder, replaced = choose_kernel_cache()
        if replaced:
            wp.config.kernel_cache_dir = str(folder)
    if not on_cpu:
        wp.init()
        return
    flush_standard_streams()
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        wp.init()
    finally:
        os.dup2(stderr, 2)
        os.close(nowhere)
        os.close(stderr)


def choose_kernel_cache() -> tuple[Path, bool]:
    """Return Warp's folder for compiled kernels, and whether it is a temporary one, as the usual cannot be written."""
    asked = os.environ.get("WARP_CACHE_PATH")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - as Warp reads it
    usual = Path(asked or Path(home) / "warp")
    if _can_hold_files(usual):
        return usual, False
    if asked:
        raise RequestError(f"WARP_CACHE_PATH={asked}: cannot be written; give a folder for compiled kernels that can")
    temporary = Path(tempfile.gettempdir()) / f"mjtrain-warp-{os.getuid()}"
    if _can_hold_files(temporary, mode=0o700) and temporary.lstat().st_uid == os.getuid():  # kernels are code
        return temporary, True
    raise RequestError(
        f"{usual}: Warp cannot write its compiled kernels there; set WARP_CACHE_PATH to a folder that can be written"
    )


def _can_hold_files(folder: Path, mode: int = 0o777) -> bool:
    """Create a folder and, for a moment, a file of a block in it: a full quota shows only then."""
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError:
        return False
    return True
