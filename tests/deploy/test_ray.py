"""The example for Ray, with its own package and a cluster on this machine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.machine import patience, read_proc, wait_until

ROOT = Path(__file__).parents[2]
RAY = "ray==2.52.1"
"""Later ones give up where their agents need more than 15 s to start (issue 65983 of Ray), as on a busy machine."""

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(1200),  # Ray starts eight processes before the first task
    pytest.mark.proves(
        "deploy/ray",
        "src/mjtrain/launcher/planning/external.py",
        "src/mjtrain/launcher/multinode",
        "src/mjtrain/launcher/ipc/signals.py",
    ),
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Give a folder with the package; its path is short, as Ray has sockets in it."""
    uv = shutil.which("uv")
    assert uv is not None
    command = [uv, "pip", "install", "-q", "--target", tmp_path / "packages", "--python", sys.executable, RAY]
    subprocess.run(command, check=True, timeout=patience(60))
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as name:
        (Path(name) / "packages").symlink_to(tmp_path / "packages")
        yield Path(name)


def list_workers(mark: str, *commands: bytes) -> set[int]:
    """List the processes with a mark in their environment that run one of some commands."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    marked = [pid for pid in pids if mark.encode() in read_proc(pid, "environ")]
    return {pid for pid in marked if any(command in read_proc(pid, "cmdline") for command in commands)}


@pytest.mark.parametrize("what", ["stop", "kill"])
def test_two_tasks_are_one_job(folder: Path, what: str) -> None:
    command = [sys.executable, ROOT / "deploy/ray/train.py", "--tasks", "2", "--gpus-per-task", "0"]
    command += ["--cpus-per-task", "1", "--", "Cartpole-Balance", "--gpu-ids", "None", "--num-envs", "8"]
    command += ["--max-iterations", "100000", "--logger", "none", "--log-root", folder / "logs"]
    paths = [str(folder / "packages"), *(str(ROOT / part) for part in ("src", "tasks/src"))]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "HOME": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_agent_register_timeout_ms": "600000",
        "RAY_raylet_start_wait_time_s": "600",
    }
    console = folder / "console"
    with console.open("w") as file:
        script = subprocess.Popen(command, cwd=folder, env=environ, stdout=file, stderr=file)

    def rows() -> list[dict[str, Any]]:
        lines = [line for path in folder.glob("logs/*/*/metrics.jsonl") for line in path.read_text().splitlines(True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    mark = f"HOME={folder}\0"
    try:
        wait_until(lambda: len(rows()) >= 3 or script.poll() is not None, "the ranks train", 240)
        assert script.poll() is None, console.read_text()
        if what == "stop":
            script.send_signal(signal.SIGTERM)
        else:
            wait_until(lambda: b"run directory" in console.read_bytes(), "task 0 has said which it is")
            first = re.search(r"pid=(\d+)\)\S* run directory", console.read_text())
            assert first is not None
            (other,) = list_workers(mark, b"ray::train") - {int(first[1])}
            os.kill(other, signal.SIGKILL)
        script.wait(patience(120))
    finally:
        script.kill()
    assert script.returncode == 1, console.read_text()
    wait_until(lambda: not list_workers(mark, b"ray::train", b"mjtrain."), "no process is left")
    *iterations, end = rows()
    assert {row["world_size"] for row in iterations} == {2}
    assert end["event"] == "end"
    if what == "stop":
        assert (end["how"], end["signal"]) == ("stopped", "SIGINT")
        assert list(folder.glob(f"logs/*/*/model_{len(iterations)}.pt"))
    else:
        assert end["how"] == "failed"
        assert "task 1: The worker died" in console.read_text()
