"""A run directory is all that is needed to play, export, resume and replay, wherever it is."""

import json
import shutil
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import mjtrain
from mjtrain.cli import export, play, train
from mjtrain.config import RobotConfig
from mjtrain.env.catalog import load_task
from mjtrain.runs.robot import choose_robot, digest_robot, find_robot, list_robot_changes, record_robot, save_robot
from mjtrain.runs.run_dir import load_params, save_params
from mjtrain.runs.trained_run import find_trained_run
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.model import load_model
from mjtrain.sim.robots.robot_bundle import list_copy_differences
from support.envs import make_env

TASK = """
from dataclasses import replace
from pathlib import Path
from mjtrain import RobotConfig, SensorConfig
from mjtrain.env.catalog import load_task

def make():
    task = load_task("Cartpole-Balance")
    file = Path(__file__).parent / "robots" / "own.xml"
    robot = RobotConfig(file=file, timestep=0.004, sensors={"tip": SensorConfig(type="framepos", object="pole")})
    return replace(task, env=replace(task.env, robot=robot))
"""
ROBOT = """
<mujoco>
  <compiler meshdir="meshes"/>
  <include file="parts/cartpole.xml"/>
  <asset><mesh name="bob" file="bob.obj"/></asset>
  <worldbody><body pos="0 0 3"><geom type="mesh" mesh="bob" contype="0" conaffinity="0"/></body></worldbody>
</mujoco>
"""
BOB = "v 0 0 0\nv {0} 0 0\nv 0 {0} 0\nv 0 0 {0}\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
SMALL = ["--gpu-ids", "None", "--num-threads", "1", "--num-envs", "2", "--logger", "none"]
NETWORKS = ["--agent.num-steps-per-env", "4", "--agent.algorithm.num-mini-batches", "2"]


def write_robot(folder: Path, size: float = 0.2) -> Path:
    """Write a robot with an include and a mesh."""
    for name in ("parts", "meshes"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "own.xml").write_text(ROBOT)
    (folder / "meshes" / "bob.obj").write_text(BOB.format(size))
    shutil.copy(load_task("Cartpole-Balance").env.robot.file, folder / "parts" / "cartpole.xml")
    return folder / "own.xml"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task, its robot, and a run of two iterations below logs/."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "task.py").write_text(TASK)
    write_robot(folder / "robots")
    train.main(
        [f"{folder / 'task.py'}:make", *SMALL, *NETWORKS, "--max-iterations", "2", "--log-root", str(folder / "logs")]
    )
    return folder


@pytest.fixture
def elsewhere(trained: Path, tmp_path: Path) -> tuple[str, Path, Path]:
    """The task and the run on another machine: the task, the run, and where the robot is missing."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    shutil.copy(trained / "task.py", folder)
    (run_dir,) = (trained / "logs" / "task_make").iterdir()
    shutil.copytree(run_dir, folder / "copied")
    return f"{folder / 'task.py'}:make", folder / "copied", folder / "robots"


def test_the_record_is_relative_and_the_copy_is_the_same_model(trained: Path) -> None:
    (run_dir,) = (trained / "logs" / "task_make").iterdir()
    assert load_params(run_dir, "env")["robot"]["file"] == "robot/own.xml"
    assert (
        list_copy_differences(RobotConfig(file=str(trained / "robots" / "own.xml")), run_dir / "robot" / "own.xml")
        == []
    )
    assert str(trained / "robots") not in "".join(path.read_text() for path in run_dir.rglob("*.xml"))
    for task in ("Cartpole-Balance", "Arm-Reach"):
        assert find_robot(run_dir, load_task(task).env.robot) == load_task(task).env.robot


def test_a_copied_run_plays(elsewhere: tuple[str, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    task, run_dir, _ = elsewhere
    play.main([task, "--run", str(run_dir), "--episodes", "2", "--json", "--gpu-ids", "None"])
    output = capsys.readouterr()
    assert json.loads(output.out)["iteration"] == 2
    assert output.err == ""
    model = load_model(find_trained_run(task, run=str(run_dir)).own_env)
    assert model.nmesh == 1
    assert model.opt.timestep == 0.004  # the copy is completed again
    assert model.sensor("tip").dim[0] == 3


def test_a_copied_run_is_exported(elsewhere: tuple[str, Path, Path], tmp_path: Path) -> None:
    task, run_dir, _ = elsewhere
    export.main(
        [task, "--checkpoint", str(run_dir / "model_2.pt"), "--observations", "10", "--out", str(tmp_path / "x")]
    )
    model = mujoco.MjModel.from_binary_path(str(tmp_path / "x" / "model.mjb"))
    assert model.sensor("tip").dim[0] == 3


def test_a_copied_run_resumes(elsewhere: tuple[str, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    task, run_dir, missing = elsewhere
    train.main([task, *SMALL, *NETWORKS, "--max-iterations", "3", "--resume", str(run_dir)])
    text = "".join(capsys.readouterr())
    copy = run_dir / "robot" / "own.xml"
    assert f"--env.robot {missing / 'own.xml'}: no such file; using the copy in the run, {copy}" in text
    assert "changed since" not in text  # what the config adds is the same
    assert "start again" not in text
    assert (run_dir / "model_3.pt").is_file()
    assert load_params(run_dir, "env")["robot"]["file"] == "robot/own.xml"


def test_a_robot_that_has_changed_is_said(
    elsewhere: tuple[str, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    task, run_dir, robots = elsewhere
    write_robot(robots, size=0.4)
    timestep = ["--env.robot.timestep", "0.005"]
    play.main([task, "--run", str(run_dir), "--episodes", "2", "--json", "--gpu-ids", "None"])
    capsys.readouterr()
    copy = run_dir / "robot" / "own.xml"
    before = copy.read_bytes()
    train.main([task, *SMALL, *NETWORKS, "--max-iterations", "3", "--resume", str(run_dir), *timestep])
    text = capsys.readouterr().err
    assert "changed since: env.robot: robot/own.xml -> " in text
    assert "changed since: env.robot.timestep: 0.004 -> 0.005" in text
    assert f"whose content differs (--env.robot {copy} keeps the recorded one)" in text
    assert load_params(run_dir, "env")["robot"]["file"] == "robot/own-2.xml"
    assert copy.read_bytes() == before
    assert list_copy_differences(RobotConfig(file=str(robots / "own.xml")), run_dir / "robot" / "own-2.xml") == []
    train.main([task, *SMALL, *NETWORKS, "--max-iterations", "4", "--resume", str(run_dir), "--env.robot", str(copy)])
    assert "changed since: env.robot: robot/own-2.xml -> " in capsys.readouterr().err
    assert load_params(run_dir, "env")["robot"]["file"] == "robot/own.xml"


def test_a_dump_of_a_copied_run_is_replayed(
    elsewhere: tuple[str, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    task, run_dir, _ = elsewhere
    env = make_env(find_trained_run(task, run=str(run_dir)).own_env, num_envs=2)
    for value in (0.1, 0.1, torch.nan):
        env.step(torch.full((2, 1), value))
    (file, *_) = env.dump_broken_worlds(run_dir / "nan", "iteration_1_rank_0")
    with np.load(file) as dump:
        assert str(dump["robot"]) == "own.xml"
    moved = run_dir.rename(run_dir.with_name("moved"))
    play.main([task, "--replay", str(moved / "nan" / file.name), "--gpu-ids", "None"])
    assert "of robot own.xml" in capsys.readouterr().out


def test_the_same_robot_at_another_path_is_no_change(
    cartpole_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(cartpole_run, run_dir)
    robot = Path(load_task("Cartpole-Balance").env.robot.file)
    other = tmp_path / "site-packages" / "cartpole.xml"
    other.parent.mkdir()
    other.write_text(robot.read_text().replace("<worldbody>", "<!-- installed elsewhere --><worldbody>"))
    assert list_robot_changes(run_dir, RobotConfig(file=str(other))) == []
    assert save_robot(run_dir, RobotConfig(file=str(other))) == (RobotConfig(file="robot/cartpole.xml"), [])
    assert [path.name for path in (run_dir / "robot").iterdir()] == ["cartpole.xml"]
    other.write_text(robot.read_text().replace("<worldbody>", "<worldbody><light/>"))
    (line,) = list_robot_changes(run_dir, RobotConfig(file=str(other)))
    assert "whose content differs" in line


def test_a_host_with_the_copy_has_the_same_robot_as_one_with_the_files(tmp_path: Path) -> None:
    robot = RobotConfig(file=str(write_robot(tmp_path)))
    digest = digest_robot(robot)
    save_robot(tmp_path / "run", robot)
    assert digest_robot(RobotConfig(file=str(tmp_path / "run" / "robot" / "own.xml"))) == digest
    write_robot(tmp_path, size=0.3)
    assert digest_robot(robot) not in (digest, "")


def test_a_robot_that_is_nowhere_is_one_line(tmp_path: Path) -> None:
    save_params(tmp_path, env={"robot": {"file": "robot/own.xml"}})
    with pytest.raises(RequestError, match=r"--env\.robot gone\.xml: no such file, and .* has no copy of the robot"):
        choose_robot(tmp_path, RobotConfig(file="gone.xml"))


def test_a_robot_that_cannot_be_copied_is_recorded_where_it_is(tmp_path: Path) -> None:
    urdf = tmp_path / "arm.urdf"
    urdf.write_text("<robot name='arm'><link name='base'/></robot>")
    recorded, (line,) = save_robot(tmp_path / "run", RobotConfig(file=str(urdf)))
    assert recorded.file == str(urdf)
    assert f"the run keeps no copy of the robot, so it needs {urdf} later" in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ROBOT.replace("0 0 3", "0 0 4"), "it compiles to another model (body_pos"),
        ("<mujoco><nothing/></mujoco>", "it does not compile"),
    ],
)
def test_a_copy_that_is_another_model_is_not_used(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot = write_robot(tmp_path / "robots")
    assert record_robot(tmp_path / "good", RobotConfig(file=str(robot))) == (RobotConfig(file="robot/own.xml"), [])
    other = content.replace("parts/", "../../robots/parts/").replace("meshes", "../../robots/meshes").encode()
    monkeypatch.setattr("mjtrain.runs.robot.bundle_robot", lambda path: {path.name: other})  # a copy gone wrong
    recorded, (line,) = record_robot(tmp_path / "bad", RobotConfig(file=str(robot)))
    assert recorded.file == str(robot)
    assert message in line
    assert not (tmp_path / "bad" / "robot" / "own.xml").exists()


@pytest.mark.parametrize(
    ("robot", "message"),
    [
        ("gone.xml", r"--env\.robot .*gone\.xml: no such file"),
        pytest.param(
            f"\n<mujoco>{'<!-- a comment -->' * 300}</mujoco>",
            r"--env\.robot: MJCF text is given; give a file, or ",
            id="text",
        ),
    ],
)
def test_a_new_run_without_its_robot_leaves_no_folder(robot: str, message: str, tmp_path: Path) -> None:
    task = load_task("Cartpole-Balance")
    for resume in (None, "auto"):
        with pytest.raises(RequestError, match=message):
            mjtrain.train(
                "Cartpole-Balance",
                env=mjtrain.EnvConfig(**{**vars(task.env), "robot": robot}),
                resume=resume,
                num_envs=2,
                max_iterations=1,
                log_root=str(tmp_path / "logs"),
                launch=mjtrain.LaunchConfig(gpu_ids=None),
            )
    assert not list((tmp_path / "logs").rglob("*"))
