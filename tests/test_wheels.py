"""All distributions hold all that a user needs: built, installed into an empty environment, used without the clone."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.machine import patience
from support.tiers import MEMBERS, PACKAGES, SOURCES

ROOT = Path(__file__).parents[1]
QUADRUPEDS = {"Go2-Velocity-Flat", "Quadruped-Velocity-Flat", "Quadruped-Velocity-Rough"}
TASKS = {"Arm-Reach", "Cartpole-Balance", "Cartpole-Swingup", *QUADRUPEDS}

pytestmark = pytest.mark.proves(*PACKAGES, layout=SOURCES)


def clean_environ() -> dict[str, str]:
    """The environment variables of a user who has no clone, no active environment and no GPU."""
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "UV_PROJECT_ENVIRONMENT", "UV_OFFLINE")
    # Symlinks into uv's cache: dependencies are gigabytes, and the temporary folder may be on another disk.
    return {key: value for key, value in os.environ.items() if key not in ours} | {
        "CUDA_VISIBLE_DEVICES": "",
        "UV_LINK_MODE": "symlink",
    }


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=patience(70),
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_uv(folder: Path, *command: str | Path) -> str:
    """Run uv, with the network only where its cache does not suffice."""
    uv = shutil.which("uv")
    assert uv is not None
    try:
        return run(folder, uv, "--offline", *command)
    except AssertionError:
        return run(folder, uv, *command)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All wheels, each built from its source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    run_uv(folder, "build", "--quiet", "--all-packages", "--out-dir", folder, ROOT)
    assert len(list(folder.glob("*.tar.gz"))) == 1 + len(MEMBERS)
    return sorted(folder.glob("*.whl"))


def test_the_wheels_hold_every_module_and_every_robot(wheels: list[Path]) -> None:
    """Nothing of the sources is forgotten, and nothing else is in there."""
    members = sorted(MEMBERS)
    assert [wheel.name.partition("-")[0] for wheel in wheels] == ["mjtrain", *(f"mjtrain_{name}" for name in members)]
    packed: set[str] = set()
    for wheel, source in zip(wheels, (ROOT / "src", *(ROOT / name / "src" for name in members)), strict=True):
        packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
        files = {path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        assert packed == {str(path.relative_to(source)) for path in files}
    assert {name for name in packed if name.endswith(".xml")} == {
        f"mjtrain_tasks/models/{robot}.xml"
        for robot in ("arm", "arm_gripper", "cartpole", "hand", "humanoid", "quadruped")
    }


def test_they_train_and_play_without_the_clone(wheels: list[Path], tmp_path: Path) -> None:
    """The environment has the packages of requirements.lock and the wheels, and never heard of the clone."""
    python, bin_dir = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin"
    run_uv(tmp_path, "venv", "--quiet", "--python", sys.executable, "venv")
    install = ("pip", "install", "--quiet", "--no-deps", "--python", python)
    run_uv(tmp_path, *install, "--require-hashes", "-r", ROOT / "requirements.lock")
    run_uv(tmp_path, *install, *wheels)
    run_uv(tmp_path, "pip", "check", "--quiet", "--python", python)  # what the wheels ask for is there

    assert {line.split()[0] for line in run(tmp_path, bin_dir / "list-tasks").splitlines() if line} >= TASKS
    small = ("--gpu-ids", "None", "--num-threads", "1", "--logger", "none")
    run(tmp_path, bin_dir / "train", "Cartpole-Balance", *small, "--num-envs", "8", "--max-iterations", "1")
    assert len(list(tmp_path.glob("logs/cartpole_balance/*/model_1.pt"))) == 1
    assert "reward" in run(tmp_path, bin_dir / "play", "Cartpole-Balance", "--episodes", "2")
    assert "reward" in run(tmp_path, bin_dir / "play", "Cartpole-Balance", "--policy", "pretrained", "--episodes", "2")
    skrl = ("--learner", "skrl", "--num-envs", "8", "--max-iterations", "1")
    run(tmp_path, bin_dir / "train", "Cartpole-Balance", *small, *skrl)

    code = "import mjtrain, mjtrain_tasks.models as models; print(mjtrain.__file__, models.__file__, sep='\\n')"
    for line in run(tmp_path, python, "-c", code).splitlines():
        assert Path(line).is_relative_to(tmp_path / "venv"), line
