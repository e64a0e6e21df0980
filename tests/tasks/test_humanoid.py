"""The humanoid: its model against the published figures, its two sides, and the task's variants."""

from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import EnvConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.mirror import find_mirror_problems
from mjtrain.sim.robots.model import load_model
from mjtrain_tasks.humanoid_velocity import make_flat, make_flat_29dof, make_flat_for_robot
from mjtrain_tasks.models import HUMANOID
from support.envs import make_env

# Unitree's g1_29dof_rev_1_0: mass in kg, place in the parent in m, range of the joint in rad.
LINKS = {
    "left_hip_pitch": (1.35, (0, 0.064452, -0.1027), (-2.5307, 2.8798)),
    "left_hip_roll": (1.52, (0, 0.052, -0.030465), (-0.5236, 2.9671)),
    "left_hip_yaw": (1.702, (0.025001, 0, -0.12412), (-2.7576, 2.7576)),
    "left_knee": (1.932, (-0.078273, 0.0021489, -0.17734), (-0.087267, 2.8798)),
    "left_ankle_pitch": (0.074, (0, 0, -0.30001), (-0.87267, 0.5236)),
    "left_ankle_roll": (0.608, (0, 0, -0.017558), (-0.2618, 0.2618)),
    "right_hip_pitch": (1.35, (0, -0.064452, -0.1027), (-2.5307, 2.8798)),
    "right_hip_roll": (1.52, (0, -0.052, -0.030465), (-2.9671, 0.5236)),
    "right_hip_yaw": (1.702, (0.025001, 0, -0.12412), (-2.7576, 2.7576)),
    "right_knee": (1.932, (-0.078273, -0.0021489, -0.17734), (-0.087267, 2.8798)),
    "right_ankle_pitch": (0.074, (0, 0, -0.30001), (-0.87267, 0.5236)),
    "right_ankle_roll": (0.608, (0, 0, -0.017558), (-0.2618, 0.2618)),
    "waist_yaw": (0.214, (0, 0, 0), (-2.618, 2.618)),
    "waist_roll": (0.086, (-0.0039635, 0, 0.044), (-0.52, 0.52)),
    "waist_pitch": (7.818, (0, 0, 0), (-0.52, 0.52)),
    "left_shoulder_pitch": (0.718, (0.0039563, 0.10022, 0.24778), (-3.0892, 2.6704)),
    "left_shoulder_roll": (0.643, (0, 0.038, -0.013831), (-1.5882, 2.2515)),
    "left_shoulder_yaw": (0.734, (0, 0.00624, -0.1032), (-2.618, 2.618)),
    "left_elbow": (0.6, (0.015783, 0, -0.080518), (-1.0472, 2.0944)),
    "left_wrist_roll": (0.085445, (0.1, 0.00188791, -0.01), (-1.97222, 1.97222)),
    "left_wrist_pitch": (0.48405, (0.038, 0, 0), (-1.61443, 1.61443)),
    "left_wrist_yaw": (0.254576, (0.046, 0, 0), (-1.61443, 1.61443)),
    "right_shoulder_pitch": (0.718, (0.0039563, -0.10021, 0.24778), (-3.0892, 2.6704)),
    "right_shoulder_roll": (0.643, (0, -0.038, -0.013831), (-2.2515, 1.5882)),
    "right_shoulder_yaw": (0.734, (0, -0.00624, -0.1032), (-2.618, 2.618)),
    "right_elbow": (0.6, (0.015783, 0, -0.080518), (-1.0472, 2.0944)),
    "right_wrist_roll": (0.085445, (0.1, -0.00188791, -0.01), (-1.97222, 1.97222)),
    "right_wrist_pitch": (0.48405, (0.038, 0, 0), (-1.61443, 1.61443)),
    "right_wrist_yaw": (0.254576, (0.046, 0, 0), (-1.61443, 1.61443)),
}
# Inertias of the rotors in kg m^2, gears, and torque in N m, from mjlab 1.6.0; how many drive a joint.
MOTORS = {
    "7520_14": ((0.489e-4, 0.098e-4, 0.533e-4), (4.5, 1 + 48 / 22), 88, 1),
    "7520_22": ((0.489e-4, 0.109e-4, 0.738e-4), (4.5, 5), 139, 1),
    "5020": ((0.139e-4, 0.017e-4, 0.169e-4), (1 + 46 / 18, 1 + 56 / 16), 25, 1),
    "5020x2": ((0.139e-4, 0.017e-4, 0.169e-4), (1 + 46 / 18, 1 + 56 / 16), 25, 2),
    "4010": ((0.068e-4, 0.0, 0.0), (5, 5), 5, 1),
}
DRIVES = {"hip_pitch": "7520_14", "hip_yaw": "7520_14", "waist_yaw": "7520_14", "hip_roll": "7520_22"}
DRIVES |= {"knee": "7520_22", "ankle_pitch": "5020x2", "ankle_roll": "5020x2", "waist_roll": "5020x2"}
DRIVES |= {"waist_pitch": "5020x2", "wrist_pitch": "4010", "wrist_yaw": "4010"}
NATURAL_FREQUENCY = 2 * np.pi * 10
MIRROR = np.diag([1.0, -1.0, 1.0])


@pytest.fixture(scope="module")
def model() -> Any:
    return mujoco.MjModel.from_xml_path(str(HUMANOID))


def inertia(model: Any, body: str) -> tuple[np.ndarray, np.ndarray]:
    """Centre of mass and inertia about it, in the frame of the body."""
    row, turn = model.body(body).id, np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.body_iquat[row])
    turn = turn.reshape(3, 3)
    return model.body_ipos[row], turn @ np.diag(model.body_inertia[row]) @ turn.T


def test_links_and_joints_are_those_of_the_table(model: Any) -> None:
    assert [model.joint(index).name for index in range(1, model.njnt)] == [f"{name}_joint" for name in LINKS]
    assert [model.actuator(index).name for index in range(model.nu)] == [f"{name}_joint" for name in LINKS]
    for name, (mass, place, limits) in LINKS.items():
        joint = model.joint(f"{name}_joint")
        body = int(joint.bodyid[0])
        assert model.body(body).name == ("torso_link" if name == "waist_pitch" else f"{name}_link")
        assert model.body_mass[body] == pytest.approx(mass), name
        assert model.body_pos[body] == pytest.approx(place, abs=1e-4), name
        assert joint.range == pytest.approx(limits), name
    assert model.body_subtreemass[1] == pytest.approx(33.341, abs=1e-3)


def test_motors_are_those_of_the_table(model: Any) -> None:
    for index, name in enumerate(LINKS):
        part = name.removeprefix("left_").removeprefix("right_")
        rotors, gears, torque, number = MOTORS[DRIVES.get(part, "5020")]
        armature = number * (rotors[0] * (gears[0] * gears[1]) ** 2 + rotors[1] * gears[1] ** 2 + rotors[2])
        kp, kv = armature * NATURAL_FREQUENCY**2, 4 * armature * NATURAL_FREQUENCY
        assert model.dof_armature[6 + index] == pytest.approx(armature, rel=1e-3), name
        assert model.actuator_gainprm[index, 0] == pytest.approx(kp, rel=1e-3), name
        assert model.actuator_biasprm[index, 1:3] == pytest.approx((-kp, -kv), rel=1e-3), name
        assert model.actuator_forcerange[index] == pytest.approx((-number * torque, number * torque)), name
        assert model.actuator_ctrlrange[index] == pytest.approx(model.jnt_range[1 + index]), name


def test_right_is_the_mirror_image_of_left_and_the_middle_of_itself(model: Any) -> None:
    names = [model.body(index).name for index in range(1, model.nbody)]
    assert sum(name.startswith("left_") for name in names) == 13
    for name in names:
        image = name.replace("left_", "right_")
        (center, own), (other_center, other) = inertia(model, name), inertia(model, image)
        if name.startswith("right_"):
            continue
        assert center == pytest.approx(MIRROR @ other_center, abs=1e-9), name
        assert own == pytest.approx(MIRROR @ other @ MIRROR, abs=1e-9), name
    config = make_flat_29dof().env
    exact = replace(config.robot, mirror=replace(config.robot.mirror, tolerance=1e-6))
    assert find_mirror_problems(make_env(replace(config, robot=exact), num_envs=2), ("actor", "critic")) == []


def test_it_stands_on_eight_points_and_touches_nothing_else(model: Any) -> None:
    flat = load_model(make_flat().env)
    data = mujoco.MjData(flat)
    mujoco.mj_resetDataKeyframe(flat, data, flat.key("home").id)
    for _ in range(15):
        mujoco.mj_step(flat, data)
    touching = {flat.geom(geom).name for contact in data.contact for geom in contact.geom}
    soles = {
        f"{side}_sole_{end}_{edge}"
        for side in ("left", "right")
        for end in ("front", "back")
        for edge in ("inner", "outer")
    }
    assert touching == soles | {"ground"}
    assert data.sensor("left_foot_contact").data[0] == pytest.approx(
        data.sensor("right_foot_contact").data[0], rel=1e-3
    )
    crossed = mujoco.MjData(model)
    for side in (1, -1):
        crossed.joint(f"{'left' if side > 0 else 'right'}_hip_roll_joint").qpos = -0.3 * side
    mujoco.mj_forward(model, crossed)
    assert crossed.sensor("shin_crossing").data[0] > 0


def test_with_its_upper_body_locked_it_is_the_same_robot_held_in_its_home_pose(model: Any) -> None:
    legs = load_model(replace(make_flat().env, decimation=2))
    assert legs.nu == 12
    assert legs.body_subtreemass[1] == pytest.approx(model.body_subtreemass[1])
    whole, part = mujoco.MjData(model), mujoco.MjData(legs)
    for one, data in ((model, whole), (legs, part)):
        mujoco.mj_resetDataKeyframe(one, data, one.key("home").id)
        data.qpos[7:19] += np.linspace(-0.2, 0.3, 12)
        mujoco.mj_forward(one, data)
    for index in range(1, legs.nbody):
        name = legs.body(index).name
        assert part.body(name).xpos == pytest.approx(whole.body(name).xpos, abs=1e-6), name
        assert part.body(name).xmat == pytest.approx(whole.body(name).xmat, abs=1e-6), name
    matrices = []
    for one, data in ((model, whole), (legs, part)):
        full = np.zeros((one.nv, one.nv))
        mujoco.mj_fullM(one, data, full)
        matrices.append(full[:18, :18])
    assert matrices[1] == pytest.approx(matrices[0], abs=1e-6)


@pytest.mark.parametrize("make", [make_flat_29dof, make_flat_for_robot])
def test_variants_change_what_they_say(make: Any) -> None:
    plain, env = (make_env(config, num_envs=2) for config in (make_flat().env, make().env))
    widths, others = plain.observation_widths("actor"), env.observation_widths("actor")
    if make is make_flat_29dof:
        assert (plain.num_actions, env.num_actions) == (12, 29)
        assert others == widths | {"joint_positions": 29, "joint_velocities": 29, "last_action": 29}
    else:
        assert others == {name: width for name, width in widths.items() if name != "base_velocity"}
        assert env.observation_widths("critic") == plain.observation_widths("critic")
        assert make().env.observations["actor"]["clock"].params["velocity_sensor"] is None
        assert all(row["delay"] == (0, 1) for row in env.action_table)
        assert (env.encoder_bias[:, 7:].abs() <= 0.015).all()
        assert (env.encoder_bias[:, 7:] != 0).all()
        assert find_mirror_problems(env, ("actor", "critic")) == []


def test_commands_are_slower_sideways_than_ahead() -> None:
    config: EnvConfig = load_task("Humanoid-Velocity-Flat").env
    full = {name: replace(term, initial=(1.0, 1.0)) for name, term in config.curriculum.items()}
    env = make_env(replace(config, curriculum=full), num_envs=2000)
    fastest = env.drawn_command("velocity")[:, :3].abs().amax(dim=0)
    bounds = torch.tensor([1.0, 0.5, 1.0])
    assert (fastest <= bounds).all()
    assert (fastest > 0.9 * bounds).all()
