"""The checks of one host. Those that may hang or crash run in separate processes, within a time limit."""

import _thread
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mjtrain.config import from_plain, to_plain
from mjtrain.launcher.failure import describe_exit
from mjtrain.runtime.processes import die_with_parent
from mjtrain.tools.doctor.connection import check_interface, check_port
from mjtrain.tools.doctor.finding import Finding, Question, failure, skipped, warning
from mjtrain.tools.doctor.limits import check_limits
from mjtrain.tools.doctor.versions import check_versions, describe_host

_GRACE_S = 2
"""Time that a check has to delete what it wrote."""

SLOW_CHECKS = {
    "gpus": (
        "gpus.check_gpus",
        "the driver does not answer: `nvidia-smi` may hang as well; reset the GPU or restart the machine",
    ),
    "log-root": (
        "storage.check_log_root",
        "the file system does not answer: look at its mount and its server, or give another --log-root",
    ),
    "storage": (
        "storage.check_storage",
        "the storage does not answer: look at the URL, the endpoint, the proxy and the firewall",
    ),
    "kernels": (
        "kernels.check_kernels",
        "give a larger --timeout-s if the machine is slow; otherwise reset the GPU or restart the machine",
    ),
    "rendering": (
        "frame.check_frame",
        "the graphics driver does not answer: restart the machine, or try MUJOCO_GL=osmesa",
    ),
}
"""Checks that may hang, in their order: module and function, imported by the check's process only, and what to do."""

_LABELS = {"log-root": "log root", "kernels": "warp kernels"}


def check_host(**plain: Any) -> Iterator[dict[str, Any]]:
    """Make all checks that need no other host.

    Args:
        **plain: A `Question`, as plain values.

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
    label, advice = _LABELS.get(name, name), SLOW_CHECKS[name][1]
    if (reason := _explain_skip(name, question)) is not None:
        return [skipped(label, reason)]
    optional = (name == "rendering" and not question.video) or (name == "kernels" and question.gpu_ids is None)
    judge = warning if optional else failure
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "mjtrain.tools.doctor.host", name, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which ends the check
    )
    try:
        out, err = process.communicate(json.dumps(to_plain(question)), timeout=question.timeout_s)
    except subprocess.TimeoutExpired:
        return [judge(label, f"no answer within {question.timeout_s:g} s (--timeout-s)", advice)]
    finally:
        _end(process)
    if process.returncode == 0:
        return [Finding(**one) for one in json.loads(out)]
    lines = err.strip().splitlines() or ["without a message"]
    figure = f"the check {describe_exit(process.returncode)[0]}: {lines[-1][:160]}"
    return [judge(label, figure, "reinstall the library or driver named above")]


def _explain_skip(name: str, question: Question) -> str | None:
    """Say why a check need not be made; None if it must."""
    if name in question.skip:
        return f"--skip {name}"
    if name == "gpus" and question.gpu_ids is None:
        return "--gpu-ids None"
    return "no --checkpoint-url" if name == "storage" and question.checkpoint_url is None else None


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
    module, _, function = SLOW_CHECKS[name][0].partition(".")
    findings = getattr(importlib.import_module(f"mjtrain.tools.doctor.{module}"), function)(question)
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
