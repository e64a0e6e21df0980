"""A robot that a function builds is written out with its meshes, and the copy is the same model."""

from pathlib import Path
from typing import Any

import mujoco
import pytest

from mjtrain.config import RobotConfig, from_plain, to_plain
from mjtrain.runs.robot import find_robot, list_robot_changes, record_robot
from mjtrain.runs.run_dir import save_params
from mjtrain.sim.robots.robot_bundle import RobotBundleError, bundle_built_robot, bundle_robot, list_copy_differences

OBJ = "v 0 0 0\nv {0} 0 0\nv 0 {0} 0\nv 0 0 {0}\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
XML = """
<mujoco model="built">
  <compiler meshdir="stl"/>
  <asset><mesh name="bob" file="bob.obj" scale="0.7 0.7 0.7"/></asset>
  <worldbody>
    <body name="bob" pos="0 0 1"><freejoint name="base"/><geom name="bob" type="mesh" mesh="bob"/></body>
  </worldbody>
</mujoco>
"""


def build(size: float = 0.3) -> Any:
    spec = mujoco.MjSpec.from_string(XML, assets={"stl/bob.obj": OBJ.format(size).encode()})
    spec.body("bob").add_site(name="tip", pos=[0.1, 0.123456789, 0.3])
    return spec


def build_larger() -> Any:
    return build(0.4)


def test_meshes_that_the_function_holds_in_memory_are_written(tmp_path: Path) -> None:
    bundle = bundle_built_robot(RobotConfig(spec=build))
    assert [Path(name).name for name in bundle] == ["build.xml", "bob.obj"]
    for name, content in bundle.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert list_copy_differences(RobotConfig(spec=build), tmp_path / "build.xml") == []
    assert list_copy_differences(RobotConfig(spec=build_larger), tmp_path / "build.xml") != []
    assert bundle_robot(tmp_path / "build.xml") == bundle


def test_meshes_of_files_are_copied(tmp_path: Path) -> None:
    (tmp_path / "stl").mkdir()
    (tmp_path / "stl" / "bob.obj").write_text(OBJ.format(0.3))
    (tmp_path / "robot.xml").write_text(XML)

    def read() -> Any:
        return mujoco.MjSpec.from_file(str(tmp_path / "robot.xml"))

    bundle = bundle_built_robot(RobotConfig(spec=read))
    assert OBJ.format(0.3).encode() in bundle.values()


def test_a_run_records_the_function_and_plays_its_copy(tmp_path: Path) -> None:
    recorded, notices = record_robot(tmp_path, RobotConfig(spec=build, timestep=0.004))
    assert notices == []
    plain = to_plain(recorded)
    assert (plain["file"], plain["spec"]) == ("robot/build.xml", f"{__name__}:build")
    assert from_plain(RobotConfig, plain) == recorded
    found = find_robot(tmp_path, recorded)
    assert found is not None
    assert found.file == str(tmp_path / "robot" / "build.xml")
    assert found.label == found.file
    save_params(tmp_path, env={"robot": plain})
    assert list_robot_changes(tmp_path, RobotConfig(spec=build)) == []
    (line,) = list_robot_changes(tmp_path, RobotConfig(spec=build_larger))
    assert f"robot/build.xml -> {__name__}:build_larger, whose content differs" in line


def test_a_robot_whose_meshes_cannot_be_found_is_recorded_as_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(robot: RobotConfig) -> dict[str, bytes]:
        raise RobotBundleError("bob.obj, a file that it uses, is not in the assets of its MjSpec")

    monkeypatch.setattr("mjtrain.runs.robot.bundle_built_robot", refuse)
    recorded, (line,) = record_robot(tmp_path, RobotConfig(spec=build))
    assert recorded == RobotConfig(spec=build)
    assert f"the run keeps no copy of the robot, so it needs {__name__}:build later: bob.obj" in line
    assert find_robot(tmp_path, recorded) == recorded
