"""Which cores and GPUs the trials of a sweep use; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from mjtrain.runtime.errors import RequestError

MAX_JOBS_ON_CPU = 8
"""Trials side by side without GPUs, unless the user chooses: a search learns little from trials begun too early."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where one trial at a time runs; no two slots share a core or a GPU."""

    cores: tuple[int, ...]
    """CPU cores, by the kernel's numbers."""

    gpus: tuple[str, ...]
    """Entries for CUDA_VISIBLE_DEVICES; empty for the CPU."""


def resolve_slots(
    *,
    cores: Sequence[int],
    gpus: Sequence[str],
    num_trials: int,
    jobs: int | None,
    cores_per_trial: int | None,
    gpus_per_trial: int,
) -> tuple[Slot, ...]:
    """Divide this machine.

    Args:
        jobs: Slots; None for the number that fits, without GPUs at most MAX_JOBS_ON_CPU.
        cores_per_trial: Cores of a slot; None for an equal part.
        gpus_per_trial: GPUs of a slot; 0 for the CPU.
    """
    if gpus_per_trial > len(gpus):
        there = {0: "no GPU is", 1: "1 GPU is"}.get(len(gpus), f"{len(gpus)} GPUs are")
        raise RequestError(f"--gpus-per-trial {gpus_per_trial}: {there} visible here; 0 trains on the CPU")
    if cores_per_trial is not None and cores_per_trial > len(cores):
        raise RequestError(f"--cores-per-trial {cores_per_trial}: {_count(len(cores), 'core')} can be used here")
    fitting = len(cores) // (cores_per_trial or 1)
    if gpus_per_trial:
        fitting = min(fitting, len(gpus) // gpus_per_trial)
    if jobs is not None and jobs > fitting:
        have = [_count(len(cores), "core"), *([_count(len(gpus), "GPU")] if gpus_per_trial else [])]
        raise RequestError(f"--jobs {jobs}: {' and '.join(have)} can run {_count(fitting, 'trial')} side by side")
    count = jobs if jobs is not None else fitting if gpus_per_trial else min(fitting, MAX_JOBS_ON_CPU)
    count = min(count, num_trials)
    width = cores_per_trial or len(cores) // count
    return tuple(
        Slot(
            cores=tuple(cores[index * width : (index + 1) * width]),
            gpus=tuple(gpus[index * gpus_per_trial : (index + 1) * gpus_per_trial]),
        )
        for index in range(count)
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
