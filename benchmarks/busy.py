"""Keep cores busy: processes that compute without a pause, to run the suite or a benchmark on a busy machine.

    uv run benchmarks/busy.py 4                     # until it is interrupted
    uv run benchmarks/busy.py 4 -- uv run pytest    # while a command runs, whose exit status it returns

Whatever ends it, SIGKILL included, ends them too: each looks for its parent about a hundred times a second.
"""

import argparse
import os
import signal


def compute(parent: int) -> None:
    """Compute as long as the parent lives."""
    while os.getppid() == parent:
        for _ in range(100_000):
            pass


def main() -> None:
    """Start the processes, then become the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("processes", type=int)
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    parent = os.getpid()
    for _ in range(options.processes):
        if os.fork() == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's end is what counts
            compute(parent)
            os._exit(0)
    if options.command:
        os.execvp(options.command[0], options.command)  # so signals for this process reach the command itself
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print(f"{options.processes} processes compute", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
