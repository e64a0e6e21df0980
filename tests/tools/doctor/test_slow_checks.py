"""What doctor says of a GPU, of two, and of a storage."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mjtrain.config import LaunchConfig
from mjtrain.tools.doctor.finding import Question
from mjtrain.tools.doctor.slow_checks import check_storage
from support.machine import patience


def doctor(folder: Path, *flags: str) -> dict[str, dict[str, str]]:
    """Return the findings by their check; of several, the last."""
    command = [sys.executable, "-m", "mjtrain", "doctor", "--json", "report.json", *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {one["check"]: one for one in json.loads((folder / "report.json").read_text())["findings"]}


@pytest.mark.process
@pytest.mark.gpu
def test_a_gpu(tmp_path: Path) -> None:
    found = doctor(tmp_path, "--gpu-ids", "0")
    for check in ("cuda", "warp kernels", "cuda graph", "ranks"):
        assert found[check]["result"] == "ok", found[check]
    assert f"torch {torch.__version__} for CUDA {torch.version.cuda}" in found["cuda"]["figure"]
    assert torch.cuda.get_device_name(0) in found["gpu"]["figure"]
    assert found["ranks"]["figure"].endswith(": 1 on cuda)")


@pytest.mark.process
@pytest.mark.gpu
def test_two_gpus(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    found = doctor(tmp_path, "--gpu-ids", "0", "1", "--skip", "rendering")
    assert "2 started, over nccl" in found["ranks"]["figure"]
    assert found["all-reduce"]["result"] == "ok", found["all-reduce"]


def test_a_folder_of_a_storage_with_too_long_a_name_is_a_failure_with_its_advice(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/{'a' * 300}"
    (found,) = check_storage(Question(launch=LaunchConfig(), checkpoint_url=url))
    assert (found.check, found.result) == ("storage", "failure")
    assert "File name too long" in found.figure
    assert found.advice is not None
    assert found.advice.startswith("check the bucket, the credentials")
