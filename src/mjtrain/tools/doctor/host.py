"""The checks of one host, and versions compared between hosts. What may hang or crash has a separate process."""

import _thread
import contextlib
import importlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from mjtrain.config import from_plain, to_plain
from mjtrain.launcher.failure import describe_exit
from mjtrain.runtime.machine import installed_packages
from mjtrain.runtime.processes import die_with_parent
from mjtrain.tools.doctor.finding import Finding, Question, failure, ok, skipped, warning
from mjtrain.tools.doctor.limits import check_interface, check_limits, check_port

_GRACE_S = 2
"""Time that a check has to delete what it wrote."""

_NEEDED = ("mjtrain", "torch", "torchrunx", "rsl-rl-lib", "tensordict", "mujoco", "mujoco-warp", "warp-lang", "numpy")

SLOW_CHECKS = {
    "gpus": "the driver does not answer: `nvidia-smi` may hang as well; reset the GPU or restart the machine",
    "log-root": "the file system does not answer: look at its mount and its server, or give another --log-root",
    "storage": "the storage does not answer: look at the URL, the endpoint, the proxy and the firewall",
    "kernels": "give a larger --timeout-s if the machine is slow; otherwise reset the GPU or restart the machine",
    "rendering": "the graphics driver does not answer: restart the machine, or try MUJOCO_GL=osmesa",
}
"""Checks that may hang, in their order, and what to do then. `check` of its module makes a check, in its process."""


def describe_host() -> dict[str, Any]:
    """Return what must be the same on all hosts, and where it is."""
    facts = {"host": socket.gethostname(), "python": platform.python_version(), "prefix": sys.prefix}
    return {**facts, "packages": installed_packages()}


def check_versions(facts: Mapping[str, Any]) -> list[Finding]:
    """Look at the versions of one host."""
    packages = facts["packages"]
    missing = ", ".join(name for name in _NEEDED if packages.get(name) is None)
    there = ", ".join(f"{name} {packages[name]}" for name in ("mjtrain", "torch", "mujoco", "warp-lang"))
    if missing:
        advice = f"install {missing} into {facts['prefix']}: `uv sync`, or pip install mjtrain again"
        return [ok("python", facts["python"]), failure("packages", f"{missing} missing", advice)]
    return [ok("python", facts["python"]), ok("packages", there)]


def compare_versions(facts: Mapping[str, Any], first: Mapping[str, Any]) -> list[Finding]:
    """Compare a host with the first one; empty where they have the same versions."""
    found = []
    if facts["python"] != first["python"]:
        figure = f"{facts['python']}, and {first['python']} on {first['host']}"
        advice = f"use Python {first['python']} on every host, at the same path ({first['prefix']})"
        found.append(failure("python", figure, advice).at(facts["host"]))
    theirs = facts["packages"]
    others = {name: mine for name, mine in first["packages"].items() if theirs.get(name) != mine}
    if others:
        words = [f"{name} {theirs.get(name) or 'missing'}, and {mine or 'none'}" for name, mine in others.items()]
        figure = f"{'; '.join(words)} on {first['host']}"
        wanted = " ".join(f"{name}=={mine}" for name, mine in others.items() if mine)
        advice = f"install the same on every host, into {facts['prefix']}: pip install {wanted}"
        if not wanted:
            advice = f"install the same on every host: pip uninstall {' '.join(others)}"
        found.append(failure("packages", figure, advice).at(facts["host"]))
    return found


def check_host(**plain: Any) -> Iterator[dict[str, Any]]:
    """Make all checks that need no other host, for a `Question` as plain values.

    Yields:
        `facts`, which are what `describe_host` returns, and then each finding, as plain values.
    """
    facts = describe_host()
    yield {"facts": facts}
    question = from_plain(Question, plain)
    found = [*check_versions(facts), *check_limits(question), *check_interface(question, os.environ)]
    yield from map(asdict, [*found, *check_port(question)])
    for name in SLOW_CHECKS:
        yield from map(asdict, _check_apart(name, question))


def _check_apart(name: str, question: Question) -> list[Finding]:
    """Make a check in a separate process; its findings, or a failure if it hangs or crashes."""
    label = "warp kernels" if name == "kernels" else name.replace("-", " ")
    if name in question.skip:
        return [skipped(label, f"--skip {name}")]
    if name == "gpus" and question.launch.gpu_ids is None:
        return [skipped(label, "--gpu-ids None")]
    if name == "storage" and question.checkpoint_url is None:
        return [skipped(label, "no --checkpoint-url")]
    optional = (name == "rendering" and not question.video) or (name == "kernels" and question.launch.gpu_ids is None)
    judge = warning if optional else failure
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "mjtrain.tools.doctor.host", name, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for this process, which ends the check
    )
    try:
        out, err = process.communicate(json.dumps(to_plain(question)), timeout=question.timeout_s)
    except subprocess.TimeoutExpired:
        return [judge(label, f"no answer within {question.timeout_s:g} s (--timeout-s)", SLOW_CHECKS[name])]
    finally:
        _end(process)
    if process.returncode == 0:
        return [Finding(**one) for one in json.loads(out)]
    lines = err.strip().splitlines() or ["without a message"]
    figure = f"the check {describe_exit(process.returncode)[0]}: {lines[-1][:160]}"
    return [judge(label, figure, "reinstall the library or driver named above")]


def _end(process: "subprocess.Popen[str]") -> None:
    """End a process, which may be stuck in the kernel: it is then left to it, and ends when the kernel lets go."""
    for end in (process.terminate, process.kill):
        if process.poll() is None:
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)


def main() -> None:
    """Make the check that the first argument names, for the parent that the second one names."""
    name, parent = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=_leave_on_request, daemon=True).start()
    die_with_parent(int(parent), signal.SIGTERM)
    question = from_plain(Question, json.load(sys.stdin))
    signal.alarm(int(question.timeout_s) + 2 * _GRACE_S)  # for a library that lets no other thread run
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    module = importlib.import_module(f"mjtrain.tools.doctor.{name.replace('-', '_')}")
    findings: list[Finding] = module.check(question)
    with answer:
        json.dump([asdict(finding) for finding in findings], answer)
    os._exit(0)  # drivers take seconds to close


def _leave_on_request() -> None:
    """Interrupt the check, so that it deletes what it wrote; the kernel ends this process where that takes too long."""
    signal.sigwait([signal.SIGTERM])
    signal.alarm(_GRACE_S)
    _thread.interrupt_main()


if __name__ == "__main__":
    main()
