"""Which ranks run where: on this host, as one of a job that something else has started, or on several hosts; pure."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Literal

from mjtrain.config import LaunchConfig
from mjtrain.errors import RequestError
from mjtrain.launcher.planning.devices import resolve_gpu_ids
from mjtrain.launcher.planning.external import ExternalNode, ExternalRank
from mjtrain.launcher.planning.plan import Host, HostPlan, LaunchPlan
from mjtrain.rank import RankContext

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

START_TIMEOUT_S = 300.0
"""Least time that spawned ranks have until they begin: imports from a cold disk can take minutes."""


def place_here(
    config: LaunchConfig,
    environ: Mapping[str, str],
    world: ExternalNode | None,
    visible: tuple[str, ...],
    num_cores: int,
    run_dir: PurePath | None,
) -> LaunchPlan:
    """Decide which ranks run on this host: all of the job, or one node's part of it."""
    gpus = resolve_gpu_ids(config.gpu_ids, visible)
    if config.num_workers is not None and gpus:
        raise workers_with_gpus(config)
    count = len(gpus) or config.num_workers or 1
    num_nodes, node_rank = (1, 0) if world is None else (world.num_nodes, world.node_rank)
    if world is not None and config.hostnames:
        raise RequestError(
            f"--hostnames: cannot be asked for here: something has started this as node {node_rank} of {num_nodes}"
        )
    num_threads = config.num_threads or max(1, num_cores // count)
    # Nobody can start his own process again.
    spawn = count > 1 or config.max_restarts > 0 or world is not None
    ranks = tuple(
        RankContext(
            rank=node_rank * count + local_rank,
            local_rank=local_rank,
            world_size=count * num_nodes,
            local_world_size=count,
            node_rank=node_rank,
            # A spawned rank sees only the chosen GPUs, in order; in this process the visible list stays as it is.
            device=f"cuda:{local_rank if spawn else gpus[local_rank]}" if gpus else "cpu",
            seed=config.seed + node_rank * count + local_rank,
            num_threads=num_threads,
        )
        for local_rank in range(count)
    )
    interface = "lo" if world is None else None
    rank_environ = _rank_environ(tuple(visible[index] for index in gpus), num_threads, interface)
    if world is not None:
        rank_environ |= _interface_environ(config)
    return LaunchPlan(
        mode="node" if world is not None else "spawn" if spawn else "in_process",
        ranks=ranks,
        world=world,
        place=None if world is None else (world.master_addr, 0),
        backend=_resolve_backend(config, on_gpu=bool(gpus)) if count * num_nodes > 1 else None,
        environ=rank_environ if spawn else {},
        log_dir=_resolve_log_dir(config, environ, run_dir) if spawn else None,
        connect_timeout_s=config.connect_timeout_s,
        process_group_timeout_s=config.process_group_timeout_s,
        heartbeat_timeout_s=config.heartbeat_timeout_s,
        start_timeout_s=max(START_TIMEOUT_S, config.heartbeat_timeout_s),
        stop_grace_s=config.stop_grace_s,
        max_restarts=config.max_restarts,
        notices=_notices(config, on_gpu=bool(gpus)),
    )


def join_world(
    config: LaunchConfig, environ: Mapping[str, str], world: ExternalRank, visible: tuple[str, ...], num_cores: int
) -> LaunchPlan:
    """Decide what this process does as a rank of a job that something else has started."""
    here = f"{world.source} has started this process as rank {world.rank} of {world.world_size}"
    for flag, given, why in (
        ("--gpu-ids", config.gpu_ids not in (None, "auto"), "each rank takes the GPU of its local rank"),
        ("--num-workers", config.num_workers is not None, "the number of ranks is decided there"),
        ("--max-restarts", config.max_restarts > 0, f"only {world.source} can start them again"),
        ("--hostnames", bool(config.hostnames), "the hosts are chosen there"),
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


def spread_over(
    config: LaunchConfig, environ: Mapping[str, str], hosts: tuple[Host, ...], run_dir: PurePath | None
) -> LaunchPlan:
    """Decide which ranks run on which of several hosts."""
    gpus = []
    for host in hosts:
        try:
            gpus.append(_choose_gpus(config, host))
        except RequestError as error:
            raise RequestError(f"host {host.name}: {error}") from error
    on_gpu = bool(gpus[0])
    for host, ids in zip(hosts, gpus, strict=True):
        if bool(ids) != on_gpu:
            with_gpu, without = (host.name, hosts[0].name) if ids else (hosts[0].name, host.name)
            raise RequestError(
                f"--gpu-ids: host {without} has no visible GPU and {with_gpu} has one: use hosts of one kind, or "
                "--gpu-ids None"
            )
    if config.num_workers is not None and on_gpu:
        raise workers_with_gpus(config)
    counts = [len(ids) or host.num_ranks or config.num_workers or 1 for host, ids in zip(hosts, gpus, strict=True)]
    world_size = sum(counts)
    ranks, plans = [], []
    for node_rank, (host, count, ids) in enumerate(zip(hosts, counts, gpus, strict=True)):
        num_threads = config.num_threads or max(1, host.num_cores // count)
        ranks += [
            RankContext(
                rank=len(ranks) + local_rank,
                local_rank=local_rank,
                world_size=world_size,
                local_world_size=count,
                node_rank=node_rank,
                device=f"cuda:{local_rank}" if on_gpu else "cpu",
                seed=config.seed + len(ranks) + local_rank,
                num_threads=num_threads,
            )
            for local_rank in range(count)
        ]
        visible = tuple(host.visible[index] for index in ids)
        plans.append(
            HostPlan(
                name=host.name,
                environ={**_rank_environ(visible, num_threads, interface=None), **_interface_environ(config)},
            )
        )
    return LaunchPlan(
        mode="hosts",
        ranks=tuple(ranks),
        hosts=tuple(plans),
        place=(hosts[0].address, 0),
        transport="srun" if config.hostnames == ("slurm",) else "ssh",
        ssh_config_file=config.ssh_config_file,
        copy_env=config.copy_env,
        backend=_resolve_backend(config, on_gpu=on_gpu) if world_size > 1 else None,
        environ={},
        log_dir=_resolve_log_dir(config, environ, run_dir),
        connect_timeout_s=config.connect_timeout_s,
        process_group_timeout_s=config.process_group_timeout_s,
        heartbeat_timeout_s=config.heartbeat_timeout_s,
        start_timeout_s=max(START_TIMEOUT_S, config.heartbeat_timeout_s),
        stop_grace_s=config.stop_grace_s,
        max_restarts=config.max_restarts,
        notices=_notices(config, on_gpu=on_gpu),
    )


def _choose_gpus(config: LaunchConfig, host: Host) -> tuple[int, ...]:
    """Choose GPUs of a host: as many as it was given ranks, the first of those that may be taken."""
    if host.num_ranks is None or not host.visible:
        return resolve_gpu_ids(config.gpu_ids, host.visible)
    ids = resolve_gpu_ids("all" if config.gpu_ids == "auto" else config.gpu_ids, host.visible)
    if ids and len(ids) < host.num_ranks:
        raise RequestError(f"--hostnames {host.name}:{host.num_ranks}: there are only {len(ids)} GPUs to take")
    return ids[: host.num_ranks]


def _share_cores(num_cores: int, world: ExternalRank, environ: Mapping[str, str]) -> int:
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


def workers_with_gpus(config: LaunchConfig) -> RequestError:
    """Say that --num-workers does not go with GPUs."""
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


def _rank_environ(gpus: tuple[str, ...], num_threads: int, interface: str | None = "lo") -> dict[str, str]:
    """Return the variables of spawned ranks.

    Args:
        gpus: What they may see.
        num_threads: Of each.
        interface: Where they listen; where all are on one host, nothing needs any other than loopback.
    """
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "OMP_NUM_THREADS": str(num_threads),
        "PYTHONUNBUFFERED": "1",
        **({} if interface is None else dict.fromkeys(INTERFACE_VARIABLES, interface)),
    }


def _resolve_log_dir(config: LaunchConfig, environ: Mapping[str, str], run_dir: PurePath | None) -> str | None:
    asked = environ.get("TORCHRUNX_LOG_DIR", config.torchrunx_log_dir)
    if asked is not None:
        return asked or None
    return None if run_dir is None else str(run_dir / "torchrunx")
