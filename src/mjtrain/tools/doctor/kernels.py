"""A Warp kernel is compiled and run on each device, and a CUDA graph is captured."""

import os
import tempfile
import time
from collections.abc import Callable

import numpy as np
import warp as wp

from mjtrain.runtime.deferred_imports import choose_kernel_cache, start_warp
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.drawing.backend import list_gpu_uuids
from mjtrain.tools.doctor.finding import Finding, Question, failure, grade, ok, skipped, warning

_SIZE = 1024

_CPU_ADVICE = "reinstall warp-lang for this machine; only cameras and --engine warp need its kernels on a CPU"
_GPU_ADVICE = "update NVIDIA's driver to one that warp-lang supports, or reinstall warp-lang, then try again"


@wp.kernel
def add_index(values: wp.array(dtype=wp.float32)):  # pyright: ignore[reportInvalidTypeForm]
    """Add to each number its place."""
    i = wp.tid()
    values[i] = values[i] + wp.float32(i)  # pyright: ignore[reportArgumentType]


def check_kernel_cache(*, on_cpu: bool) -> Finding:
    """Look at the folder in which a run keeps its compiled kernels."""
    advice = "set WARP_CACHE_PATH to a folder that can be written and lasts, such as a volume"
    try:
        folder, replaced = choose_kernel_cache()
    except RequestError as error:
        return (warning if on_cpu else failure)("kernel cache", str(error), advice)
    figure = f"the usual folder cannot be written; {folder} is used instead" if replaced else str(folder)
    return grade("kernel cache", figure, advice, warns=replaced)


def check_kernels(question: Question) -> list[Finding]:
    """Try every device that a run would use."""
    gpu_ids = question.launch.gpu_ids
    on_cpu = gpu_ids is None
    cache = check_kernel_cache(on_cpu=on_cpu)
    with tempfile.TemporaryDirectory(prefix="mjtrain-doctor-") as folder:
        wp.config.kernel_cache_dir = folder  # so that something has to be compiled, and nothing stays
        tempfile.tempdir = folder  # of this process, which ends after the check: Warp's precompiled header goes there
        start_warp(on_cpu=on_cpu)
        devices = [] if on_cpu else [device.alias for device in wp.get_cuda_devices()]
        if isinstance(gpu_ids, tuple):
            devices = [devices[index] for index in gpu_ids if index < len(devices)]
        if not devices and not on_cpu and list_gpu_uuids() and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            return [cache, failure("warp kernels", "the machine has GPUs, and Warp sees none", _GPU_ADVICE)]
        if not devices:
            return [cache, _try("warp kernels", "cpu", _run_kernel), skipped("cuda graph", "no GPU")]
        checks = (("warp kernels", _run_kernel), ("cuda graph", _replay_graph))
        return [cache, *(_try(name, device, function) for device in devices for name, function in checks)]


def _try(name: str, device: str, function: Callable[[str], tuple[str, bool]]) -> Finding:
    """Make a finding of what a function has done on a device, and of whether its numbers were right."""
    judge, advice = (warning, _CPU_ADVICE) if device == "cpu" else (failure, _GPU_ADVICE)
    try:
        done, right = function(device)
    except Exception as error:  # of the compiler, the driver or Warp, each with its own class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return judge(name, f"{device}: {reason[:160]}", advice)
    return ok(name, f"{device}: {done}") if right else judge(name, f"{device}: wrong numbers", advice)


def _run_kernel(device: str) -> tuple[str, bool]:
    begin_s = time.monotonic()
    values = wp.zeros(_SIZE, dtype=wp.float32, device=device)
    wp.launch(add_index, dim=_SIZE, inputs=[values], device=device)
    right = np.array_equal(values.numpy(), np.arange(_SIZE, dtype=np.float32))
    return f"compiled and run in {time.monotonic() - begin_s:.1f} s", right


def _replay_graph(device: str) -> tuple[str, bool]:
    """Capture two launches, and replay them three times."""
    values = wp.zeros(_SIZE, dtype=wp.float32, device=device)
    with wp.ScopedCapture(device) as capture:
        for _ in range(2):
            wp.launch(add_index, dim=_SIZE, inputs=[values], device=device)
    assert capture.graph is not None
    for _ in range(3):
        wp.capture_launch(capture.graph)
    return "captured and replayed", np.array_equal(values.numpy(), 6 * np.arange(_SIZE, dtype=np.float32))
