"""Warp, started without a word."""

import os

import warp as wp

from mjtrain.standard_streams import flush_standard_streams


def start_warp(*, on_cpu: bool) -> None:
    """Start Warp without its banner, and on the CPU without its native line that there is no CUDA driver.

    Args:
        on_cpu: Whether only the CPU will be used; then nothing is said of GPUs.
    """
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
