"""How MuJoCo renders on a machine without a display."""

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mjtrain.runtime.errors import RequestError, require

LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
"""Shared library that MuJoCo needs for each offscreen backend."""


def resolve_backend(environ: Mapping[str, str], has_library: Callable[[str], bool], what: str = "--video:") -> str:
    """Choose between egl, osmesa, and what the user asked for by MUJOCO_GL; pure. The error begins with `what`."""
    chosen = environ.get("MUJOCO_GL", "").lower()
    candidates = [chosen] if chosen else list(LIBRARIES)
    for name in candidates:
        if name not in LIBRARIES or has_library(LIBRARIES[name]):
            return name
    wanted = LIBRARIES[chosen] if chosen else " or ".join(LIBRARIES.values())
    raise RequestError(
        f"{what} MuJoCo cannot render without a display here, because it found no {wanted}: apt-get install libegl1 "
        "libegl-mesa0 (with NVIDIA's driver libegl1 is enough) or, with MUJOCO_GL=osmesa, libosmesa6"
    )


def resolve_egl_device(device: str, visible: str | None, uuids: Sequence[str]) -> int | None:
    """Choose the GPU on which a rank renders: the one on which it computes; pure.

    MuJoCo reads MUJOCO_EGL_DEVICE_ID as an index into CUDA_VISIBLE_DEVICES. Only where that holds anything but indices,
    such as UUIDs, which MuJoCo does not read, the number counts all GPUs of the machine.

    Args:
        device: Torch device of the rank, "cpu" or "cuda:N".
        visible: CUDA_VISIBLE_DEVICES of the rank; None where it is not set.
        uuids: UUID of each GPU of the machine, by index.

    Returns:
        Number for MUJOCO_EGL_DEVICE_ID; None if any GPU will do (a rank on the CPU) or it is not known (a MIG slice).
    """
    if not device.startswith("cuda"):
        return None
    local = int(device.partition(":")[2] or 0)
    if visible is None:
        return local
    entries = [entry.strip() for entry in visible.split(",")]
    if local >= len(entries):
        return None
    entry = entries[local]
    if all(other.isdigit() for other in entries):
        return local
    if entry.isdigit():
        return int(entry)
    matching = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return matching[0] if entry.startswith("GPU-") and len(matching) == 1 else None


def drawing_environ(device: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a process that renders for a rank on a device."""
    require("--video:", "video", "av", "PIL")
    chosen = {"MUJOCO_GL": resolve_backend(environ, has_library), "LP_NUM_THREADS": "1"}
    index = resolve_egl_device(device, environ.get("CUDA_VISIBLE_DEVICES"), list_gpu_uuids())
    if index is not None and "MUJOCO_EGL_DEVICE_ID" not in environ:
        chosen["MUJOCO_EGL_DEVICE_ID"] = str(index)
    return chosen


def has_library(name: str) -> bool:
    """Return whether a shared library can be loaded."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def list_gpu_uuids(folder: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Return the UUIDs of the machine's GPUs, in bus order, which is the order of EGL and CUDA."""
    uuids = []
    for file in sorted(folder.glob("*/information")):
        found = re.search(r"GPU UUID:\s*(\S+)", file.read_text())
        uuids.append(found[1] if found else "")
    return uuids
