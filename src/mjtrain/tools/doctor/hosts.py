"""Asks the agents of all hosts at the same time."""

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mjtrain.config import LaunchConfig
from mjtrain.launcher.ipc.host_connection import HOST_TIMEOUT_S
from mjtrain.launcher.multinode.probe import select_environ
from mjtrain.launcher.multinode.transport import HostHandle, open_handle
from mjtrain.tools.doctor.finding import Finding, Question, failure
from mjtrain.tools.doctor.timed import SLOW_CHECKS
from mjtrain.tools.doctor.versions import describe_host

AGENT = "mjtrain.tools.doctor.host_agent"

_START_S = 60.0
"""Time that an agent has to start, perhaps from a cold disk."""

_END_S = 5.0


@dataclass(kw_only=True)
class HostReport:
    """What the agent of one host has said."""

    name: str
    """What the user calls the host."""

    facts: dict[str, Any] | None = None
    """What `versions.describe_host` returned there; None if the agent did not come so far."""

    findings: list[Finding] = field(default_factory=list)
    done: bool = False

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values, see `from_plain`."""
        findings = [finding.to_plain() for finding in self.findings]
        return {"name": self.name, "facts": self.facts, "findings": findings, "done": self.done}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "HostReport":
        """Restore it from what `to_plain` returned."""
        return cls(**{**plain, "findings": [Finding.from_plain(one) for one in plain["findings"]]})


def ask_this_host(question: Question, on_finding: Callable[[Finding], None]) -> HostReport:
    """Make the checks of this host; arguments as those of `ask_hosts`."""
    handle = open_handle("localhost", ssh_config_file=None, transport="ssh", module=AGENT)
    (report,) = _ask([handle], [question], on_finding, {}, name=describe_host()["host"])
    return report


def ask_hosts(
    questions: Mapping[str, Question], config: LaunchConfig, on_finding: Callable[[Finding], None]
) -> list[HostReport]:
    """Make the checks of several hosts at the same time.

    Returns:
        Their reports, in the same order. A host that cannot be reached, or does not answer, has a failure in its own.
    """
    transport = "srun" if config.hostnames == ("slurm",) else "ssh"
    handles = [
        open_handle(name, ssh_config_file=config.ssh_config_file, transport=transport, module=AGENT)
        for name in questions
    ]
    return _ask(handles, list(questions.values()), on_finding, select_environ(os.environ, config.copy_env))


def _ask(
    handles: list[HostHandle],
    questions: list[Question],
    on_finding: Callable[[Finding], None],
    environ: dict[str, str],
    name: str | None = None,
) -> list[HostReport]:
    reports = [HostReport(name=name or handle.host) for handle in handles]
    limit_s = _START_S + len(SLOW_CHECKS) * max(question.timeout_s + 2 * _END_S for question in questions)
    deadline_s = time.monotonic() + limit_s

    def add(report: HostReport, finding: Finding) -> None:
        report.findings.append(finding.at(report.name))
        on_finding(report.findings[-1])

    waiting = list(zip(handles, reports, strict=True))
    try:
        for handle, question in zip(handles, questions, strict=True):
            handle.connection.heard_s = time.monotonic() + _START_S - HOST_TIMEOUT_S
            handle.connection.send("check", environ=environ, question=question.to_plain())
        while waiting:
            ready = select.select([handle.connection for handle, _ in waiting], [], [], 0.5)[0]
            for handle, report in list(waiting):
                handle.connection.beat()
                problem = None
                if handle.connection in ready:
                    problem = _hear(handle, report, add)
                elif handle.connection.unresponsive:
                    problem = "it does not answer: it is down, or the network is"
                elif time.monotonic() > deadline_s:
                    problem = f"its checks were not done within {limit_s:g} s"
                if problem is not None:
                    add(report, failure("host", problem, _advise(problem, handle.host)))
                if problem is not None or report.done:
                    waiting.remove((handle, report))
    finally:
        _leave(handles, [report.done for report in reports])
    return reports


def _hear(handle: HostHandle, report: HostReport, add: Callable[[HostReport, Finding], None]) -> str | None:
    """Take what has arrived; return what is wrong with the host, if anything is."""
    try:
        messages = handle.connection.receive()
    except ValueError:
        return "its answer is not one of mjtrain's: something prints into the connection, such as a shell's start file"
    for message, _ in messages:
        if message["kind"] == "facts":
            report.facts = message["facts"]
        elif message["kind"] == "finding":
            add(report, Finding.from_plain(message["finding"]))
        elif message["kind"] == "done":
            report.done = True
    return handle.explain_end() if handle.connection.lost and not report.done else None


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


def _leave(handles: list[HostHandle], done: list[bool]) -> None:
    """Leave all hosts; agents that are still busy get a moment to delete what their checks wrote."""
    busy = []
    for handle, is_done in zip(handles, done, strict=True):
        if is_done or handle.process is None:
            handle.close()
        else:
            handle.connection.close()
            busy.append((handle, handle.process))
    deadline_s = time.monotonic() + _END_S
    for handle, process in busy:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline_s - time.monotonic()))
        process.kill()
        process.wait()
        handle.errors.close()
