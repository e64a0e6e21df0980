"""Terms of the root, of several joints and of targets: computed by hand or by MuJoCo's own sensors, on both engines."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mjtrain.config import ActionTerm, CommandTerm, EnvConfig, EventTerm, ObservationTerm, RewardTerm
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.mdp import events, gait, observations, randomization, reach, rewards, root, targets, terminations, velocity
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations
from support.envs import ENGINES, NUM_ENVS, actions_for, make_env

FREE = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1"/>
    <body name="base" pos="0 0 1">
      <freejoint name="base"/>
      <geom type="box" size="0.2 0.1 0.05" mass="2" pos="0.03 0 0"/>
      <site name="origin"/>
      <body pos="0.2 0 0">
        <joint name="hip" axis="0 1 0" range="-30 60"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02" mass="0.2"/>
        <body pos="0 0 -0.2">
          <joint name="ankle" type="slide" axis="0 0 1" range="-0.1 0.3"/>
          <geom type="sphere" size="0.03" mass="0.1"/>
        </body>
      </body>
      <body pos="-0.2 0 0">
        <joint type="ball"/>
        <geom type="sphere" size="0.03" mass="0.1" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="hip" joint="hip" gear="3"/>
    <motor name="ankle" joint="ankle" gear="5"/>
  </actuator>
  <sensor>
    <velocimeter name="velocity" site="origin"/>
    <gyro name="turning" site="origin"/>
    <framezaxis name="up" objtype="xbody" objname="world" reftype="xbody" refname="base"/>
    <jointactuatorfrc name="hip_torque" joint="hip"/>
    <jointactuatorfrc name="ankle_torque" joint="ankle"/>
  </sensor>
</mujoco>
"""

PLANAR = """
<mujoco>
  <worldbody>
    <body name="torso" pos="0 0 0.5">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="z" type="slide" axis="0 0 1" ref="0.5"/>
      <joint name="pitch" type="hinge" axis="0 1 0"/>
      <geom type="capsule" fromto="-0.2 0 0 0.2 0 0" size="0.05" mass="1"/>
      <site name="origin"/>
      <body pos="0.2 0 0">
        <joint name="leg" axis="0 1 0" range="-57 57"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="0.2"/>
        <site name="tip" pos="0 0 -0.3"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="leg" joint="leg"/></actuator>
  <sensor>
    <velocimeter name="velocity" site="origin"/>
    <framezaxis name="up" objtype="xbody" objname="world" reftype="xbody" refname="torso"/>
    <framepos name="tip" objtype="site" objname="tip"/>
  </sensor>
</mujoco>
"""


def count(env: Env) -> torch.Tensor:
    return env.episode_step[:, None].float()


def make(tmp_path: Path, text: str, *, engine: str = "native", num_envs: int = NUM_ENVS, **changes: Any) -> Env:
    robot = tmp_path / "robot.xml"
    robot.write_text(text)
    parts: dict[str, Any] = {
        "actions": {"all": ActionTerm()},
        "observations": {"actor": {"count": ObservationTerm(func=count)}},
        "rewards": {"alive": RewardTerm(func=rewards.is_alive, weight=1.0)},
        "terminations": {},
    }
    config = EnvConfig(robot=str(robot), decimation=2, episode_length_s=10.0, **(parts | changes))
    return make_env(config, engine=engine, num_envs=num_envs)


def scatter(env: Env, scale: float = 1.0) -> None:
    """Put every world into a random state."""
    generator = torch.Generator().manual_seed(1)
    qpos = env.engine.layout.default_qpos + scale * (2 * torch.rand(env.state.qpos.shape, generator=generator) - 1)
    for columns in env.engine.layout.quaternions:
        qpos[:, columns] /= qpos[:, columns].norm(dim=1, keepdim=True)
    qvel = torch.randn(env.state.qvel.shape, generator=generator)
    env.engine.reset(torch.ones(env.num_envs, dtype=torch.bool), qpos, qvel)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_free_joint_tells_what_sensors_would(engine: str, tmp_path: Path) -> None:
    env = make(tmp_path, FREE, engine=engine)
    scatter(env)
    close: Any = {"atol": 1e-5, "rtol": 1e-5}
    assert torch.allclose(root.base_lin_vel(env, joint="base"), env.sensor("velocity"), **close)
    assert torch.allclose(root.base_ang_vel(env, joint="base"), env.sensor("turning"), **close)
    up = env.sensor("up")
    assert torch.allclose(root.projected_gravity(env, joint="base"), -up, **close)
    assert torch.allclose(root.upright(env, joint="base"), up[:, 2], **close)
    assert torch.allclose(
        root.flat_orientation(env, joint="base"), velocity.flat_orientation(env, sensor="up"), **close
    )
    for limit in (0.5, 1.0, 2.0):
        assert torch.equal(
            root.bad_orientation(env, joint="base", limit=limit),
            terminations.bad_orientation(env, sensor="up", limit=limit),
        )
    assert torch.equal(root.forward_velocity(env, joint="base"), env.state.qvel[:, 0])
    assert torch.equal(root.base_height(env, joint="base"), env.state.qpos[:, 2:3])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_planar_root_tells_what_sensors_would(engine: str, tmp_path: Path) -> None:
    env = make(tmp_path, PLANAR, engine=engine)
    scatter(env)
    close: Any = {"atol": 1e-5, "rtol": 1e-5}
    planar = root.planar_lin_vel(env, x_joint="x", z_joint="z", pitch_joint="pitch")
    assert torch.allclose(planar, env.sensor("velocity")[:, (0, 2)], **close)
    assert torch.allclose(root.projected_gravity(env, joint="pitch"), -env.sensor("up")[:, (0, 2)], **close)
    assert torch.allclose(root.upright(env, joint="pitch"), env.sensor("up")[:, 2], **close)
    assert torch.equal(root.base_ang_vel(env, joint="pitch"), env.qvel("pitch"))
    assert torch.equal(root.forward_velocity(env, joint="x"), env.qvel("x")[:, 0])
    assert torch.equal(root.base_height(env, joint="z"), env.qpos("z"))
    fraction = root.reach_forward_velocity(env, joint="x", speed=0.5)
    assert torch.allclose(fraction, (env.qvel("x")[:, 0] * 2).clamp(0, 1))
    assert 0 < fraction.mean() < 1


def ahead(env: Env) -> torch.Tensor:
    return torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]]).expand(env.num_envs, -1)


def test_commands_and_errors_that_do_not_exist_are_named(tmp_path: Path) -> None:
    env = make(tmp_path, FREE, commands={"velocity": CommandTerm(func=ahead)})
    for wrong in ("sideways", "velocity"):
        with pytest.raises(RequestError, match=f"command.* {wrong}"):
            env.steer(wrong, [1.0])
    with pytest.raises(RequestError, match=r"^unknown commands\.velocity\.errors term planar; available: none$"):
        env.command_error("velocity", "planar")


def test_ranges_have_either_bound_or_both(tmp_path: Path) -> None:
    env = make(tmp_path, PLANAR)
    qpos = env.state.qpos.clone()
    qpos[:, 1] = torch.tensor([0.1, 0.4, 0.6, 0.8, 1.0, float("nan")])
    env.state.qpos.copy_(qpos)
    low = [True, True, False, False, False, False]
    high = [False, False, False, True, True, False]
    both = [one or other for one, other in zip(low, high, strict=True)]
    for bounds, expected in (({"low": 0.5}, low), ({"high": 0.7}, high), ({"low": 0.5, "high": 0.7}, both)):
        assert root.height_out_of_range(env, joint="z", **bounds).tolist() == expected
        assert terminations.joint_out_of_range(env, joint="z", **bounds).tolist() == expected
        assert root.height_in_range(env, joint="z", **bounds).tolist() == [float(not beyond) for beyond in expected]
        assert rewards.joint_in_range(env, joint="z", **bounds).tolist() == [float(not beyond) for beyond in expected]
    assert terminations.joint_out_of_range(env, joint="z", limit=0.7).tolist() == high
    with pytest.raises(RequestError, match="give low, high or both"):
        root.height_out_of_range(env, joint="z")
    for bound in ("low", "high"):
        with pytest.raises(RequestError, match="limit is for both sides"):
            terminations.joint_out_of_range(env, joint="z", limit=0.7, **{bound: 0.5})


def test_a_joint_of_the_wrong_kind_is_named(tmp_path: Path) -> None:
    env = make(tmp_path, PLANAR)
    with pytest.raises(RequestError, match="joint pitch is not a free joint"):
        root.base_lin_vel(env, joint="pitch")
    with pytest.raises(RequestError, match="joint x, pitch of the robot has no range"):
        rewards.joint_pos_limits(env, joints=("x", "pitch"))
    for function in (root.base_ang_vel, root.projected_gravity, root.upright, root.flat_orientation):
        with pytest.raises(RequestError, match="joint z is a slide; give a free joint or a hinge"):
            function(env, joint="z")
    for function in (root.base_height, root.forward_velocity):
        with pytest.raises(RequestError, match="joint pitch is a hinge; give a free joint or a slide"):
            function(env, joint="pitch")
    with pytest.raises(RequestError, match="joint pitch is a hinge; give a slide"):
        root.planar_lin_vel(env, x_joint="x", z_joint="pitch", pitch_joint="pitch")
    with pytest.raises(RequestError, match="joint z is a slide; give a hinge"):
        root.planar_lin_vel(env, x_joint="x", z_joint="z", pitch_joint="z")
    env.is_recorded = True  # what was trained with keeps its meaning
    assert root.base_ang_vel(env, joint="z").shape == (NUM_ENVS, 1)
    assert torch.equal(root.base_height(env, joint="pitch"), env.qpos("pitch"))
    assert root.planar_lin_vel(env, x_joint="x", z_joint="z", pitch_joint="z").shape == (NUM_ENVS, 2)
    env = make(tmp_path, FREE.replace('<joint type="ball"/>', '<joint name="ball" type="ball"/>'))
    with pytest.raises(RequestError, match="joint ball is a ball joint; give a free joint or a slide"):
        root.forward_velocity(env, joint="ball")
    with pytest.raises(RequestError, match="joint base is a free joint; give a slide"):
        root.planar_lin_vel(env, x_joint="base", z_joint="ankle", pitch_joint="hip")


def test_terms_without_a_name_are_the_users_error(tmp_path: Path) -> None:
    env = make(tmp_path, FREE)
    worlds = Worlds(mask=env.terminated, qpos=env.state.qpos.clone(), qvel=env.state.qvel.clone())
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("joint", lambda: rewards.joint_speed(env, joints=())),
        ("joint", lambda: rewards.joint_pos_limits(env, joints=())),
        ("joint", lambda: randomization.armature(env, worlds, joints=(), factor=(1.0, 2.0))),
        ("sensor", lambda: rewards.undesired_contacts(env, sensors=())),
        ("sensor", lambda: observations.sensors(env, sensors=())),
        ("body", lambda: randomization.mass(env, worlds, bodies=(), factor=(1.0, 2.0))),
    )
    for kind, call in calls:
        with pytest.raises(RequestError, match=f"no {kind} is named; give at least one expression"):
            call()


def test_joint_limits_are_those_of_the_file(tmp_path: Path) -> None:
    env = make(tmp_path, FREE)
    joints = ("ankle", "hip")
    ends = torch.tensor([[-0.1, 0.3], [math.radians(-30), math.radians(60)]])
    qpos = env.state.qpos.clone()
    layout = env.engine.layout.qpos
    for world, part in enumerate((0.0, 1.0, 0.5, 0.97, 1.1, 0.0)):
        position = ends[:, 0] + part * (ends[:, 1] - ends[:, 0])
        qpos[world, layout["ankle"]], qpos[world, layout["hip"]] = position[0], position[1]
    env.state.qpos.copy_(qpos)
    assert torch.equal(observations.joint_positions(env, joints=joints), env.qpos(joints))
    parts = torch.tensor([-1.0, 1.0, 0.0, 0.94, 1.2, -1.0])
    assert torch.allclose(
        observations.joint_pos_limit_normalized(env, joints=joints), parts[:, None].expand(-1, 2), atol=1e-5
    )
    halves = (ends[:, 1] - ends[:, 0]) / 2
    expected = (parts.abs() - 0.9).clamp_min(0.0) * halves.sum()
    assert torch.allclose(rewards.joint_pos_limits(env, joints=joints, soft=0.9), expected, atol=1e-5)
    beyond = terminations.joint_pos_out_of_limit(env, joints=joints).tolist()
    assert beyond[2:5] == [False, False, True]


@pytest.mark.parametrize("engine", ENGINES)
def test_power_is_force_times_velocity(engine: str, tmp_path: Path) -> None:
    env = make(tmp_path, FREE, engine=engine)
    env.step(torch.tensor([0.5, -0.2]).repeat(NUM_ENVS, 1))
    sensors, joints = ("hip_torque", "ankle_torque"), ("hip", "ankle")
    forces = torch.tensor([1.5, -1.0])
    assert torch.allclose(env.sensor(sensors), forces.expand(NUM_ENVS, 2), atol=1e-6)
    power = rewards.mechanical_power(env, joints=joints, torque_sensors=sensors)
    assert torch.allclose(power, (forces * env.qvel(joints)).abs().sum(dim=1), atol=1e-6)
    assert power.min() > 0
    turned = rewards.mechanical_power(env, joints=joints[::-1], torque_sensors=sensors[::-1])
    assert torch.allclose(turned, power)  # each force meets the velocity of its own joint, in any order
    with pytest.raises(
        RequestError, match=r"sensors ankle_torque measure .* joints ankle, and the joints are hip, ank"
    ):
        rewards.mechanical_power(env, joints=joints, torque_sensors=("ankle_torque",))
    fast = rewards.joint_vel_limits(env, joints=joints, limit=0.01)
    assert torch.allclose(fast, (env.qvel(joints).abs() - 0.01).clamp_min(0).sum(dim=1))


# Actions


def test_differences_of_the_action_of_both_orders_begin_at_zero(tmp_path: Path) -> None:
    terms = {
        "rate": RewardTerm(func=rewards.action_rate, weight=1.0),
        "acc": RewardTerm(func=rewards.action_acc, weight=1.0),
    }
    env = make(tmp_path, FREE, rewards=terms)
    values = [0.1, 0.4, 0.2, 0.2]
    rates, accs = [], []
    for value in values:
        env.step(torch.full((NUM_ENVS, 2), value))
        rate, acc = env.reward_terms[0] / env.step_dt
        rates.append(rate.item())
        accs.append(acc.item())
    assert rates == pytest.approx([2 * 0.1**2, 2 * 0.3**2, 2 * 0.2**2, 0.0], abs=1e-6)
    assert accs == pytest.approx([2 * 0.1**2, 2 * 0.2**2, 2 * 0.5**2, 2 * 0.2**2], abs=1e-6)
    mask = torch.arange(NUM_ENVS) == 0
    env.reset(mask)
    assert (env.action_before_last[0] == 0).all()
    assert torch.allclose(env.action_before_last[1], torch.tensor([0.4, 0.4]))


# Contact times

QUADRUPED = load_task("Quadruped-Velocity-Flat").env
FEET = ("FR_foot_contact", "FL_foot_contact", "RR_foot_contact", "RL_foot_contact")


def hopping(**changes: Any) -> EnvConfig:
    air_time = RewardTerm(
        func=gait.feet_air_time, weight=1.0, params={"contact_sensors": FEET, "threshold_s": 0.05, "command": ""}
    )
    return replace(QUADRUPED, rewards={"air": air_time}, terminations={}, events={}, **changes)


def test_a_flight_counts_where_the_foot_lands() -> None:
    env = make_env(hopping())
    touched, earned = [], []
    for action in actions_for(env, 120):
        env.step(3 * action)
        touched.append(env.sensor(FEET) > 1.0)
        earned.append(env.reward_terms[:, 0] / env.step_dt)
    touched, earned = torch.stack(touched), torch.stack(earned)
    expected = torch.zeros_like(earned)
    landings = 0
    for world in range(NUM_ENVS):
        for foot in range(len(FEET)):
            flight = 0
            for step in range(120):
                if touched[step, world, foot] and flight:
                    expected[step, world] += flight * env.step_dt - 0.05
                    landings += 1
                flight = 0 if touched[step, world, foot] else flight + 1
    assert landings > 100
    assert torch.allclose(earned, expected, atol=1e-5)


def test_contact_times_and_actions_continue_where_a_checkpoint_left_them() -> None:
    config = hopping()
    config = replace(config, rewards={**config.rewards, "acc": RewardTerm(func=rewards.action_acc, weight=1.0)})
    whole = make_env(config)
    actions = 3 * actions_for(whole, 40)
    for action in actions[:20]:
        whole.step(action)
    state = whole.state_dict()
    resumed = make_env(config, seed=5)
    resumed.load_state_dict(state)
    for action in actions[20:]:
        whole.step(action)
        resumed.step(action)
        assert torch.equal(whole.reward_terms, resumed.reward_terms)
    times, others = (env.contact_times(FEET) for env in (whole, resumed))
    assert torch.equal(times.air_s, others.air_s)
    older = {key: value for key, value in state.items() if key != "memory"}  # of a version that had none
    resumed.load_state_dict(older)
    assert (times.last_air_s > 0).any()
    assert (resumed.contact_times(FEET).last_air_s == 0).all()


def test_nothing_counts_while_the_command_is_to_stand() -> None:
    env = make_env(hopping())
    for action in actions_for(env, 60):
        env.step(3 * action)
    params: Any = {"contact_sensors": FEET, "threshold_s": 0.05}
    always = gait.feet_air_time(env, **params)
    env._commands.values["velocity"][:] = torch.tensor([0.5, 0.0, 0.0])
    assert torch.equal(gait.feet_air_time(env, command="velocity", **params), always)
    env._commands.values["velocity"][:] = 0.0
    assert (gait.feet_air_time(env, command="velocity", **params) == 0).all()


# Resets


def test_the_whole_body_starts_with_noise(tmp_path: Path) -> None:
    params = {"position": 0.1, "velocity": 0.2, "velocity_distribution": "normal"}
    env = make(tmp_path, FREE, num_envs=3000, events={"noise": EventTerm(func=events.reset_with_noise, params=params)})
    layout = env.engine.layout
    offset = env.state.qpos - layout.default_qpos
    straight = [0, 1, 2, 7, 8]
    assert 0.098 < offset[:, straight].abs().max() <= 0.1 + 1e-6
    assert offset[:, straight].abs().min(dim=1).values.max() < 0.1
    assert layout.quaternions == (slice(3, 7), slice(9, 13))  # the ball joint has no name
    for columns in layout.quaternions:
        assert torch.allclose(env.state.qpos[:, columns].norm(dim=1), torch.ones(3000), atol=1e-5)
        assert env.state.qpos[:, columns].std(dim=0)[1:].min() > 0.05
    assert env.state.qvel.std(dim=0).sub(0.2).abs().max() < 0.02
    assert env.state.qvel.abs().max() > 0.5
    worlds = Worlds(mask=env.terminated, qpos=env.state.qpos.clone(), qvel=env.state.qvel.clone())
    with pytest.raises(RequestError, match="distribution cauchy: choose uniform or normal"):
        events.reset_with_noise(env, worlds, position=0.1, velocity=0.1, position_distribution="cauchy")  # pyright: ignore[reportArgumentType]


def test_joints_start_within_their_ranges(tmp_path: Path) -> None:
    params = {"joints": ("hip", "ankle"), "fraction": 0.5}
    env = make(
        tmp_path,
        FREE,
        num_envs=2000,
        events={"spread": EventTerm(func=events.reset_joints_within_limits, params=params)},
    )
    parts = observations.joint_pos_limit_normalized(env, joints=("hip", "ankle"))
    assert 0.49 < parts.max() <= 0.5 + 1e-5
    assert -0.5 - 1e-5 <= parts.min() < -0.49


# Targets


def test_planar_targets_lie_in_their_ring_and_are_measured_from_the_tool(tmp_path: Path) -> None:
    params = {"radius": (0.05, 0.2), "angle": (0.0, 1.5), "center": (1.0, -1.0)}
    env = make(
        tmp_path, PLANAR, num_envs=2000, commands={"place": CommandTerm(func=targets.planar_command, params=params)}
    )
    target = env.command("place")
    offset = target - torch.tensor([1.0, -1.0])
    radius, angle = offset.norm(dim=1), torch.atan2(offset[:, 1], offset[:, 0])
    assert 0.05 - 1e-5 <= radius.min() < 0.052
    assert 0.198 < radius.max() <= 0.2 + 1e-5
    assert 0 - 1e-4 <= angle.min() < 0.01
    assert 1.49 < angle.max() <= 1.5 + 1e-4
    place: Any = {"command": "place", "position_sensor": "tip"}
    assert torch.equal(targets.planar_error(env, **place), target - env.sensor("tip")[:, :2])
    distance = (target - env.sensor("tip")[:, :2]).norm(dim=1)
    assert torch.allclose(targets.planar_distance(env, **place), distance)
    assert torch.allclose(targets.near_planar(env, tolerance_m=0.5, **place), 1 - torch.tanh(distance / 0.5))
    assert targets.steer(env, torch.tensor([0.1, 0.2])).shape == (2000, 2)
    with pytest.raises(RequestError, match="command place has 2 columns; one with a position has 3 or 7"):
        reach.distance(env, **place)
    with pytest.raises(RequestError, match="command place has 2 columns; one with an orientation has 4 or 7"):
        reach.angle(env, command="place", orientation_sensor="tip")
    env._commands.values["place"] = torch.zeros(2000, 6)  # as a target of six joints
    with pytest.raises(RequestError, match="command place has 6 columns; one with a position has 2, 3 or 7"):
        targets.planar_distance(env, **place)
    env.is_recorded = True
    assert targets.planar_distance(env, **place).shape == reach.distance(env, **place).shape == (2000,)


def test_joint_targets_lie_in_the_ranges_and_are_met_at_the_joints(tmp_path: Path) -> None:
    joints = ("ankle", "hip")  # the columns come in the order of the model all the same
    params = {"joints": joints, "fraction": 0.5}
    env = make(tmp_path, FREE, num_envs=2000, commands={"pose": CommandTerm(func=targets.joint_command, params=params)})
    target = env.command("pose")
    assert target[:, 1].min() == pytest.approx(0.0, abs=2e-3)
    assert target[:, 1].max() == pytest.approx(0.2, abs=2e-3)
    assert target[:, 0].max() == pytest.approx(math.radians(37.5), abs=5e-3)
    pose: Any = {"command": "pose", "joints": joints}
    assert torch.equal(targets.joint_error(env, **pose), target - env.qpos(joints))
    assert torch.allclose(targets.joint_distance(env, **pose), (target - env.qpos(joints)).norm(dim=1))
    env._commands.values["pose"].copy_(env.qpos(joints))
    assert (targets.near_joint(env, tolerance=0.1, **pose) == 1).all()


def test_rotating_back_undoes_rotating() -> None:
    quaternion = rotations.from_euler(*torch.tensor([[0.3, 1.0], [0.5, -2.0], [-0.9, 3.0]]))
    vector = torch.tensor([[1.0, 2.0, 3.0], [-0.5, 0.1, 0.0]])
    assert torch.allclose(rotations.rotate_inverse(quaternion, rotations.rotate(quaternion, vector)), vector, atol=1e-6)
    quarter = rotations.from_yaw(torch.tensor([math.pi / 2]))
    assert torch.allclose(
        rotations.rotate(quarter, torch.tensor([[1.0, 0.0, 0.0]])), torch.tensor([[0.0, 1.0, 0.0]]), atol=1e-6
    )
