"""From --gpu-ids and CUDA_VISIBLE_DEVICES to devices; pure."""

from collections.abc import Mapping
from itertools import takewhile

from mjtrain.config import GpuIds
from mjtrain.errors import RequestError


def visible_gpus(environ: Mapping[str, str], num_visible_gpus: int) -> tuple[str, ...]:
    """Name the GPUs that the ranks of this host may use, as CUDA_VISIBLE_DEVICES would.

    Args:
        environ: Environment variables.
        num_visible_gpus: How many GPUs CUDA counts under these variables.

    Returns:
        One entry per GPU: a physical index, or a GPU or MIG UUID as it stands in CUDA_VISIBLE_DEVICES.
    """
    variable = environ.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        return tuple(str(index) for index in range(num_visible_gpus))
    entries = [entry.strip() for entry in variable.split(",") if entry.strip()]
    # CUDA shows a process one MIG slice, however many are listed; ranks can have one each.
    num_slices = len(list(takewhile(is_mig, entries))) if num_visible_gpus else 0
    return tuple(entries[: max(num_visible_gpus, num_slices)])  # CUDA stops counting at the first entry it cannot find


def is_mig(entry: str) -> bool:
    """Whether an entry of CUDA_VISIBLE_DEVICES is a MIG slice."""
    return entry.startswith("MIG-")


def usable_in_process(visible: tuple[str, ...]) -> tuple[str, ...]:
    """Return the GPUs that one process can use without a change of its variables: of several MIG slices the first."""
    return visible[:1] if visible and is_mig(visible[0]) else visible


def resolve_gpu_ids(gpu_ids: GpuIds, visible: tuple[str, ...]) -> tuple[int, ...]:
    """Turn --gpu-ids into indices into the visible GPUs.

    Args:
        gpu_ids: What was asked for.
        visible: The GPUs of this host, see `visible_gpus`.

    Returns:
        Indices, one per rank; empty for the CPU.

    Raises:
        RequestError: An index is out of range, negative or repeated, or there is no GPU.
    """
    if gpu_ids is None:
        return ()
    if gpu_ids == "auto":
        return (0,) if visible else ()
    if gpu_ids == ():
        raise RequestError("--gpu-ids: no index given; give indices such as 0 1, all, or None for the CPU")
    asked = "all" if gpu_ids == "all" else " ".join(str(index) for index in gpu_ids)
    if gpu_ids != "all":
        for index in gpu_ids:
            if index < 0:
                raise RequestError(f"--gpu-ids {asked}: {index} is negative; indices begin at 0")
            if gpu_ids.count(index) > 1:
                raise RequestError(f"--gpu-ids {asked}: {index} is repeated; give each GPU once, one rank runs on each")
    if not visible:
        raise RequestError(f"--gpu-ids {asked}: no GPU is visible here; use --gpu-ids None to train on the CPU")
    if gpu_ids == "all":
        return tuple(range(len(visible)))
    for index in gpu_ids:
        if index >= len(visible):
            there = "GPU is 0" if len(visible) == 1 else f"GPUs are 0 to {len(visible) - 1}"
            raise RequestError(f"--gpu-ids {asked}: there is no GPU {index}; the visible {there}")
    return gpu_ids
