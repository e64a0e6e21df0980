"""GPUs of this host, their driver, and whether torch can use them."""

import pynvml

from mjtrain.runtime.machine import count_gpus, format_bytes
from mjtrain.tools.doctor.finding import Finding, Question, failure, grade, ok, skipped, warning

_BUSY = 0.1
"""Part of a GPU's memory that is in use before a run, from which on something else must be using it."""


def check(question: Question) -> list[Finding]:
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
