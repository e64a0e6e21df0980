"""All decisions about processes, hosts, devices, seeds and threads, made once from plain inputs; pure."""

import re
from collections.abc import Mapping
from dataclasses import replace

from mjtrain.config import LaunchConfig
from mjtrain.config.type_check import find_option_problems, show
from mjtrain.launcher.faults import Fault, find_launch_problems, parse_faults
from mjtrain.launcher.planning.external import (
    TOKEN_VARIABLE,
    ExternalNode,
    ExternalRank,
    expand_hosts,
    resolve_external,
)
from mjtrain.launcher.planning.membership import list_places
from mjtrain.launcher.planning.placement import (
    plan_external_rank,
    plan_hosts,
    plan_this_host,
    visible_gpus,
    workers_with_gpus,
)
from mjtrain.launcher.planning.plan import Host, LaunchPlan
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import check_seed


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
        plan = plan_external_rank(config, environ, external, visible, num_cores)
    elif hosts:
        plan = plan_hosts(config, environ, hosts)
    else:
        plan = plan_this_host(config, environ, external, visible, num_cores)
    check_seed("--seed", config.seed, plan.world_size)
    if not isinstance(external, ExternalRank):
        _check_least(config, plan)
    if isinstance(external, ExternalNode) and external.is_open and not config.no_job_token:
        raise RequestError(
            f"{TOKEN_VARIABLE} is not set: anyone who reaches {external.master_addr}:{external.master_port} could join "
            "this job; set it to the same secret on every node (openssl rand -hex 32), or give --no-job-token"
        )
    return replace(plan, faults=_resolve_faults(config, plan))


def _resolve_faults(config: LaunchConfig, plan: LaunchPlan) -> tuple[Fault, ...]:
    """Read --inject-fault, and refuse what cannot happen to these ranks."""
    faults, one_host = parse_faults(config.inject_fault), plan.world_size == plan.ranks[0].local_world_size
    problems = find_launch_problems(
        faults,
        world_size=plan.world_size,
        supervised=plan.mode not in ("in_process", "join"),
        by_network=plan.backend != "nccl" or not one_host,
    )
    if found := list(problems):
        raise RequestError.of(found)
    return faults


def resolve_hostnames(config: LaunchConfig, environ: Mapping[str, str]) -> dict[str, int | None]:
    """Decide which hosts to probe; none if this job runs on this host alone.

    Returns:
        How many ranks each host gets, by its name; None for the number it would get as the only host.
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
    if problems := find_option_problems(config):
        raise RequestError.of(problems)
    if config.num_workers is not None and config.gpu_ids not in (None, "auto"):
        raise workers_with_gpus(config)


def _check_least(config: LaunchConfig, plan: LaunchPlan) -> None:
    """Compare --min-ranks and --min-hosts with the job."""
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
