"""Whether a fault can happen in a job, before anything is started; pure."""

from collections.abc import Iterator

from mjtrain.launcher.faults.fault import Fault

PLACES = {"nan": ("rollout", "update"), "disk-full": ("save",)}
"""Kinds that happen in certain phases of a training, and in nothing else."""


def find_launch_problems(
    faults: tuple[Fault, ...], *, world_size: int, supervised: bool, by_network: bool
) -> Iterator[str]:
    """Yield why faults cannot happen to a job, whatever it does.

    Args:
        by_network: Whether the ranks talk over network connections, which gloo does, and NCCL between hosts.
    """
    for fault in faults:
        flag = f"--inject-fault {fault}"
        if fault.rank is not None and fault.rank >= world_size:
            there = "is rank 0 only" if world_size == 1 else f"are ranks 0 to {world_size - 1}"
            yield f"{flag}: there {there}"
        elif fault.kind == "network" and world_size == 1:
            yield f"{flag}: one rank alone has no connections to others; give --num-workers 2"
        elif fault.kind == "network" and not by_network:
            yield f"{flag}: NCCL uses no network between the GPUs of one host"
        elif fault.kind == "sigstop" and not supervised:
            yield f"{flag}: nothing would notice that this process is stopped; --max-restarts 1 has it supervised"


def find_function_problems(faults: tuple[Fault, ...]) -> Iterator[str]:
    """Yield why faults cannot happen to a function that is launched."""
    for fault in faults:
        if fault.kind in PLACES:
            yield f"--inject-fault {fault}: kind={fault.kind} is of trainings only"
