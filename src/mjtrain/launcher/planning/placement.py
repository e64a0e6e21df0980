"""Which ranks run where, on which devices, with which seeds and threads: decided once from plain inputs; pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal

from mjtrain.config import GpuIds, LaunchConfig
from mjtrain.config.limits import find_option_problems, show
from mjtrain.launcher.faults import find_launch_problems, parse_faults
from mjtrain.launcher.planning.external import (
    TOKEN_VARIABLE,
    ExternalNode,
    ExternalRank,
    expand_hosts,
    resolve_external,
)
from mjtrain.launcher.planning.membership import list_places
from mjtrain.launcher.planning.plan import Host, HostPlan, LaunchPlan
from mjtrain.runtime.errors import RequestError, count, refuse
from mjtrain.runtime.rank import RankContext, check_seed

_NO_GPU = "no GPU is visible: running on the CPU (pass --gpu-ids None to silence this)"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def resolve_plan(
    config: LaunchConfig,
    environ: Mapping[str, str],
    num_visible_gpus: int,
    *,
    num_cores: int = 1,
    hosts: tuple[Host, ...] = (),
) -> LaunchPlan:
    """Decide which ranks run where."""
    _check_request(config)
    visible = visible_gpus(environ, num_visible_gpus)
    external = resolve_external(environ)
    if isinstance(external, ExternalRank):
        plan = _plan_external_rank(config, environ, external, visible, num_cores)
    elif hosts:
        plan = _plan_hosts(config, environ, hosts)
    else:
        plan = _plan_this_host(config, environ, external, visible, num_cores)
    check_seed("--seed", config.seed, plan.world_size)
    if not isinstance(external, ExternalRank):
        _check_least(config, plan)
    if isinstance(external, ExternalNode) and external.is_open and not config.no_job_token:
        raise RequestError(
            f"{TOKEN_VARIABLE} is not set: anyone who reaches {external.master_addr}:{external.master_port} could join "
            "this job; set it to the same secret on every node (openssl rand -hex 32), or give --no-job-token"
        )
    faults = parse_faults(config.inject_fault)
    supervised = plan.mode not in ("in_process", "join")
    by_network = plan.backend != "nccl" or plan.world_size != plan.ranks[0].local_world_size
    refuse(find_launch_problems(faults, world_size=plan.world_size, supervised=supervised, by_network=by_network))
    return replace(plan, faults=faults)


def resolve_hostnames(config: LaunchConfig, environ: Mapping[str, str]) -> dict[str, int | None]:
    """Return the hosts to probe, and how many ranks each gets; none if this job runs on this host alone.

    None stands for the number of ranks that a host would get if it were the only host.
    """
    _check_request(config)
    asked = " ".join(config.hostnames)
    if resolve_external(environ) is not None:
        return {}  # --hostnames is an error then, see `resolve_plan`
    if config.hostnames == ("slurm",):
        if "SLURM_JOB_NODELIST" not in environ:
            raise RequestError("--hostnames slurm: this is not a Slurm allocation (SLURM_JOB_NODELIST is not set)")
        return dict.fromkeys(expand_hosts(environ["SLURM_JOB_NODELIST"]))
    counts: dict[str, int | None] = {}
    for word in config.hostnames:
        counted = re.fullmatch(r"([^:]+):(\d+)", word)
        name, count = (counted[1], int(counted[2])) if counted else (word, None)
        if name in counts:
            raise RequestError(f"--hostnames {asked}: {name} is repeated")
        if not name or name.startswith("-"):
            raise RequestError(f"--hostnames {asked}: {name!r} is not a host name")
        if count == 0:
            raise RequestError(f"--hostnames {asked}: {word} leaves the host without a rank")
        counts[name] = count
    return counts


def _check_request(config: LaunchConfig) -> None:
    """Refuse what is wrong on any machine."""
    if not isinstance(config, LaunchConfig):
        raise RequestError(f"launch: is {show(config)}; give a LaunchConfig")
    if config.gpu_ids not in (None, "all", "auto") and not (
        isinstance(config.gpu_ids, tuple) and all(isinstance(index, int) for index in config.gpu_ids)
    ):
        raise RequestError(f"--gpu-ids {config.gpu_ids!r}: give a tuple of indices such as (0, 1), 'all', or None")
    refuse(find_option_problems(config))
    if config.num_workers is not None and config.gpu_ids not in (None, "auto"):
        raise _workers_with_gpus(config)


def _check_least(config: LaunchConfig, plan: LaunchPlan) -> None:
    places = list_places(plan)
    hosts = len({place.node for place in places})
    for flag, least, there in (
        ("--min-ranks", config.min_ranks, len(places)),
        ("--min-hosts", config.min_hosts, hosts),
    ):
        if least is None:
            continue
        unit = flag.removeprefix("--min-").removesuffix("s") + ("s" if there > 1 else "")
        if least > there:
            raise RequestError(f"{flag} {least}: the job has {there} {unit}; give at most {there}")
        if config.max_restarts == 0:
            raise RequestError(
                f"{flag} {least}: needs --max-restarts, as what has failed is left out when the job is started again"
            )
    if config.rejoin_at_save and config.min_ranks is None and config.min_hosts is None:
        raise RequestError("--rejoin-at-save: no host is left out without --min-hosts or --min-ranks; give one of them")
    if config.rejoin_at_save and hosts == 1:
        raise RequestError("--rejoin-at-save: the job has 1 host, which cannot be lost and come back; leave it out")


def visible_gpus(environ: Mapping[str, str], num_visible_gpus: int) -> tuple[str, ...]:
    """Name each GPU that ranks of this host may use, as CUDA_VISIBLE_DEVICES would: an index, or a GPU or MIG UUID."""
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
    """Turn --gpu-ids into indices into the visible GPUs, one per rank; none for the CPU."""
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
            raise RequestError(f"--gpu-ids {asked}: GPU {index} does not exist; the visible {there}")
    return gpu_ids


@dataclass(frozen=True, kw_only=True)
class _Share:
    """The ranks of one host."""

    num_ranks: int
    gpus: tuple[str, ...]
    """One entry of CUDA_VISIBLE_DEVICES per rank; empty on the CPU."""
    device: str
    """Torch device of each rank. Spawned ranks see one GPU each, which is cuda:0 there."""
    num_threads: int
    """Of each rank."""
    num_cores: int | None
    """See `LaunchPlan.num_cores`."""


def _plan_this_host(
    config: LaunchConfig,
    environ: Mapping[str, str],
    external: ExternalNode | None,
    visible: tuple[str, ...],
    num_cores: int,
) -> LaunchPlan:
    """Decide which ranks run on this host: all of the job, or one node's part of it."""
    ids = resolve_gpu_ids(config.gpu_ids, visible)
    if config.num_workers is not None and ids:
        raise _workers_with_gpus(config)
    num_nodes, node_rank = (1, 0) if external is None else (external.num_nodes, external.node_rank)
    if external is not None and config.hostnames:
        raise RequestError(
            f"--hostnames: cannot be used here: something has started this process as node {node_rank} of {num_nodes}"
        )
    share = _make_share(config, visible, ids, num_cores)
    out_of_reach = bool(ids) and ids[0] >= len(usable_in_process(visible))
    # A process cannot start itself again, and cannot change which MIG slice it sees.
    spawn = share.num_ranks > 1 or config.max_restarts > 0 or external is not None or out_of_reach
    if ids and not spawn:
        share = replace(share, device=f"cuda:{ids[0]}")
    ranks = tuple(rank for rank in _number_ranks(config, [share] * num_nodes) if rank.node_rank == node_rank)
    if not spawn:
        return _make_plan(config, share.gpus, mode="in_process", ranks=ranks)
    return _make_plan(
        config,
        share.gpus,
        mode="spawn" if external is None else "node",
        ranks=ranks,
        external=external,
        master=None if external is None else (external.master_addr, 0),
        gpus=share.gpus,
        num_cores=share.num_cores,
        # Ranks that are all on one host need no interface except loopback.
        environ=_rank_environ(share, config.interface if external is not None else "lo"),
        **_choose_log_dir(config, environ),
    )


def _plan_hosts(config: LaunchConfig, environ: Mapping[str, str], hosts: tuple[Host, ...]) -> LaunchPlan:
    shares = [_share_of(host, config) for host in hosts]
    first = shares[0]
    for host, share in zip(hosts, shares, strict=True):
        if share.device != first.device:
            with_gpu, without = (host.name, hosts[0].name) if share.gpus else (hosts[0].name, host.name)
            raise RequestError(
                f"--gpu-ids: host {without} has no visible GPU and {with_gpu} has one: use hosts of one kind, or "
                "--gpu-ids None"
            )
    if config.num_workers is not None and first.gpus:
        raise _workers_with_gpus(config)
    plans = [
        HostPlan(
            name=host.name,
            environ=_rank_environ(share, config.interface),
            gpus=share.gpus,
            address=host.address,
            num_cores=share.num_cores,
        )
        for host, share in zip(hosts, shares, strict=True)
    ]
    return _make_plan(
        config,
        tuple(gpu for share in shares for gpu in share.gpus),
        mode="hosts",
        ranks=_number_ranks(config, shares),
        hosts=tuple(plans),
        master=(hosts[0].address, 0),
        transport="srun" if config.hostnames == ("slurm",) else "ssh",
        **_choose_log_dir(config, environ),
    )


def _plan_external_rank(
    config: LaunchConfig, environ: Mapping[str, str], external: ExternalRank, visible: tuple[str, ...], num_cores: int
) -> LaunchPlan:
    """Decide what this process does as a rank of a job that something else has started."""
    here = f"{external.source} has started this process as rank {external.rank} of {external.world_size}"
    for flag, given, why in (
        ("--gpu-ids", config.gpu_ids not in (None, "auto"), "each rank uses the GPU of its local rank"),
        ("--num-workers", config.num_workers is not None, f"{external.source} decides the number of ranks"),
        ("--max-restarts", config.max_restarts > 0, f"only {external.source} can start its ranks again"),
        ("--min-ranks", config.min_ranks is not None, f"{external.source} sets the minimum number of ranks"),
        ("--min-hosts", config.min_hosts is not None, f"{external.source} decides how few hosts may continue"),
        ("--rejoin-at-save", config.rejoin_at_save, f"{external.source} decides when hosts are taken in"),
        ("--hostnames", bool(config.hostnames), f"{external.source} chooses the hosts"),
        ("--torchrunx-log-dir", config.torchrunx_log_dir is not None, f"{external.source} handles the output"),
    ):
        if given:
            raise RequestError(f"{flag}: cannot be used here: {here}, and {why}")
    on_gpu = bool(visible) and config.gpu_ids == "auto"
    usable = usable_in_process(visible)
    gpu = external.local_rank
    if on_gpu and gpu >= len(usable):
        if len(visible) > 1 or external.source not in ("srun", "jsrun"):
            there = "is 1 visible GPU" if len(usable) == 1 else f"are {len(usable)} visible GPUs"
            raise RequestError(
                f"{here}, the {external.local_world_size} ranks on this host need a GPU each, and there {there} per "
                "process: start fewer ranks per host, or use --gpu-ids None to train on the CPU"
            )
        gpu = 0  # as with srun --gpus-per-task 1: each task sees its own GPU only
    num_threads, notices = _share_cores(environ, external, num_cores)
    rank = RankContext(
        rank=external.rank,
        seed=config.seed + external.rank,
        local_rank=external.local_rank,
        world_size=external.world_size,
        local_world_size=external.local_world_size,
        node_rank=external.node_rank,
        device=f"cuda:{gpu}" if on_gpu else "cpu",
        num_threads=config.num_threads or num_threads,
    )
    plan = _make_plan(
        config,
        (usable[gpu],) if on_gpu else (),
        mode="join",
        ranks=(rank,),
        external=external,
        environ=_interface_environ(config.interface),
    )
    return replace(plan, notices=(*plan.notices, *notices))


def _share_cores(environ: Mapping[str, str], external: ExternalRank, num_cores: int) -> tuple[int, tuple[str, ...]]:
    """Return the threads of a rank that something else has started, and lines about them for the user."""
    asked = environ.get("SLURM_CPUS_PER_TASK", "")
    if external.source != "srun" or not asked.isdecimal():
        return max(1, num_cores // external.local_world_size), ()
    # Either srun has bound this task to its own cores, or all tasks of the host share all cores of the job.
    bound = num_cores < int(asked) * external.local_world_size
    num_threads = num_cores if bound else max(1, min(int(asked), num_cores // external.local_world_size))
    if num_cores >= int(asked):
        return num_threads, ()
    cores = count(num_cores, "core")
    return num_threads, (
        f"warning: SLURM_CPUS_PER_TASK={asked}, but this rank may use {cores}: srun does not inherit --cpus-per-task "
        f"from sbatch; give srun --cpus-per-task={asked}",
    )


def _workers_with_gpus(config: LaunchConfig) -> RequestError:
    return RequestError(
        f"--num-workers {config.num_workers}: is for CPU ranks; use it with --gpu-ids None, or leave it out to run "
        "one rank per GPU"
    )


def _share_of(host: Host, config: LaunchConfig) -> _Share:
    try:
        ids = _choose_gpus(config, host)
    except RequestError as error:
        raise RequestError(f"host {host.name}: {error}") from error
    return _make_share(config, host.visible, ids, host.num_cores, host.num_ranks)


def _make_share(
    config: LaunchConfig, visible: tuple[str, ...], ids: tuple[int, ...], num_cores: int, num_ranks: int | None = None
) -> _Share:
    """Give a host one rank per GPU, or else the number that is asked for; they divide its cores."""
    count = len(ids) or num_ranks or config.num_workers or 1
    return _Share(
        num_ranks=count,
        gpus=tuple(visible[index] for index in ids),
        device="cuda:0" if ids else "cpu",
        num_threads=config.num_threads or max(1, num_cores // count),
        num_cores=None if config.num_threads else num_cores,
    )


def _choose_gpus(config: LaunchConfig, host: Host) -> tuple[int, ...]:
    """Choose the GPUs of a host: one per rank it was given, the first of those that may be used."""
    if host.num_ranks is None or not host.visible:
        return resolve_gpu_ids(config.gpu_ids, host.visible)
    ids = resolve_gpu_ids("all" if config.gpu_ids == "auto" else config.gpu_ids, host.visible)
    if ids and len(ids) < host.num_ranks:
        raise RequestError(f"--hostnames {host.name}:{host.num_ranks}: the host has only {count(len(ids), 'GPU')}")
    return ids[: host.num_ranks]


def _number_ranks(config: LaunchConfig, shares: Sequence[_Share]) -> tuple[RankContext, ...]:
    counts = [share.num_ranks for share in shares]
    places = [(node_rank, local_rank) for node_rank, count in enumerate(counts) for local_rank in range(count)]
    return tuple(
        RankContext(
            rank=rank,
            seed=config.seed + rank,
            local_rank=local_rank,
            world_size=len(places),
            local_world_size=shares[node_rank].num_ranks,
            node_rank=node_rank,
            device=shares[node_rank].device,
            num_threads=shares[node_rank].num_threads,
        )
        for rank, (node_rank, local_rank) in enumerate(places)
    )


def _make_plan(
    config: LaunchConfig, used_gpus: tuple[str, ...], *, ranks: tuple[RankContext, ...], **fields: Any
) -> LaunchPlan:
    """Make a plan of what was decided; other fields are those of the config that have the same names."""
    same = LaunchPlan.__dataclass_fields__.keys() & LaunchConfig.__dataclass_fields__.keys()
    decided: dict[str, Any] = {
        "backend": _resolve_backend(config, used_gpus) if ranks[0].world_size > 1 else None,
        "start_timeout_s": max(config.start_timeout_s, config.heartbeat_timeout_s),
        "notices": (_NO_GPU,) if config.gpu_ids == "auto" and not used_gpus else (),
        "environ": {},
        "log_dir": None,
    }
    return LaunchPlan(ranks=ranks, **{name: getattr(config, name) for name in same} | decided | fields)


def _resolve_backend(config: LaunchConfig, used_gpus: tuple[str, ...]) -> Literal["gloo", "nccl"]:
    if config.backend == "nccl" and not used_gpus:
        raise RequestError("--backend nccl: needs GPUs; use gloo on the CPU")
    if config.backend == "auto":
        # NCCL takes two MIG slices of one GPU for the same device, and refuses.
        return "nccl" if used_gpus and not any(map(is_mig, used_gpus)) else "gloo"
    return config.backend


def _rank_environ(share: _Share, interface: str | None) -> dict[str, str]:
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(share.gpus),
        "OMP_NUM_THREADS": str(share.num_threads),
        "PYTHONUNBUFFERED": "1",
        **_interface_environ(interface),
    }


def _interface_environ(interface: str | None) -> dict[str, str]:
    return {} if interface is None else dict.fromkeys(INTERFACE_VARIABLES, interface)


def _choose_log_dir(config: LaunchConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    asked = environ.get("TORCHRUNX_LOG_DIR", config.torchrunx_log_dir)
    return {"log_dir": asked or None, "log_below_run": asked is None}
