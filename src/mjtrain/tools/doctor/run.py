"""All checks, from those of one host to those of all ranks."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mjtrain.config import LaunchConfig
from mjtrain.launcher import LaunchPlan, find_hosts, make_plan, rendezvous, run_plan
from mjtrain.launcher.ipc.signals import StopSignals, leave
from mjtrain.launcher.planning.external import ExternalNode, ExternalRank, add_local_world_size, resolve_external
from mjtrain.launcher.planning.resolve import resolve_hostnames, resolve_plan
from mjtrain.runs.storage.store import check_url
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.processes import ancestor_commands
from mjtrain.tools.doctor.finding import Finding, Question, skipped
from mjtrain.tools.doctor.hosts import HostReport, ask_hosts, ask_this_host
from mjtrain.tools.doctor.ranks import RankTask, check_ranks, explain, judge_ranks
from mjtrain.tools.doctor.timed import SLOW_CHECKS
from mjtrain.tools.doctor.versions import compare_versions

_KEEP_FROM_STARTING = {
    "host",
    "python",
    "packages",
    "descriptors",
    "processes",
    "memory",
    "interface",
    "port",
    "gpus",
    "cuda",
}
"""Checks whose failure means that no rank can start, or none can reach the others: it need not be tried."""

_IMPORTS_S = 60.0
"""Time that ranks have until they begin, beside the limit of each check."""

_LATE_S = 10.0
"""How much later than the others a rank may begin."""

SKIPPABLE = (*SLOW_CHECKS, "ranks")
"""Names of the checks that can be left out."""

OnFinding = Callable[[Finding], None]


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """What a training would use."""

    launch: LaunchConfig
    log_root: str = "logs"
    """Folder below which runs would live."""

    checkpoint_url: str | None = None
    """Object storage; None for none."""

    video: bool = False
    skip: tuple[str, ...] = ()
    """Checks to leave out, of `SKIPPABLE`."""

    timeout_s: float = 60.0
    """Time that a check may take, in seconds."""


def has_several_hosts(launch: LaunchConfig) -> bool:
    """Return whether a job has several hosts, as far as is known before any is asked."""
    external = resolve_external(add_local_world_size(os.environ, ancestor_commands()))
    if isinstance(external, ExternalRank):
        return external.world_size > external.local_world_size
    if external is not None:
        return external.num_nodes > 1
    return len(resolve_hostnames(launch, os.environ)) > 1


def run_doctor(request: DoctorRequest, on_finding: OnFinding) -> bool:
    """Make all checks.

    Args:
        on_finding: Called with each finding as it comes; under torchrun, srun or on nodes, only by the process that
            leads, or by each where they do not find each other.
    """
    request, expected = _check(request)
    with StopSignals(leave):  # so that agents are left in order
        if resolve_hostnames(request.launch, os.environ):
            _check_named_hosts(request, on_finding)
            return True
        _check_this_host(request, expected, on_finding)
    return expected.leads


def _check(request: DoctorRequest) -> tuple[DoctorRequest, LaunchPlan]:
    """Check the flags without asking a driver, which may hang."""
    if not request.timeout_s > 0:
        raise RequestError(f"--timeout-s {request.timeout_s:g}: must be more than 0")
    for name in request.skip:
        if name not in SKIPPABLE:
            raise RequestError(f"--skip {name}: give some of {', '.join(SKIPPABLE)}")
    url = request.checkpoint_url
    limits = dict.fromkeys(("connect_timeout_s", "process_group_timeout_s"), request.timeout_s)
    launch = replace(request.launch, heartbeat_timeout_s=request.timeout_s, **limits)
    request = replace(
        request,
        launch=launch,
        log_root=str(Path(request.log_root).absolute()),
        checkpoint_url=None if url is None else check_url("--checkpoint-url", url),
    )
    environ = add_local_world_size(os.environ, ancestor_commands())
    ids = launch.gpu_ids
    if launch.hostnames:
        environ.pop("CUDA_VISIBLE_DEVICES", None)  # of this host
    num_gpus = max(ids, default=-1) + 1 if isinstance(ids, tuple) else 1
    return request, resolve_plan(replace(launch, gpu_ids=None if ids == "auto" else ids), environ, num_gpus)


def _make_question(request: DoctorRequest, num_ranks: int | None, world_size: int) -> Question:
    launch = request.launch
    return Question(
        log_root=request.log_root,
        checkpoint_url=request.checkpoint_url,
        video=request.video,
        gpu_ids=list(launch.gpu_ids) if isinstance(launch.gpu_ids, tuple) else launch.gpu_ids,
        num_ranks=num_ranks,
        world_size=world_size,
        num_threads=launch.num_threads,
        interface=launch.interface,
        skip=request.skip,
        timeout_s=request.timeout_s,
    )


def _check_named_hosts(request: DoctorRequest, tell: OnFinding) -> None:
    """Check the hosts of --hostnames, and the ranks there."""
    launch = request.launch
    counts = {name: count or launch.num_workers for name, count in resolve_hostnames(launch, os.environ).items()}
    world_size = sum(count or 1 for count in counts.values())
    questions = {name: _make_question(request, count, world_size) for name, count in counts.items()}
    reports = ask_hosts(questions, launch, tell)
    findings = [finding for report in reports for finding in report.findings]
    findings += _compare(reports, tell)
    if reason := _explain_skip(request, findings):
        tell(skipped("ranks", reason))
        return
    try:
        plan = make_plan(launch, hosts=find_hosts(launch))
    except RequestError as error:
        tell(explain(error))
        return
    _run_ranks(plan, request, RankTask(log_root=request.log_root, can_write=_can_write(findings)), tell)


def _check_this_host(request: DoctorRequest, expected: LaunchPlan, tell: OnFinding) -> None:
    """Check this host, alone or as one of those on which something else has started the same command."""
    if expected.leads:
        _check_own_part(request, expected, tell, tell)
        return
    held: list[Finding] = []
    leader_knows = False
    try:
        leader_knows = _check_own_part(request, expected, held.append, tell)
    finally:
        if not leader_knows:  # torchrun ends this process when another one has failed
            for finding in held:
                tell(finding)


def _check_own_part(request: DoctorRequest, expected: LaunchPlan, of_host: OnFinding, of_ranks: OnFinding) -> bool:
    """Check this host if this is its first process, then the ranks."""
    external, first = expected.external, expected.ranks[0]
    report = None
    if first.local_rank == 0:
        here = first.local_world_size if request.launch.gpu_ids != "all" else None
        question = replace(_make_question(request, here, expected.world_size), listens_at=_find_port(external))
        report = ask_this_host(question, of_host)
    findings = [] if report is None else report.findings
    if reason := _explain_skip(request, findings):
        of_host(skipped("ranks", reason))
        return False
    task = RankTask(
        log_root=request.log_root,
        can_write=_can_write(findings),
        report=report.to_plain() if external is not None and report is not None else None,
    )
    return _run_ranks(make_plan(request.launch), request, task, of_ranks)


def _find_port(external: ExternalRank | ExternalNode | None) -> tuple[str, int] | None:
    """Return where this process waits for the others, if it does."""
    if isinstance(external, ExternalRank):
        waits = external.rank == 0 and not external.served
    else:
        waits = external is not None and external.node_rank == 0
    return (external.master_addr, external.master_port) if waits and external is not None else None


def _run_ranks(plan: LaunchPlan, request: DoctorRequest, task: RankTask, tell: OnFinding) -> bool:
    """Start the ranks as a training does; tell what they find, where this process leads; return whether they ran."""
    start_timeout_s = request.timeout_s + _IMPORTS_S
    plan = replace(plan, log_dir=None, log_below_run=False, start_timeout_s=start_timeout_s, notices=())
    try:
        group = rendezvous(plan, f"doctor\n{request.log_root}")
        found = run_plan(plan, check_ranks, task, rendezvous=group, preload=("mjtrain.tools.doctor.measure",))
    except Exception as error:
        tell(explain(error))
        return False
    if not plan.leads:
        return True
    from mjtrain.tools.doctor.measure import LARGE_BYTES

    reports = [HostReport.from_plain(plain) for plain in found["reports"] if plain is not None]
    for report in reports[1:]:
        for finding in report.findings:
            tell(finding)
    _compare(reports, tell)
    for finding in judge_ranks(found, backend=plan.backend, large_bytes=LARGE_BYTES):
        tell(finding)
    return True


def _compare(reports: list[HostReport], tell: OnFinding) -> list[Finding]:
    """Compare the versions of all hosts with those of the first."""
    facts = [(report.name, report.facts) for report in reports if report.facts is not None]
    found = [
        replace(finding, place=name)
        for name, theirs in facts[1:]
        for finding in compare_versions(theirs, facts[0][1] or {})
    ]
    for finding in found:
        tell(finding)
    return found


def _explain_skip(request: DoctorRequest, findings: list[Finding]) -> str:
    """Say why no ranks are started; empty if they are."""
    if "ranks" in request.skip:
        return "--skip ranks"
    failed = [one for one in findings if one.result == "failure" and one.check in _KEEP_FROM_STARTING]
    names = ", ".join(dict.fromkeys(f"{one.check} on {one.place}" for one in failed))
    return f"not started, because of {names}" if names else ""


def _can_write(findings: list[Finding]) -> bool:
    return all(one.result != "failure" for one in findings if one.check in ("log root", "disk space"))
