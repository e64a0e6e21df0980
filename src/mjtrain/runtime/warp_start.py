"""Warp, started without a word."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mjtrain.runtime.deferred_imports import DeferredImport, defer_import, forget_import
from mjtrain.runtime.standard_streams import flush_standard_streams


@contextmanager
def warp_on(device: str) -> Iterator[None]:
    """Make a device the one that Warp uses for the length of a with block.

    Warp is imported and started by its first use, as worlds of the native engine do without it.

    Args:
        device: Torch device of this rank.
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
    """Start Warp without its banner, and on the CPU without its native line that there is no CUDA driver.

    Args:
        on_cpu: Whether only the CPU will be used; then nothing is said of GPUs.
    """
    import warp as wp

    wp.config.log_level = wp.LOG_WARNING
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
