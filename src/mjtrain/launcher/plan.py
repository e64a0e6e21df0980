"""All decisions about processes, devices, seeds and threads, made once from plain inputs; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, get_args

from mjtrain.config import Backend, LaunchConfig
from mjtrain.errors import RequestError
from mjtrain.launcher.devices import resolve_gpu_ids, visible_gpus
from mjtrain.rank import RankContext

START_TIMEOUT_S = 300.0
"""Least time that spawned ranks have until they begin: imports from a cold disk can take minutes."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What will be started. Everything in it is decided; nobody asks the environment again."""

    mode: Literal["in_process", "spawn"]
    """in_process: one rank, in the calling process. spawn: one supervised process per rank, through torchrunx."""

    ranks: tuple[RankContext, ...]
    """Every rank of the job, by rank."""

    backend: Literal["gloo", "nccl"] | None
    """Backend of the process group; None where there is one rank and so no group."""

    environ: dict[str, str]
    """Environment variables that the spawned ranks get on top of the launcher's own."""

    log_dir: str | None
    """Folder for the log files of spawned ranks; None writes no files."""

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
    notices = ()
    if config.gpu_ids == "auto" and not gpus:
        notices = ("no GPU is visible: running on the CPU (--gpu-ids None says so without this notice)",)
    return LaunchPlan(
        mode="spawn" if spawn else "in_process",
        ranks=ranks,
        backend=_resolve_backend(config, on_gpu=bool(gpus)) if world_size > 1 else None,
        environ=_rank_environ(tuple(visible[index] for index in gpus), num_threads) if spawn else {},
        log_dir=_resolve_log_dir(config, environ, run_dir) if spawn else None,
        heartbeat_timeout_s=config.heartbeat_timeout_s,
        start_timeout_s=max(START_TIMEOUT_S, config.heartbeat_timeout_s),
        stop_grace_s=config.stop_grace_s,
        max_restarts=config.max_restarts,
        notices=notices,
    )


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
    if not config.heartbeat_timeout_s > 0:
        raise RequestError(f"--heartbeat-timeout-s {config.heartbeat_timeout_s}: must be more than 0")
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
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def _resolve_log_dir(config: LaunchConfig, environ: Mapping[str, str], run_dir: PurePath | None) -> str | None:
    asked = environ.get("TORCHRUNX_LOG_DIR", config.torchrunx_log_dir)
    if asked is not None:
        return asked or None
    return None if run_dir is None else str(run_dir / "torchrunx")
