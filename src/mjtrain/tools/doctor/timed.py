"""Checks that may hang or crash: each runs in a separate process, within a time limit."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading

from mjtrain.launcher.failure import describe_exit
from mjtrain.launcher.ipc.signals import leave
from mjtrain.runtime.processes import die_with_parent
from mjtrain.tools.doctor.finding import Finding, Judge, Question, failure, skipped, warning

_GRACE_S = 2.0
"""Time that a check has to delete what it wrote."""

SLOW_CHECKS = {
    "gpus": "the driver does not answer: `nvidia-smi` may hang as well; reset the GPU or restart the machine",
    "log-root": "the file system does not answer: look at its mount and its server, or give another --log-root",
    "storage": "the storage does not answer: look at the URL, the endpoint, the proxy and the firewall",
    "kernels": "give a larger --timeout-s if the machine is slow; otherwise reset the GPU or restart the machine",
    "rendering": "the graphics driver does not answer: restart the machine, or try MUJOCO_GL=osmesa",
}
"""Checks that may hang, in their order, and what to do then."""


class TimedChecks:
    """Runs checks one after another. Only `stop` may be called from another thread."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, name: str) -> list[Finding]:
        """Run one check.

        Returns:
            Its findings; a failure if it hangs or crashes.
        """
        if (reason := _explain_skip(name, self._question)) is not None:
            return [skipped(_label(name), reason)]
        command = [sys.executable, "-P", "-m", "mjtrain.tools.doctor.timed", name, str(os.getpid())]
        with self._lock:
            if self._stopped:
                return []
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        try:
            out, err = process.communicate(json.dumps(self._question.to_plain()), timeout=self._question.timeout_s)
        except subprocess.TimeoutExpired:
            end(process)
            figure = f"no answer within {self._question.timeout_s:g} s (--timeout-s)"
            return [self._judge(name)(_label(name), figure, SLOW_CHECKS[name])]
        if process.returncode == 0:
            return [Finding.from_plain(plain) for plain in json.loads(out)]
        lines = err.strip().splitlines() or ["without a message"]
        figure = f"the check {describe_exit(process.returncode)[0]}: {lines[-1][:160]}"
        return [self._judge(name)(_label(name), figure, "reinstall the library or driver named above")]

    def stop(self) -> None:
        """End the check that runs, and run no other one."""
        with self._lock:
            self._stopped = True
        if self._process is not None and self._process.poll() is None:
            end(self._process)

    def _judge(self, name: str) -> Judge:
        optional = (name == "rendering" and not self._question.video) or (
            name == "kernels" and self._question.gpu_ids is None
        )
        return warning if optional else failure


def _label(name: str) -> str:
    return {"log-root": "log root", "kernels": "warp kernels"}.get(name, name)


def _explain_skip(name: str, question: Question) -> str | None:
    """Say why a check need not be made; None if it must."""
    if name in question.skip:
        return f"--skip {name}"
    if name == "gpus" and question.gpu_ids is None:
        return "--gpu-ids None"
    if name == "storage" and question.checkpoint_url is None:
        return "no --checkpoint-url"
    return None


def end(process: "subprocess.Popen[str]") -> None:
    """End a process, which may be stuck in the kernel: it is then left to it, and ends when the kernel lets go."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    if process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)


FUNCTIONS = {
    "gpus": "mjtrain.tools.doctor.gpus:check_gpus",
    "log-root": "mjtrain.tools.doctor.folder:check_log_root",
    "storage": "mjtrain.tools.doctor.stored:check_storage",
    "kernels": "mjtrain.tools.doctor.kernels:check_kernels",
    "rendering": "mjtrain.tools.doctor.frame:check_frame",
}
"""Function of each check in `timed.SLOW_CHECKS`; its module is imported by its process only."""


def main() -> None:
    """Make the check that the first argument names."""
    name, parent = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGTERM, lambda signum, _: leave(signum))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    module, _, function = FUNCTIONS[name].partition(":")
    findings = getattr(importlib.import_module(module), function)(Question.from_plain(json.load(sys.stdin)))
    with answer:
        json.dump([finding.to_plain() for finding in findings], answer)
    os._exit(0)  # drivers take seconds to close


if __name__ == "__main__":
    main()
