"""Warp, started without a word, and with a folder for its kernels that can be written."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mjtrain.runtime.deferred_imports import DeferredImport, defer_import, forget_import
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.standard_streams import flush_standard_streams


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
        forget_import("warp")
        if before:
            import warp as wp

            wp.set_device(before[0])


def start_warp(*, on_cpu: bool) -> None:
    """Start Warp without its banner, and on the CPU without its native line that there is no CUDA driver."""
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
