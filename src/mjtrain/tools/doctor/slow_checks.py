"""Checks of a host that may hang: the log root, object storage, GPUs and rendering. Nothing that they write stays."""

import contextlib
import errno
import io
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pynvml

from mjtrain.runs.storage.store import Storage, StorageError, local_folder
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import replacing
from mjtrain.runtime.machine import count_gpus, format_bytes, nearest_existing
from mjtrain.sim.drawing.backend import drawing_environ, list_gpu_uuids
from mjtrain.tools.doctor.finding import Finding, Question, failure, grade, ok, skipped, warning

PREFIX = ".mjtrain-doctor-"
"""Beginning of the names of what is written, and deleted again."""

_LEAST_BYTES, _GOOD_BYTES = 100 << 20, 2 << 30
_PROBE_BYTES = 16 << 20
_SLOW_BYTES_PER_S = 10e6

_OTHER_ROOT = "or give another --log-root"
_DISK_ADVICE = {
    errno.EROFS: f"mount it with write permission (`mount -o remount,rw`), {_OTHER_ROOT}",
    errno.EACCES: f"make it writable for this user (`chown`, `chmod u+w`), {_OTHER_ROOT}",
    errno.EPERM: f"make it writable for this user (`chown`, `chmod u+w`), {_OTHER_ROOT}",
    errno.ENOSPC: f"delete old runs, keep fewer checkpoints (--keep-checkpoints N), {_OTHER_ROOT}",
    errno.EDQUOT: f"the user's quota is used up: delete old runs, {_OTHER_ROOT}",
    errno.ESTALE: "the server has exported it again: remount it on this host",
}

_BUSY = 0.1
"""Part of a GPU's memory that is in use before a run, from which on something else must be using it."""

_PICTURE = """
<mujoco>
  <worldbody>
    <light pos="0 0 3"/>
    <geom type="plane" size="2 2 .1" rgba=".2 .3 .4 1"/>
    <geom type="sphere" size=".4" pos="0 0 .4" rgba=".9 .3 .2 1"/>
    <camera name="camera" pos="0 -2 1" xyaxes="1 0 0 0 .4 1"/>
  </worldbody>
</mujoco>
"""
_PIXELS = 64

_RENDERING_ADVICE = (
    "apt-get install libegl1 libegl-mesa0; with NVIDIA's driver in a container set NVIDIA_DRIVER_CAPABILITIES=all; "
    "or MUJOCO_GL=osmesa with libosmesa6"
)


def check_log_root(question: Question) -> list[Finding]:
    """Check free space, and what checkpoints do there (write, fsync, rename, read)."""
    root = Path(question.log_root)
    place = nearest_existing(root)
    if not place.is_dir():
        return [failure("log root", f"{place} is a file", "give a folder as --log-root")]
    found = os.statvfs(place)
    free, advice = found.f_bavail * found.f_frsize, _DISK_ADVICE[errno.ENOSPC]
    figure = f"{format_bytes(free)} free at {place}"
    space = grade("disk space", figure, advice, warns=free < _GOOD_BYTES, fails=free < _LEAST_BYTES)
    if found.f_files and not found.f_favail:
        advice = f"no more files can be made there: delete many small ones, {_OTHER_ROOT}"
        space = failure("disk space", f"{format_bytes(free)}, but no inode free at {place}", advice)
    if space.result == "failure":
        return [space, skipped("log root", f"{root}: no space to try")]
    return [space, _check_writes(root, place)]


def _check_writes(root: Path, place: Path) -> Finding:
    """Do what saving a checkpoint does, in a separate folder."""
    folder = place / f"{PREFIX}{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        try:
            speed, fsync_s = _write(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        advice = _DISK_ADVICE.get(error.errno or 0, f"look at the kernel's messages (dmesg), {_OTHER_ROOT}")
        return failure("log root", f"{root}: {(error.strerror or str(error)).lower()}", advice)
    figure = f"{root}: {format_bytes(int(speed))}/s, fsync {fsync_s * 1000:.1f} ms, rename"
    advice = "give a --log-root on a faster disk, or a larger --agent.save-interval"
    return grade("log root", figure, advice, warns=speed < _SLOW_BYTES_PER_S)


def _write(folder: Path) -> tuple[float, float]:
    """Replace a file, as saving does, and read it; bytes/s with an fsync, and the seconds of a small fsync."""
    content, path = os.urandom(1 << 20), folder / "file"
    path.write_bytes(b"before")
    with replacing(path) as file:
        times_s = [time.monotonic()]
        for data in (content * (_PROBE_BYTES >> 20), b"end"):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            times_s.append(time.monotonic())
    if path.stat().st_size != _PROBE_BYTES + 3 or path.read_bytes()[: 1 << 20] != content:
        raise OSError(errno.EIO, "it gives back other bytes than were written")
    begin_s, wrote_s, end_s = times_s
    return _PROBE_BYTES / max(wrote_s - begin_s, 1e-6), end_s - wrote_s


def check_storage(question: Question) -> list[Finding]:
    """Write, read and delete one object below --checkpoint-url."""
    url = question.checkpoint_url
    assert url is not None
    advice = (
        "check the bucket, the credentials in the environment and their rights to put, get and delete, and the proxy; "
        "docs/storage.md has what is read"
    )
    name, content = f"{PREFIX}{uuid.uuid4().hex}", uuid.uuid4().bytes
    made = list(_missing_folders(url))
    begin_s = time.monotonic()
    try:
        storage = Storage(url)
        try:
            storage.upload(name, io.BytesIO(content))
            found = storage.read(name)
        finally:
            storage.delete([name])
    except StorageError as error:
        return [failure("storage", str(error), advice)]
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # not empty any more, or never made
                folder.rmdir()
    if found is None or found[0] != content:
        return [failure("storage", f"{url}: an object that was written could not be read again", advice)]
    return [ok("storage", f"{url}: wrote, read and deleted an object in {time.monotonic() - begin_s:.2f} s")]


def _missing_folders(url: str) -> Iterator[Path]:
    """Yield the folders that a file:// URL creates, the innermost first."""
    folder = local_folder(url)
    while folder is not None and nearest_existing(folder) != folder:
        yield folder
        folder = folder.parent


def check_gpus(question: Question) -> list[Finding]:
    """Ask the driver about every GPU, and torch whether CUDA works."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if question.launch.gpu_ids == "auto":
            return [skipped("gpus", f"no GPU: a run uses the CPU ({error})")]
        advice = "install NVIDIA's driver (`nvidia-smi` must list the GPUs); docker run --gpus all; or --gpu-ids None"
        return [failure("gpus", f"no driver: {error}", advice)]
    try:
        driver, version = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion_v2()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        found = [_look_at(index, handle) for index, handle in enumerate(handles)]
    finally:
        pynvml.nvmlShutdown()
    return [_check_cuda(f"driver {driver} for CUDA {version // 1000}.{version % 1000 // 10}", len(handles)), *found]


def _check_cuda(driver: str, num_there: int) -> Finding:
    """Look whether torch can use the GPUs that the driver has."""
    import torch

    visible, built = count_gpus(), torch.version.cuda
    figure = f"{driver}; torch {torch.__version__} for CUDA {built}; {visible} visible"
    if built is None:
        return failure("cuda", figure, "install a torch with CUDA: pip install torch, from the index for this CUDA")
    if visible == 0 or not torch.cuda.is_available():
        advice = f"update the driver to one for CUDA {built}, or check CUDA_VISIBLE_DEVICES; the driver has {num_there}"
        return failure("cuda", figure, advice)
    return ok("cuda", figure)


def _look_at(index: int, handle: object) -> Finding:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    free, total = int(memory.free), int(memory.total)
    figure = f"{index}: {pynvml.nvmlDeviceGetName(handle)}, {format_bytes(free)} of {format_bytes(total)} free"
    try:
        errors = pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        )
    except pynvml.NVMLError:
        errors = 0  # a GPU without error correction
    if errors:
        advice = f"leave GPU {index} out with --gpu-ids, and have it reset or replaced"
        return warning("gpu", f"{figure}; {errors} uncorrected memory errors", advice)
    advice = f"`nvidia-smi` shows what uses GPU {index}; end it, or choose another --gpu-ids"
    return grade("gpu", figure, advice, warns=total - free > _BUSY * total)


def check_rendering(question: Question) -> list[Finding]:
    """Render a sphere on a plane; a failure only where the run would record videos."""
    judge = failure if question.video else warning
    hidden = question.launch.gpu_ids is None or os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    try:
        os.environ.update(drawing_environ("cpu" if hidden or not list_gpu_uuids() else "cuda:0", os.environ))
    except RequestError as error:
        figure, _, advice = str(error).removeprefix("--video: ").partition(": ")
        return [judge("rendering", figure, advice or _RENDERING_ADVICE)]
    backend, begin_s = os.environ["MUJOCO_GL"], time.monotonic()
    try:
        colours = _count_colours()
    except Exception as error:  # of EGL, OpenGL or MuJoCo, each with its own class
        reason = " ".join(str(error).split()) or type(error).__name__
        return [judge("rendering", f"{backend}: {reason[:160]}", _RENDERING_ADVICE)]
    if colours < 3:
        return [judge("rendering", f"{backend}: the frame is empty", _RENDERING_ADVICE)]
    seconds = time.monotonic() - begin_s
    return [ok("rendering", f"{backend}: {_PIXELS} x {_PIXELS} pixels with {colours} colours in {seconds:.2f} s")]


def _count_colours() -> int:
    """Render the frame, and return how many colours it has."""
    import mujoco  # reads MUJOCO_GL
    import numpy as np

    model = mujoco.MjModel.from_xml_string(_PICTURE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, _PIXELS, _PIXELS) as renderer:
        renderer.update_scene(data, camera="camera")
        return len(np.unique(renderer.render().reshape(-1, 3), axis=0))
