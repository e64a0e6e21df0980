"""All decisions about processes, devices, seeds and threads, made once from plain inputs; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, get_args

from mjtrain.config import Backend, LaunchConfig
from mjtrain.errors import RequestError
from mjtrain.launcher.devices import resolve_gpu_ids, visible_gpus
from mjtrain.launcher.world import RankWorld, resolve_world
from mjtrain.rank import RankContext

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

START_TIMEOUT_S = 300.0
"""Least time that spawned ranks have until they begin: imports from a cold disk can take minutes."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What will be started. Everything in it is decided; nobody asks the environment again."""

    mode: Literal["in_process", "spawn", "join"]
    """in_process: one rank, in the calling process. spawn: one supervised process per rank, through torchrunx. join:
    the calling process is one rank of a job that torchrun or srun has started."""

    ranks: tuple[RankContext, ...]
    """The ranks that this plan starts, by rank: all of the job, or the one to join it."""

    backend: Literal["gloo", "nccl"] | None
    """Backend of the process group; None where there is one rank and so no group."""

    environ: dict[str, str]
    """Environment variables that the spawned ranks get on top of the launcher's own."""

    log_dir: str | None
    """Folder for the log files of spawned ranks; None writes no files."""

    world: RankWorld | None = None
    """The job to join, started by something else."""

    connect_timeout_s: float = 300.0
    """Time that ranks have to find each other."""

    process_group_timeout_s: float = 1800.0
    """Time that a rank waits for the others in a collective."""

    heartbeat_timeout_s: float = 300.0
    """Silence of a rank after which it counts as hanging."""

    start_timeout_s: float = 300.0
    """Time that spawned ranks have until they begin."""

    stop_grace_s: float = 60.0
    """Time that a stop which was asked for may take."""

    max_restarts: int = 0
    """How many times a failed job is started again."""

    notices: tuple[str, ...] = ()
    """Lines the user should see: what was chosen for them."""

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.ranks[0].world_size

    @property
    def leads(self) -> bool:
        """Whether rank 0 is among the ranks."""
        return self.ranks[0].is_main


def resolve_plan(
    config: LaunchConfig,
    environ: Mapping[str, str],
    num_visible_gpus: int,
    *,
    num_cores: int = 1,
    run_dir: PurePath | None = None,
) -> LaunchPlan:
    """Decide which ranks run where.

    Args:
        config: What was asked for.
        environ: Environment variables of the launcher.
        num_visible_gpus: GPUs that CUDA counts under these variables.
        num_cores: CPU cores the launcher may use.
        run_dir: Where the run lives; None for a function that has no run directory.

    Returns:
        The frozen plan.

    Raises:
        RequestError: The request cannot be met here; the message names the flag, the value and what would be right.
    """
    _check_request(config)
    visible = visible_gpus(environ, num_visible_gpus)
    world = resolve_world(environ)
    if world is not None:
        return _join(config, environ, world, visible, num_cores)
    gpus = resolve_gpu_ids(config.gpu_ids, visible)
    if config.num_workers is not None and gpus:
        raise _workers_with_gpus(config)
    world_size = len(gpus) or config.num_workers or 1
    num_threads = config.num_threads or max(1, num_cores // world_size)
    spawn = world_size > 1 or config.max_restarts > 0  # nobody can start his own process again
    ranks = tuple(
        RankContext(
            rank=rank,
            local_rank=rank,
            world_size=world_size,
            local_world_size=world_size,
            # A spawned rank sees only the chosen GPUs, in order; in this process the visible list stays as it is.
            device=f"cuda:{rank if spawn else gpus[rank]}" if gpus else "cpu",
            seed=config.seed + rank,
            num_threads=num_threads,
        )
        for rank in range(world_size)
    )
    return LaunchPlan(
        mode="spawn" if spawn else "in_process",
        ranks=ranks,
        backend=_resolve_backend(config, on_gpu=bool(gpus)) if world_size > 1 else None,
        environ=_rank_environ(tuple(visible[index] for index in gpus), num_threads) if spawn else {},
        log_dir=_resolve_log_dir(config, environ, run_dir) if spawn else None,
        process_group_timeout_s=config.process_group_timeout_s,
        heartbeat_timeout_s=config.heartbeat_timeout_s,
        start_timeout_s=max(START_TIMEOUT_S, config.heartbeat_timeout_s),
        stop_grace_s=config.stop_grace_s,
        max_restarts=config.max_restarts,
        notices=_notices(config, on_gpu=bool(gpus)),
    )


def _join(
    config: LaunchConfig, environ: Mapping[str, str], world: RankWorld, visible: tuple[str, ...], num_cores: int
) -> LaunchPlan:
    """Decide what this process does as a rank of a job that something else has started."""
    here = f"{world.source} has started this process as rank {world.rank} of {world.world_size}"
    for flag, given, why in (
        ("--gpu-ids", config.gpu_ids not in (None, "auto"), "each rank takes the GPU of its local rank"),
        ("--num-workers", config.num_workers is not None, "the number of ranks is decided there"),
        ("--max-restarts", config.max_restarts > 0, f"only {world.source} can start them again"),
        ("--torchrunx-log-dir", config.torchrunx_log_dir is not None, f"the output goes where {world.source} puts it"),
    ):
        if given:
            raise RequestError(f"{flag}: cannot be asked for here: {here}, and {why}")
    on_gpu = bool(visible) and config.gpu_ids == "auto"
    gpu = world.local_rank
    if on_gpu and gpu >= len(visible):
        if len(visible) > 1 or world.source != "srun":
            there = "is 1 visible GPU" if len(visible) == 1 else f"are {len(visible)} visible GPUs"
            raise RequestError(
                f"{here}, the {world.local_world_size} on this host have a GPU each, and there {there}: start fewer "
                "ranks per host, or use --gpu-ids None to train on the CPU"
            )
        gpu = 0  # as with srun --gpus-per-task 1: each task sees its own GPU only
    context = RankContext(
        rank=world.rank,
        local_rank=world.local_rank,
        world_size=world.world_size,
        local_world_size=world.local_world_size,
        node_rank=world.node_rank,
        device=f"cuda:{gpu}" if on_gpu else "cpu",
        seed=config.seed + world.rank,
        num_threads=config.num_threads or _share_cores(num_cores, world, environ),
    )
    return LaunchPlan(
        mode="join",
        ranks=(context,),
        backend=_resolve_backend(config, on_gpu=on_gpu) if world.world_size > 1 else None,
        environ=_interface_environ(config),
        log_dir=None,
        world=world,
        connect_timeout_s=config.connect_timeout_s,
        process_group_timeout_s=config.process_group_timeout_s,
        heartbeat_timeout_s=config.heartbeat_timeout_s,
        stop_grace_s=config.stop_grace_s,
        notices=_notices(config, on_gpu=on_gpu),
    )


def _share_cores(num_cores: int, world: RankWorld, environ: Mapping[str, str]) -> int:
    """Give a rank its share of the host's cores; srun has given each task its own already where it was asked to."""
    return max(
        1,
        num_cores
        if "SLURM_CPUS_PER_TASK" in environ and world.source == "srun"
        else num_cores // world.local_world_size,
    )


def _interface_environ(config: LaunchConfig) -> dict[str, str]:
    return {} if config.interface is None else dict.fromkeys(INTERFACE_VARIABLES, config.interface)


def _notices(config: LaunchConfig, *, on_gpu: bool) -> tuple[str, ...]:
    if config.gpu_ids != "auto" or on_gpu:
        return ()
    return ("no GPU is visible: running on the CPU (--gpu-ids None says so without this notice)",)


def _check_request(config: LaunchConfig) -> None:
    """Refuse what is wrong on any machine."""
    if config.gpu_ids not in (None, "all", "auto") and not (
        isinstance(config.gpu_ids, tuple) and all(isinstance(index, int) for index in config.gpu_ids)
    ):
        raise RequestError(f"--gpu-ids {config.gpu_ids!r}: give a tuple of indices such as (0, 1), 'all', or None")
    if config.backend not in get_args(Backend):
        raise RequestError(f"--backend {config.backend}: give one of {', '.join(get_args(Backend))}")
    for flag, value, least in (
        ("--num-workers", config.num_workers, 1),
        ("--num-threads", config.num_threads, 1),
        ("--seed", config.seed, 0),
        ("--max-restarts", config.max_restarts, 0),
        ("--stop-grace-s", config.stop_grace_s, 0),
    ):
        if value is not None and value < least:
            raise RequestError(f"{flag} {value}: must be at least {least}")
    for flag, value in (
        ("--heartbeat-timeout-s", config.heartbeat_timeout_s),
        ("--connect-timeout-s", config.connect_timeout_s),
        ("--process-group-timeout-s", config.process_group_timeout_s),
    ):
        if not value > 0:
            raise RequestError(f"{flag} {value}: must be more than 0")
    if config.num_workers is not None and config.gpu_ids not in (None, "auto"):
        raise _workers_with_gpus(config)


def _workers_with_gpus(config: LaunchConfig) -> RequestError:
    return RequestError(
        f"--num-workers {config.num_workers}: is for CPU ranks; use it with --gpu-ids None, or leave it out to run "
        "one rank per GPU"
    )


def _resolve_backend(config: LaunchConfig, *, on_gpu: bool) -> Literal["gloo", "nccl"]:
    if config.backend == "nccl" and not on_gpu:
        raise RequestError("--backend nccl: needs GPUs; use gloo on the CPU")
    if config.backend == "auto":
        return "nccl" if on_gpu else "gloo"
    return config.backend


def _rank_environ(gpus: tuple[str, ...], num_threads: int) -> dict[str, str]:
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "OMP_NUM_THREADS": str(num_threads),
        "PYTHONUNBUFFERED": "1",
        # All ranks are on this host: nothing needs to listen on, or be found under, any other address.
        **dict.fromkeys(INTERFACE_VARIABLES, "lo"),
    }


def _resolve_log_dir(config: LaunchConfig, environ: Mapping[str, str], run_dir: PurePath | None) -> str | None:
    asked = environ.get("TORCHRUNX_LOG_DIR", config.torchrunx_log_dir)
    if asked is not None:
        return asked or None
    return None if run_dir is None else str(run_dir / "torchrunx")
