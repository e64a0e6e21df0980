"""All checks, from those of one host to those of all ranks."""

import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mjtrain.config import LaunchConfig, to_plain
from mjtrain.launcher import LaunchPlan, LaunchRequest, find_hosts, make_plan, read_environ, rendezvous, run_plan
from mjtrain.launcher.ipc.signals import StopSignals, leave
from mjtrain.launcher.multinode.probe import call_on_hosts
from mjtrain.launcher.planning.external import ExternalNode, ExternalRank, resolve_external
from mjtrain.launcher.planning.placement import resolve_hostnames, resolve_plan
from mjtrain.runs.storage.store import check_url
from mjtrain.runtime.errors import RequestError
from mjtrain.tools.doctor.finding import Finding, Question, failure, skipped
from mjtrain.tools.doctor.host import SLOW_CHECKS, check_host, compare_versions
from mjtrain.tools.doctor.ranks import explain, judge_ranks, measure_ranks

_NEEDED = ("host", "python", "packages", "descriptors", "processes", "memory", "gpus", "cuda", "interface", "port")
"""Checks whose failure means that no rank can start, or that none can reach the others: it need not be tried."""

_START_S = 60.0
"""Time that hosts and ranks have to begin, beside the limit of each check."""

_LONGEST_S = 1_000_000
"""Largest --timeout-s; longer waits overflow the clocks of locks and sockets."""

_LEAVE_S = 10.0
"""Time that a check which hangs may take to end."""

OnFinding = Callable[[Finding], None]


@dataclass
class Hosts:
    """What is known of the hosts of a job."""

    on_finding: OnFinding
    facts: list[dict[str, Any]] = field(default_factory=list)
    """What `describe_host` returned there."""
    findings: list[Finding] = field(default_factory=list)

    def hear(self, name: str, value: dict[str, Any]) -> None:
        """Take what `check_host` has yielded on a host."""
        if "facts" in value:
            self.facts.append({**value["facts"], "host": name})
        else:
            self.add(Finding(**value).at(name))

    def add(self, *findings: Finding) -> None:
        """Keep findings, and tell them."""
        for finding in findings:
            self.findings.append(finding)
            self.on_finding(finding)

    def compare(self) -> None:
        """Compare the versions of all hosts with those of the first."""
        for facts in self.facts[1:]:
            self.add(*compare_versions(facts, self.facts[0]))

    def failed(self, *checks: str) -> str:
        """Name which of some checks have failed, and where."""
        failures = [one for one in self.findings if one.result == "failure" and one.check in checks]
        return ", ".join(dict.fromkeys(f"{one.check} on {one.place}" for one in failures))


def has_several_hosts(launch: LaunchConfig) -> bool:
    """Return whether a job has several hosts, as far as is known before any is asked."""
    external = resolve_external(read_environ())
    if isinstance(external, ExternalRank):
        return external.world_size > external.local_world_size
    return external.num_nodes > 1 if external is not None else len(resolve_hostnames(launch, os.environ)) > 1


def run_doctor(question: Question, on_finding: OnFinding) -> bool:
    """Make all checks, and return whether this process leads.

    Args:
        question: What a training would use; the limits of time of its launch are replaced.
        on_finding: Called with each finding as it comes; under torchrun, srun or on nodes, only by the process that
            leads, or by each where they do not find each other.
    """
    question, expected = _check(question)
    with StopSignals(leave):  # so that hosts are left in order
        if not (counts := resolve_hostnames(question.launch, os.environ)):
            _check_this_host(question, expected, on_finding)
            return expected.leads
        _check_named_hosts(question, counts, Hosts(on_finding))
        return True


def _check(question: Question) -> tuple[Question, LaunchPlan]:
    """Check the flags without asking a driver, which may hang."""
    launch, url, timeout_s, ids = question.launch, question.checkpoint_url, question.timeout_s, question.launch.gpu_ids
    if not 0 < timeout_s <= _LONGEST_S:
        raise RequestError(f"--timeout-s {timeout_s:g}: must be more than 0 and at most {_LONGEST_S:,}")
    for name in question.skip:
        if name not in (*SLOW_CHECKS, "ranks"):
            raise RequestError(f"--skip {name}: give some of {', '.join(SLOW_CHECKS)}, ranks")
    url = None if url is None else check_url("--checkpoint-url", url)
    limits = dict.fromkeys(("connect_timeout_s", "process_group_timeout_s", "heartbeat_timeout_s"), timeout_s)
    launch, log_root = replace(launch, **limits), str(Path(question.log_root).absolute())
    question = replace(question, launch=launch, log_root=log_root, checkpoint_url=url)
    environ = read_environ()
    if launch.hostnames:
        environ.pop("CUDA_VISIBLE_DEVICES", None)  # of this host
    num_gpus = max(ids, default=-1) + 1 if isinstance(ids, tuple) else 1
    return question, resolve_plan(replace(launch, gpu_ids=None if ids == "auto" else ids), environ, num_gpus)


def _check_named_hosts(question: Question, counts: dict[str, int | None], hosts: Hosts) -> None:
    counts = {name: count or question.launch.num_workers for name, count in counts.items()}
    question = replace(question, world_size=sum(count or 1 for count in counts.values()))
    call_on_hosts(
        "mjtrain.tools.doctor.host:check_host",
        {name: to_plain(replace(question, num_ranks=count)) for name, count in counts.items()},
        question.launch,
        hosts.hear,
        lambda name, problem: hosts.add(failure("host", problem, _advise(problem, name)).at(name)),
        timeout_s=_START_S + len(SLOW_CHECKS) * (question.timeout_s + _LEAVE_S),
    )
    hosts.facts.sort(key=lambda facts: list(counts).index(facts["host"]))
    hosts.compare()
    _check_ranks(question, hosts)


def _advise(problem: str, host: str) -> str:
    if "does not resolve" in problem:
        return f"add {host} to DNS, /etc/hosts or the SSH configuration (--ssh-config-file)"
    if "host key" in problem:
        return f"`ssh {host}` once by hand, and compare the key that it shows"
    if "does not exist" in problem:
        return "mount or install it at the same path on every host"
    if problem.startswith("SSH failed"):
        return f"`ssh -o BatchMode=yes {host} true` must work without a question: keys, user, port, firewall"
    return f"log in on {host} and look whether it is up; then try again, with a larger --timeout-s if it is slow"


def _check_this_host(question: Question, expected: LaunchPlan, tell: OnFinding) -> None:
    """Check this host, alone or among others of a job; of one host's processes the first checks it."""
    held: list[Finding] = []
    leader_knows = False
    hosts, first = Hosts(tell if expected.leads else held.append), expected.ranks[0]
    num_ranks = first.local_world_size if question.launch.gpu_ids != "all" else None
    place = {"num_ranks": num_ranks, "world_size": expected.world_size, "listens_at": _find_port(expected.external)}
    try:
        if first.local_rank == 0:
            for value in check_host(**{**to_plain(question), **place}):
                hosts.hear(socket.gethostname(), value)
        leader_knows = _check_ranks(question, hosts)
    finally:
        if not leader_knows:  # torchrun ends this process when another one has failed
            for finding in held:
                tell(finding)


def _find_port(external: ExternalRank | ExternalNode | None) -> tuple[str, int] | None:
    """Return where this process waits for the others, if it does."""
    if external is None:
        return None
    waits = not (external.rank or external.served) if isinstance(external, ExternalRank) else external.node_rank == 0
    return (external.master_addr, external.master_port) if waits else None


def _check_ranks(question: Question, hosts: Hosts) -> bool:
    """Start the ranks as a training does, and tell what they find; whether the process that leads knows all of it."""
    failed = hosts.failed(*_NEEDED)
    if failed or "ranks" in question.skip:
        reason = "--skip ranks" if "ranks" in question.skip else f"not started, because of {failed}"
        hosts.add(skipped("ranks", reason))
        return False
    try:
        plan = make_plan(question.launch, hosts=find_hosts(question.launch))
    except RequestError as error:
        if not question.launch.hostnames:
            raise
        hosts.add(explain(error))
        return False
    plan = replace(plan, log_dir=None, log_below_run=False, start_timeout_s=question.timeout_s + _START_S, notices=())
    report = {"facts": hosts.facts, "findings": [asdict(finding) for finding in hosts.findings]}
    task = (question.log_root, not hosts.failed("log root", "disk space"), report if plan.external else None)
    try:
        group = rendezvous(plan, "doctor")
        preload = ("mjtrain.learning.collectives",)  # imports torch
        found = run_plan(LaunchRequest(plan=plan, fn=measure_ranks, args=task, preload=preload), group)
    except Exception as error:
        hosts.add(explain(error))
        return False
    if plan.leads:
        for rank in found["ranks"][1:]:
            if rank["report"] is not None:
                hosts.add(*(Finding(**plain) for plain in rank["report"]["findings"]))
                hosts.facts += rank["report"]["facts"]
        if plan.external:
            hosts.compare()
        hosts.add(*judge_ranks(found, backend=plan.backend))
    return True
