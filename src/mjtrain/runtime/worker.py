"""Enter and leave a rank: threads, seeds, device, process group."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from enum import IntEnum

import numpy as np
import torch
import torch.distributed as dist

from mjtrain.runtime.deferred_imports import warp_on
from mjtrain.runtime.rank import RankContext


class Stream(IntEnum):
    """What a stream of random numbers is for, beside torch's, whose seed is the rank's.

    The numbers are part of what a seed means, and do not change.
    """

    NUMPY = 1
    PYTHON = 2
    WORLDS = 3
    RANDOM_ACTIONS = 4


def derive_seed(seed: int, stream: Stream) -> int:
    """Return the seed of one stream of a rank, at least 0 and below 2 ** 32.

    Generators of torch and NumPy's global one are the same algorithm: with the rank's seed itself, the worlds would
    draw the numbers of the policy's noise. Generators of torch on the CPU read 32 bits of a seed.
    """
    return int(np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1)[0])


@contextmanager
def rank_scope(
    context: RankContext,
    backend: str | None,
    store: "dist.Store | None" = None,  # pyright: ignore[reportPrivateImportUsage]
    timeout_s: float = 1800.0,
) -> Iterator[None]:
    """Make this process the rank that the context describes, for the length of a with block.

    Args:
        backend: Backend of the process group; None for no group.
        store: Where the ranks find each other: a store that all of them are connected to.
        timeout_s: How long a rank waits for the others in a collective, in seconds.
    """
    with (
        same_environ(),
        torch_threads(context.num_threads),
        same_random_numbers(context.device),
        warp_on(context.device),
    ):
        random.seed(derive_seed(context.seed, Stream.PYTHON))
        np.random.seed(derive_seed(context.seed, Stream.NUMPY))
        torch.manual_seed(context.seed)  # every CUDA device included
        if context.device != "cpu":
            torch.cuda.set_device(context.device)
        if backend is not None:
            _join_group(context, backend, store, timeout_s)
        yield
        # Not after an exception: the others would report a lost connection before this rank has reported the cause.
        if backend is not None:
            dist.destroy_process_group()


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Have torch use a number of threads for the length of a with block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Have torch take the CPU and float32 where no device and type are given, as it begins; the type in all threads."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    torch.set_default_dtype(torch.float32)
    try:
        with nullcontext() if device.type == "cpu" else torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def same_random_numbers(device: str) -> Iterator[None]:
    """Restore the random generators of this process after a with block, with that of a torch device."""
    on_gpu = torch.device(device).type == "cuda"
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpu_state = torch.cuda.get_rng_state(device) if on_gpu else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if gpu_state is not None:
            with suppress(RuntimeError):  # of a GPU that an error has stopped, which is the cause to report
                torch.cuda.set_rng_state(gpu_state, device)


@contextmanager
def same_environ() -> Iterator[None]:
    """Restore the environment variables of this process after a with block."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _join_group(
    context: RankContext,
    backend: str,
    store: "dist.Store | None",  # pyright: ignore[reportPrivateImportUsage]
    timeout_s: float,
) -> None:
    try:
        dist.init_process_group(
            backend,
            rank=context.rank,
            world_size=context.world_size,
            timeout=timedelta(seconds=timeout_s),
            # NCCL then connects here, and not in the first collective, so that its errors come at the start.
            device_id=torch.device(context.device) if backend == "nccl" else None,
            store=store,
        )
        if backend == "gloo":
            dist.barrier()  # a rank that left before all are connected would break the connections of the others
    except dist.DistStoreError as error:  # a store waits in vain, and does not say where the ranks were to meet
        while isinstance(store, dist.PrefixStore):  # pyright: ignore[reportPrivateImportUsage]
            store = store.underlying_store
        if isinstance(store, dist.TCPStore):  # pyright: ignore[reportPrivateImportUsage]
            first = str(error).partition("\n")[0]
            error.args = (
                f"not all {context.world_size} ranks came to {store.host}:{store.port} on the host of rank 0, or could "
                f"reach each other ({first}): ports between the hosts may be closed; `mjtrain doctor` with the same "
                "launch flags says which hosts cannot",
            )
        raise


def leave_group() -> None:
    """Close the connections of this rank's process group, so that what waits for it in a collective gets an error.

    Nothing happens without a group, or with one over NCCL, where a collective in progress would not notice.
    """
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()
