"""The first process of a run below its reaper: goes to its cores, opens its output, and becomes the command train.

Run as `python -m mjtrain.tools.sweep.start_trial CORES STDOUT STDERR ARGUMENT... REAPER_PID`, with CORES as in 0,1.
"""

import os
import sys

from mjtrain.runtime.processes import die_with_parent


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
