"""The example for Submitit, with its own package and its local executor."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.machine import patience, read_proc, wait_until

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.process,
    pytest.mark.proves(
        "deploy/submitit",
        "pyproject.toml",
        "src/mjtrain/launcher/planning/external.py",
        "src/mjtrain/launcher/rank",
        "src/mjtrain/launcher/ipc/signals.py",
    ),
]


@pytest.fixture
def submitit(tmp_path: Path) -> Path:
    """Install it into a folder."""
    uv = shutil.which("uv")
    assert uv is not None
    newest = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["exclude-newer"]
    command = [uv, "pip", "install", "-q", "--exclude-newer", newest, "--target", tmp_path / "packages", "submitit"]
    subprocess.run([*command, "--python", sys.executable], check=True, timeout=patience(60))
    return tmp_path / "packages"


def test_two_tasks_are_one_job_that_saves_on_submitits_signal(submitit: Path, tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "deploy/submitit/train.py", "--local", "--tasks-per-node", "2"]
    command += ["--gpus-per-node", "0", "--", "Cartpole-Balance", "--gpu-ids", "None", "--num-envs", "8"]
    command += ["--max-iterations", "100000", "--logger", "none"]
    paths = [str(submitit), os.environ.get("PYTHONPATH", ""), *(str(ROOT / part) for part in ("src", "tasks/src"))]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    script = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    job = 0
    try:
        assert script.stdout is not None
        found = re.match(rb"job (\d+):", script.stdout.readline())
        assert found is not None
        job = int(found[1])  # the process that has started the tasks

        def rows() -> list[dict[str, object]]:
            paths = list(tmp_path.glob("logs/*/*/metrics.jsonl"))
            lines = [line for path in paths for line in path.read_text().splitlines(keepends=True)]
            return [json.loads(line) for line in lines if line.endswith("\n")]

        wait_until(lambda: len(rows()) >= 3 or script.poll() is not None, "the ranks train", 120)
        for task in read_proc(job, f"task/{job}/children").split():  # as the local executor does before a time limit
            os.kill(int(task), signal.SIGUSR2)
        script.wait(patience(60))
    finally:
        script.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(job or script.pid, signal.SIGTERM)  # which it passes on
    (run,) = tmp_path.glob("logs/*/*")
    assert run.name.endswith(f"submitit-{job}")
    *iterations, end = rows()
    assert {row["world_size"] for row in iterations} == {2}
    assert (end["event"], end["how"], end["signal"]) == ("end", "stopped", "SIGUSR2")
    assert (run / f"model_{len(iterations)}.pt").is_file()
