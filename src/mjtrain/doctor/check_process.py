"""One check that may hang or crash, in a process of its own.

Run as `python -m mjtrain.doctor.check_process NAME PARENT`: reads the question from standard input, and writes the
findings to standard output, both as JSON. SIGTERM ends it, after it has deleted what it wrote.
"""

import importlib
import json
import os
import signal
import sys

from mjtrain.doctor.question import Question
from mjtrain.launcher.ipc.processes import die_with_parent
from mjtrain.launcher.ipc.signals import leave

FUNCTIONS = {
    "gpus": "mjtrain.doctor.gpus:check_gpus",
    "log-root": "mjtrain.doctor.folder:check_log_root",
    "storage": "mjtrain.doctor.stored:check_storage",
    "kernels": "mjtrain.doctor.kernels:check_kernels",
    "rendering": "mjtrain.doctor.frame:check_frame",
}
"""Function of each check in `timed.SLOW_CHECKS`; its module is imported by its process only."""


def main() -> None:
    """Make the check that the first argument names."""
    name, parent = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGTERM, lambda signum, _: leave(signum))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    module, _, function = FUNCTIONS[name].partition(":")
    findings = getattr(importlib.import_module(module), function)(Question.from_plain(json.load(sys.stdin)))
    with answer:
        json.dump([finding.to_plain() for finding in findings], answer)
    os._exit(0)  # drivers take seconds to close


if __name__ == "__main__":
    main()
