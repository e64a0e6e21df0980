"""Is every fault noticed, and nothing left of the job, within the 10 s that are promised for an idle machine?

    uv run benchmarks/fault_promises.py [-k EXPRESSION]

Runs the tests that hurt jobs, one job at a time, with the promised limits. In the suite the limits are longer, because
other tests run on the same cores. Prints the table of faults. Ends with pytest's status: 1 if a fault took longer, or
anything else was wrong.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

TESTS = ("tests/faults", "tests/evaluation/test_evaluation.py::test_a_stop_ends_an_evaluation_and_saves")


def main() -> None:
    """Run the tests that hurt jobs, and check the times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only the tests that pytest selects by this")
    options = parser.parse_args()
    command = [sys.executable, "-m", "pytest", *TESTS, "-n", "0", "-q", "-k", options.k]
    environ = os.environ | {"MJTRAIN_TEST_PROMISES": "1"}
    sys.exit(subprocess.run(command, cwd=Path(__file__).parents[1], env=environ, check=False).returncode)


if __name__ == "__main__":
    main()
