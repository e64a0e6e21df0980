"""The start command for PAI-DLC, run on two nodes as DLC describes them: both on this machine, with a CPU rank each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.machine import free_port, patience
from support.templates import DEPLOY

SCRIPT = DEPLOY / "pai-dlc" / "train.sh"
SMALL = ["--num-envs", "4", "--num-threads", "1", "--max-iterations", "2", "--logger", "none"]


@pytest.mark.supports("template", start="PAI-DLC", hosts="2")
@pytest.mark.parametrize("launcher", ["mjtrain", "torchrun"])
def test_two_nodes_are_one_job(launcher: str, tmp_path: Path, no_gpu: None) -> None:
    environ = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "LAUNCHER": launcher,
        "WORLD_SIZE": "2",
        "NPROC_PER_NODE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    cpu = ["--gpu-ids", "None", "--num-workers", "1"] if launcher == "mjtrain" else []
    command = ["bash", str(SCRIPT), *SMALL, *cpu, "--log-root", str(tmp_path)]
    nodes = [subprocess.Popen(command, cwd=tmp_path, env=environ | {"RANK": str(node)}) for node in range(2)]
    assert [node.wait(patience(60)) for node in nodes] == [0, 0]
    (run_dir,) = tmp_path.glob("*/*_pai-dlc-127.0.0.1")
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "iteration" in row]
    assert [row["iteration"] for row in rows] == [1, 2]
    assert len(rows[-1]["busy_time_by_rank_s"]) == 2
    assert (run_dir / "model_2.pt").exists()
