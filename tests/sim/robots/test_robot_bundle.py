"""A copy of a robot compiles to the same model, wherever it is."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from PIL import Image

from mjtrain.config import RobotConfig, from_plain, to_plain
from mjtrain.env.catalog import load_task
from mjtrain.runs.robot import find_robot, list_robot_changes, record_robot
from mjtrain.runs.run_dir import save_params
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.model import open_robot
from mjtrain.sim.robots.robot_bundle import RobotBundleError, bundle_built_robot, bundle_robot, list_copy_differences
from support.envs import TASKS

OBJ = "v 0 0 0\nv {0} 0 0\nv 0 {0} 0\nv 0 0 {0}\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"

MAIN = """
<mujoco model="main">
  <compiler angle="degree" meshdir="meshes" texturedir="{texturedir}"/>
  <!-- a comment -->
  <include file="parts/defaults.xml"/>
  <asset>
    <mesh name="named" file="a/link.obj"/>
    <mesh file="b/link.obj" scale="0.1 0.1 0.1"/>
    <hfield name="ground" file="ground.png" size="2 2 0.3 0.1"/>
    <texture name="flat" type="2d" file="wood.png"/>
    <texture name="sky" type="skybox" fileright="wood.png" fileleft="wood.png" fileup="wood.png" filedown="wood.png"
      filefront="wood.png" fileback="wood.png"/>
    <material name="wood" texture="flat"/>
    <model name="gripper" file="../gripper/gripper.xml"/>
  </asset>
  <worldbody>
    <geom type="hfield" hfield="ground" material="wood"/>
    <body name="base" pos="0 0 2">
      <freejoint name="root"/>
      <geom type="mesh" mesh="named"/>
      <geom class="light" type="mesh" mesh="link"/>
      <include file="parts/arm.xml"/>
      <frame pos="0.5 0 0"><attach model="gripper" body="palm" prefix="left_"/></frame>
    </body>
    <body name="cloth" pos="0 0 4">
      <flexcomp name="cloth" type="mesh" file="a/link.obj" dim="2" mass="0.1" radius="0.01"/>
    </body>
  </worldbody>
</mujoco>
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_bundle(bundle: dict[str, bytes], folder: Path) -> Path:
    for name, content in bundle.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / next(iter(bundle))


def write_robot(folder: Path) -> Path:
    """Write a robot that uses all that MJCF has to refer to other files."""
    main = folder / "main"
    for index, name in enumerate(("a/link.obj", "b/link.obj")):  # two of one name
        write(main / "meshes" / name, OBJ.format(index + 1))
    images = folder / "images"
    images.mkdir()
    random = np.random.default_rng(0)
    Image.fromarray(random.integers(0, 255, (8, 8, 3), np.uint8)).save(images / "wood.png")
    Image.fromarray(random.integers(0, 255, (8, 8), np.uint8)).save(main / "meshes" / "ground.png")
    write(main / "parts" / "defaults.xml", '<mujoco><include file="more/classes.xml"/></mujoco>')
    classes = '<mujocoinclude><default><default class="light"><geom density="{}"/></default></default></mujocoinclude>'
    write(main / "parts" / "more" / "classes.xml", classes.format(1))
    write(main / "more" / "classes.xml", classes.format(70))  # MuJoCo looks here first
    write(
        main / "parts" / "arm.xml",
        '<mujoco><body name="arm"><joint name="elbow" range="-30 30.123456789"/><geom size="0.1"/></body></mujoco>',
    )
    gripper = folder / "gripper"
    write(gripper / "stl" / "finger.obj", OBJ.format(0.3))
    write(gripper / "assets.xml", '<mujoco><asset><mesh file="finger.obj"/></asset></mujoco>')
    write(
        gripper / "gripper.xml",
        '<mujoco model="gripper"><compiler assetdir="stl"/><include file="assets.xml"/>'
        '<worldbody><body name="palm"><geom type="mesh" mesh="finger"/></body></worldbody></mujoco>',
    )
    return write(main / "robot.xml", MAIN.format(texturedir=images))


@pytest.mark.parametrize("task", [task for task in TASKS if load_task(task).env.robot.file])
def test_the_robots_of_the_tasks_are_copied_as_they_are(task: str, tmp_path: Path) -> None:
    robot = Path(load_task(task).env.robot.file)
    assert list_copy_differences(RobotConfig(file=str(robot)), write_bundle(bundle_robot(robot), tmp_path)) == []


def test_a_copy_is_the_same_model_and_needs_nothing_else(tmp_path: Path) -> None:
    robot = write_robot(tmp_path)
    bundle = bundle_robot(robot)
    assert b"comment" not in bundle["robot.xml"]
    copy = write_bundle(bundle, tmp_path / "copy")
    assert list_copy_differences(RobotConfig(file=str(robot)), copy) == []
    assert mujoco.MjModel.from_xml_path(str(copy)).nmesh == 3
    moved = (tmp_path / "copy").rename(tmp_path / "moved") / copy.name
    for folder in ("main", "images", "gripper"):
        (tmp_path / folder).rename(tmp_path / f"{folder}_gone")
    assert mujoco.MjModel.from_xml_path(str(moved)).nhfield == 1
    assert bundle_robot(moved) == bundle


def test_folders_in_the_names_of_files_are_stripped_where_the_model_says_so(tmp_path: Path) -> None:
    write(tmp_path / "stl" / "link.obj", OBJ.format(1))
    robot = write(
        tmp_path / "robot.xml",
        '<mujoco><compiler assetdir="stl" strippath="true"/><asset><mesh file="elsewhere/link.obj"/></asset>'
        '<worldbody><geom type="mesh" mesh="link"/></worldbody></mujoco>',
    )
    assert (
        list_copy_differences(RobotConfig(file=str(robot)), write_bundle(bundle_robot(robot), tmp_path / "copy")) == []
    )


SLOPPY = {
    "hyphens in a comment": b'<mujoco><!-- a -- b --><worldbody><body><joint/><geom size=".1"/></body></worldbody>'
    b"</mujoco>",
    "no space between attributes": b'<mujoco><worldbody><body><joint type="slide"axis="1 0 0"/><geom size=".1"/>'
    b"</body></worldbody></mujoco>",
    "bytes of another encoding": b'<?xml version="1.0" encoding="latin-1"?><mujoco><worldbody><body name="k\xf6rper">'
    b'<joint/><geom name="a&amp;b" size=".1"/></body></worldbody></mujoco>',
    "bytes that are not UTF-8": b'<mujoco><worldbody><body name="k\xf6rper"><joint/><geom size=".1"/></body>'
    b"</worldbody></mujoco>",
    "byte order mark and CRLF": '\ufeff<mujoco>\r\n<worldbody>\r\n<body name="körper"><joint/><geom size=".1"/></body>'
    "</worldbody></mujoco>\r\n".encode(),
    "text after the end": b'<mujoco><worldbody><body><joint/><geom size=".1"/></body></worldbody></mujoco> <more/>',
}


@pytest.mark.parametrize("what", SLOPPY)
def test_xml_that_only_mujoco_reads_is_copied_too(what: str, tmp_path: Path) -> None:
    robot = tmp_path / "robot.xml"
    robot.write_bytes(SLOPPY[what])
    bundle = bundle_robot(robot)
    copy = write_bundle(bundle, tmp_path / "copy")
    assert list_copy_differences(RobotConfig(file=str(robot)), copy) == []
    assert bundle_robot(copy) == bundle


LOOPS = {
    "includes itself": ({"a.xml": '<mujoco><include file="a.xml"/></mujoco>'}, "a.xml -> a.xml"),
    "includes itself by another": (
        {"a.xml": '<mujoco><include file="b.xml"/></mujoco>', "b.xml": '<mujoco><include file="a.xml"/></mujoco>'},
        "a.xml -> b.xml -> a.xml",
    ),
    "attaches itself": (
        {"a.xml": '<mujoco><asset><model name="m" file="sub/b.xml"/></asset></mujoco>',
         "sub/b.xml": '<mujoco><asset><model name="m" file="../a.xml"/></asset></mujoco>'},
        "a.xml -> b.xml -> a.xml",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LOOPS)
def test_a_file_that_leads_back_to_itself_is_one_line(what: str, tmp_path: Path) -> None:
    files, chain = LOOPS[what]
    for name, text in files.items():
        write(tmp_path / name, text)
    with pytest.raises(RobotBundleError, match=f"the file includes or attaches itself: {chain}"):
        bundle_robot(tmp_path / "a.xml")
    with pytest.raises(RequestError, match=rf"^--env\.robot .*a\.xml: the file includes or attaches itself: {chain}$"):
        open_robot(RobotConfig(file=str(tmp_path / "a.xml")))


def test_every_change_shows(tmp_path: Path) -> None:
    robot = write_robot(tmp_path)
    before = bundle_robot(robot)
    copy = write_bundle(before, tmp_path / "copy")
    for file in ("main/meshes/b/link.obj", "gripper/stl/finger.obj", "main/parts/arm.xml", "main/more/classes.xml"):
        path = tmp_path / file
        content = path.read_text()
        path.write_text(content.replace("0.3", "0.4").replace("v 2", "v 3").replace("70", "80").replace("0.1", "0.2"))
        assert path.read_text() != content
        assert bundle_robot(robot) != before, file
        assert list_copy_differences(RobotConfig(file=str(robot)), copy), file
        path.write_text(content)
        assert bundle_robot(robot) == before


def test_what_cannot_be_copied_is_named(tmp_path: Path) -> None:
    robot = write_robot(tmp_path)
    (tmp_path / "gripper" / "stl" / "finger.obj").unlink()
    broken = write(tmp_path / "broken.xml", "<mujoco><worldbody></mujoco>")
    urdf = write(tmp_path / "robot.urdf", "<robot name='r'/>")
    lost = write(tmp_path / "lost.xml", "<mujoco><include file='nowhere.xml'/></mujoco>")
    for path, message in (
        (robot, r"finger\.obj: no such file"),
        (broken, r"broken\.xml cannot be read as XML"),
        (urdf, r"robot\.urdf is not an MJCF file: its outermost element is <robot>"),
        (lost, r"nowhere\.xml: no such file"),
        (tmp_path / "gone.xml", r"gone\.xml: no such file"),
    ):
        with pytest.raises(RobotBundleError, match=message):
            bundle_robot(path)


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
