"""Trainings that a tool starts: the process goes to its cores, opens its output, and becomes the command train.

Run as `python -m mjtrain.tools.start_train CORES STDOUT STDERR ARGUMENT... PARENT_PID`, with CORES as in 0,1.
"""

import os
import sys

from mjtrain.runtime.processes import die_with_parent


def become_train(arguments: list[str], stdout: str, stderr: str) -> list[str]:
    """Return the command of a child of this process, which the kernel ends with it, on the cores of this process."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    python = [sys.executable, "-P", "-m", "mjtrain.tools.start_train"]
    return [*python, cores, stdout, stderr, *arguments, str(os.getpid())]


def main() -> None:
    """Become the command."""
    cores, stdout, stderr, *arguments, parent = sys.argv[1:]
    die_with_parent(int(parent))  # the kernel keeps to it in the command, too
    os.sched_setaffinity(0, map(int, cores.split(",")))
    for descriptor, path in ((1, stdout), (2, stderr)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        os.dup2(opened, descriptor)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "mjtrain.cli.train", *arguments])


if __name__ == "__main__":
    main()
