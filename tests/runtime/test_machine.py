"""What is known of this machine: places, packages, memory, and what a cgroup allows."""

import contextlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mjtrain.runtime import machine
from mjtrain.runtime.machine import (
    PACKAGES,
    format_bytes,
    installed_packages,
    is_writable,
    nearest_existing,
)


def test_a_place_that_cannot_be_looked_at_does_not_exist(tmp_path: Path) -> None:
    """A name that is too long is refused, as is a folder that this user may not enter."""
    assert nearest_existing(tmp_path / ("a" * 300) / "logs") == tmp_path
    assert is_writable(tmp_path / ("a" * 300) / "logs")


def test_versions_are_those_that_python_reports() -> None:
    found = installed_packages()
    assert list(found) == list(PACKAGES)
    assert found == {name: importlib.metadata.version(name) for name in PACKAGES}


def test_bytes_are_words() -> None:
    assert [format_bytes(count) for count in (0, 999, 1000, 12_345_678, 9_994 * 10**9)] == [
        "0 B", "999 B", "1 kB", "12.3 MB", "9.99 TB",
    ]  # fmt: skip


def test_this_machine_has_free_memory() -> None:
    assert 10**7 < machine.available_memory() < 10**14


def test_a_cgroup_limits_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("300000000\n")
    (tmp_path / "memory.current").write_text("250000000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 10000000\n")
    outer = tmp_path / "outer"
    outer.mkdir()
    (outer / "memory.max").write_text("max\n")
    (outer / "memory.current").write_text("1\n")
    monkeypatch.setattr(machine, "find_cgroups", lambda _: iter([tmp_path, outer, tmp_path / "missing"]))
    assert machine.available_memory() == 60_000_000


def test_a_gpu_that_is_not_there_has_no_free_memory() -> None:
    assert machine.free_gpu_memory("99") is None


@pytest.mark.gpu
def test_a_gpu_has_free_memory() -> None:
    free = machine.free_gpu_memory("0")
    assert free is not None
    assert 10**8 < free < 10**13


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
