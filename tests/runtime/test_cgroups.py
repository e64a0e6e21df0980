"""What a cgroup allows this process: a quota of CPU time, as a container's CPU limit is."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PLAN = """
from mjtrain.config import LaunchConfig
from mjtrain.launcher import make_plan
print(make_plan(LaunchConfig(gpu_ids=None)).ranks[0].num_threads)
from mjtrain.tools.sweep.plan import _choose_cores
print(len(_choose_cores()))
"""


@pytest.fixture
def quota_of_one_core(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A cgroup, of either version, whose processes get one core's worth of time."""
    for root, limits in (
        ("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "50000"}),
        ("/sys/fs/cgroup", {"cpu.max": "50000 50000"}),
    ):
        folder = Path(root) / f"mjtrain-test-{os.getpid()}"
        try:
            folder.mkdir()
            for name, value in limits.items():
                (folder / name).write_text(value)
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            continue
        yield folder
        folder.rmdir()
        return
    pytest.skip("no cgroup with a quota of CPU time can be made here")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a quota of one core limits nothing on one core")
def test_ranks_and_trials_keep_to_a_quota(quota_of_one_core: Path) -> None:
    enter = f'echo $$ > {quota_of_one_core}/cgroup.procs && exec "$@"'
    said = subprocess.run(
        ["sh", "-c", enter, "sh", sys.executable, "-c", PLAN], capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == ["1", "1"]
