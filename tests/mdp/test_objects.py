"""Functions for moving objects, compared with MuJoCo's own rotations."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import ActionTerm, CommandTerm, CurriculumTerm, EnvConfig, RobotConfig
from mjtrain.env.env import Env
from mjtrain.mdp import command, curriculum, objects, reach, reset_event, reward, success, targets, termination
from mjtrain.mdp.objects import raise_with_success
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations
from support.envs import make_env

NUM_ENVS = 40
SCENE = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body name="arm" pos="0.1 0.2 0.3">
      <joint name="first" axis="0 0 1"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" contype="0" conaffinity="0"/>
      <body pos="0.3 0 0">
        <joint name="second" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0.2 0 0" size="0.02" contype="0" conaffinity="0"/>
        <site name="palm" pos="0.2 0 0" euler="20 -40 60"/>
      </body>
    </body>
    <body name="cube" pos="0.4 0.1 0.5">
      <freejoint name="cube"/>
      <geom type="box" size="0.03 0.03 0.03" mass="0.1"/>
    </body>
  </worldbody>
  <actuator>
    <motor name="first" joint="first"/>
  </actuator>
  <sensor>
    <framepos name="palm_position" objtype="site" objname="palm"/>
    <framequat name="palm_orientation" objtype="site" objname="palm"/>
    <framelinvel name="cube_velocity" objtype="xbody" objname="cube"/>
    <frameangvel name="cube_rotation" objtype="xbody" objname="cube"/>
    <framepos name="cube_from_palm" objtype="xbody" objname="cube" reftype="site" refname="palm"/>
    <framequat name="cube_turned_from_palm" objtype="xbody" objname="cube" reftype="site" refname="palm"/>
  </sensor>
</mujoco>
"""
PALM: dict[str, Any] = {"position_sensor": "palm_position", "orientation_sensor": "palm_orientation"}
BOX: dict[str, Any] = {"x": (-0.2, 0.3), "y": (0.1, 0.2), "z": (0.4, 0.9)}
HALF_TURN = (-math.pi, math.pi)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EnvConfig:
    file = tmp_path_factory.mktemp("objects") / "scene.xml"
    file.write_text(SCENE)
    return EnvConfig(
        robot=RobotConfig(file=str(file)),
        decimation=1,
        episode_length_s=10.0,
        actions={"first": ActionTerm()},
        observations={},
        rewards={},
        terminations={},
        commands={
            "pose": command(reach.pose_command, **BOX, roll=HALF_TURN, pitch=(-1.5, 1.5), yaw=HALF_TURN),
            "place": command(objects.place_command, **BOX),
            "orientation": command(objects.orientation_command),
            "planar": command(targets.planar_command, radius=(0.0, 1.0)),
        },
    )


@pytest.fixture(scope="module")
def env(config: EnvConfig) -> Env:
    """Worlds in random states, whose sensors describe them."""
    env = make_env(config, num_envs=NUM_ENVS)
    rng = np.random.default_rng(3)
    qpos, qvel = rng.normal(0, 1, (NUM_ENVS, 9)), rng.normal(0, 1, (NUM_ENVS, 8))
    qpos[:, 5:] /= np.linalg.norm(qpos[:, 5:], axis=1, keepdims=True)
    everywhere = torch.ones(NUM_ENVS, dtype=torch.bool)
    env.engine.reset(everywhere, torch.tensor(qpos).float(), torch.tensor(qvel).float())
    return env


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def in_each_world(compute: Callable[..., np.ndarray], *columns: torch.Tensor) -> np.ndarray:
    return np.stack([compute(*rows) for rows in zip(*map(numbers, columns), strict=True)])


def matrix(quaternion: np.ndarray) -> np.ndarray:
    flat = np.empty(9)
    mujoco.mju_quat2Mat(flat, quaternion)
    return flat.reshape(3, 3)


def difference(goal: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Rotation vector from present to goal in the world's frame, by MuJoCo: mju_subQuat gives it in that of present."""
    local, turned = np.empty(3), np.empty(3)
    mujoco.mju_subQuat(local, goal, present)
    mujoco.mju_rotVecQuat(turned, local, present)
    return turned


@pytest.mark.parametrize("name", ["pose", "place"])
def test_positions_and_distances(env: Env, name: str) -> None:
    expected = numbers(env.command(name))[:, :3] - numbers(env.state.qpos)[:, 2:5]
    measured = objects.position_error(env, command=name, object="cube")
    np.testing.assert_allclose(numbers(measured), expected, atol=1e-6)
    distance = objects.distance(env, command=name, object="cube")
    np.testing.assert_allclose(numbers(distance), np.linalg.norm(expected, axis=1), atol=1e-6)
    near = objects.near_position(env, command=name, object="cube", tolerance_m=0.5)
    np.testing.assert_allclose(numbers(near), 1 - np.tanh(np.linalg.norm(expected, axis=1) / 0.5), atol=1e-6)


@pytest.mark.parametrize("name", ["pose", "orientation"])
def test_rotations_and_angles(env: Env, name: str) -> None:
    goals, present = env.command(name)[:, -4:], env.state.qpos[:, 5:]
    expected = in_each_world(difference, goals, present)
    measured = numbers(objects.orientation_error(env, command=name, object="cube"))
    np.testing.assert_allclose(measured, expected, atol=2e-5)
    angle = numbers(objects.angle(env, command=name, object="cube"))
    np.testing.assert_allclose(angle, np.linalg.norm(expected, axis=1), atol=2e-5)
    assert angle.max() > 2.5  # far from small angles too
    near = objects.near_orientation(env, command=name, object="cube", tolerance=0.8)
    np.testing.assert_allclose(numbers(near), 1 - np.tanh(angle / 0.8), atol=1e-6)
    axes = in_each_world(lambda goal, now: (matrix(goal) @ matrix(now).T)[:, :2].T.ravel(), goals, present)
    np.testing.assert_allclose(numbers(objects.remaining_rotation(env, command=name, object="cube")), axes, atol=1e-6)


def test_seen_from_the_palm_as_a_sensor_of_mujoco_sees_it(env: Env) -> None:
    inside = objects.position_in(env, object="cube", **PALM)
    torch.testing.assert_close(inside, env.sensor("cube_from_palm"), atol=1e-5, rtol=0)
    along_world = objects.position_in(env, object="cube", position_sensor="palm_position")
    torch.testing.assert_close(along_world, env.state.qpos[:, 2:5] - env.sensor("palm_position"))
    axes = objects.orientation_in(env, object="cube", orientation_sensor="palm_orientation")
    expected = in_each_world(lambda turn: matrix(turn)[:, :2].T.ravel(), env.sensor("cube_turned_from_palm"))
    np.testing.assert_allclose(numbers(axes), expected, atol=1e-5)
    expected = in_each_world(lambda turn: matrix(turn)[:, :2].T.ravel(), env.state.qpos[:, 5:])
    np.testing.assert_allclose(numbers(objects.orientation_in(env, object="cube")), expected, atol=1e-6)


def test_orientation_of_a_cube_is_the_same_for_its_24_rotations_only(env: Env) -> None:
    qpos = env.state.qpos[:2].clone()
    turns = list(itertools.product(*[(0.0, math.pi / 2, math.pi, -math.pi / 2)] * 3))
    alike = rotations.from_euler(*torch.tensor(turns, dtype=qpos.dtype).unbind(dim=1))
    cubes = _describe(env, rotations.multiply(qpos[0, 5:].expand(len(alike), 4), alike))
    torch.testing.assert_close(cubes, cubes[:1].expand_as(cubes), atol=1e-5, rtol=0)

    drawn = objects.orientation_command(env)
    described = _describe(env, drawn)
    missing = rotations.multiply(rotations.conjugate(drawn[1:]), drawn[:-1])
    scalar = [rotations.multiply(missing, turn.expand_as(missing))[:, 0].abs() for turn in alike]
    angle = 2 * torch.stack(scalar).amax(dim=0).clamp(max=1.0).acos()  # to the nearest that looks the same
    distance = (described[1:] - described[:-1]).norm(dim=1)
    assert (distance / angle).min() > 0.5
    assert (distance / angle).max() < 8.0  # continuous


def test_orientation_of_a_cube_in_the_frame_of_the_palm(env: Env) -> None:
    seen = objects.cube_orientation_in(env, object="cube", orientation_sensor="palm_orientation")
    assert (seen - objects.cube_orientation_in(env, object="cube")).abs().max() > 0.1
    expected = _describe(env, env.sensor("cube_turned_from_palm"))
    torch.testing.assert_close(seen, expected, atol=1e-4, rtol=0)


def _describe(env: Env, quaternions: torch.Tensor) -> torch.Tensor:
    """Return `cube_orientation_in` for orientations of the cube, one after the other. Shape (len(quaternions), 9)."""
    columns = []
    for part in quaternions.split(env.num_envs):
        qpos = env.state.qpos.clone()
        qpos[: len(part), 5:] = part
        env.engine.reset(torch.ones(env.num_envs, dtype=torch.bool), qpos, torch.zeros_like(env.state.qvel))
        columns.append(objects.cube_orientation_in(env, object="cube")[: len(part)])
    return torch.cat(columns)


@pytest.mark.parametrize(
    ("func", "sensor"),
    [(objects.linear_velocity_in, "cube_velocity"), (objects.angular_velocity_in, "cube_rotation")],
)
def test_velocities_as_a_sensor_of_mujoco_reads_them(env: Env, func: Any, sensor: str) -> None:
    torch.testing.assert_close(func(env, object="cube"), env.sensor(sensor), atol=1e-5, rtol=0)
    turned = in_each_world(
        lambda palm, velocity: matrix(palm).T @ velocity, env.sensor("palm_orientation"), env.sensor(sensor)
    )
    measured = func(env, object="cube", orientation_sensor="palm_orientation")
    np.testing.assert_allclose(numbers(measured), turned, atol=1e-5)


def test_near_tool_and_strayed(env: Env) -> None:
    distance = np.linalg.norm(numbers(env.sensor("cube_from_palm")), axis=1)
    near = objects.near_tool(env, object="cube", position_sensor="palm_position", tolerance_m=0.7)
    np.testing.assert_allclose(numbers(near), 1 - np.tanh(distance / 0.7), atol=1e-5)
    limit = float(np.median(distance))
    strayed = objects.strayed(env, object="cube", position_sensor="palm_position", beyond_m=limit)
    assert strayed.tolist() == (distance > limit).tolist()
    assert 0 < int(strayed.sum()) < NUM_ENVS


def test_dropped(env: Env) -> None:
    heights = numbers(env.state.qpos)[:, 4]
    dropped = objects.dropped(env, object="cube", below_m=0.1)
    assert dropped.tolist() == (heights < 0.1).tolist()
    assert 0 < int(dropped.sum()) < NUM_ENVS


def test_reached_within_tolerances(env: Env) -> None:
    distance = np.linalg.norm(numbers(env.command("pose"))[:, :3] - numbers(env.state.qpos)[:, 2:5], axis=1)
    angle = np.linalg.norm(in_each_world(difference, env.command("pose")[:, 3:], env.state.qpos[:, 5:]), axis=1)
    ask: dict[str, Any] = {"command": "pose", "object": "cube"}
    close, aligned = distance <= 1.4, angle <= 2.2
    assert objects.reached(env, **ask, tolerance_m=1.4).tolist() == close.tolist()
    assert objects.reached(env, **ask, tolerance=2.2).tolist() == aligned.tolist()
    assert objects.reached(env, **ask, tolerance_m=1.4, tolerance=2.2).tolist() == (close & aligned).tolist()
    assert len({*zip(close.tolist(), aligned.tolist(), strict=True)}) == 4
    with pytest.raises(RequestError, match="give tolerance_m, tolerance or both"):
        objects.reached(env, **ask)


def test_a_curriculum_tightens_the_tolerances(config: EnvConfig) -> None:
    """From three times as wide at level 0 to the tolerance itself at level 1."""

    def keep(env: Env, level: torch.Tensor) -> torch.Tensor:
        return level

    def at_origin(env: Env) -> torch.Tensor:
        return torch.zeros(env.num_envs, 3)

    levels = CurriculumTerm(func=keep, initial=(0.0, 1.0))
    env = make_env(
        replace(config, commands={"goal": CommandTerm(func=at_origin)}, curriculum={"tight": levels}), num_envs=200
    )
    distance = float(np.linalg.norm([0.4, 0.1, 0.5]))
    for share in (0.4, 0.6, 0.9):
        found = objects.reached(
            env, command="goal", object="cube", tolerance_m=share * distance, curriculum="tight", widest=3.0
        )
        bounds = share * (3.0 - 2.0 * numbers(env.level("tight")))
        assert found.tolist() == (bounds >= 1.0).tolist()
        assert 0 < int(found.sum()) < 200
    exact = objects.reached(
        env, command="goal", object="cube", tolerance_m=1.01 * distance, curriculum="tight", widest=1.0
    )
    assert exact.all()


def test_a_command_of_another_kind_is_named(env: Env) -> None:
    with pytest.raises(RequestError, match="command orientation has 4 columns; one with a position has 3 or 7"):
        objects.distance(env, command="orientation", object="cube")
    with pytest.raises(RequestError, match="command place has 3 columns; one with an orientation has 4 or 7"):
        objects.angle(env, command="place", object="cube")
    for func in (objects.distance, objects.angle):
        with pytest.raises(RequestError, match="command planar has 2 columns"):
            func(env, command="planar", object="cube")


def test_places_are_drawn_from_their_box(config: EnvConfig) -> None:
    drawn = numbers(make_env(config, num_envs=4000).command("place"))
    low, high = np.array([-0.2, 0.1, 0.4]), np.array([0.3, 0.2, 0.9])
    assert ((drawn >= low) & (drawn <= high)).all()
    np.testing.assert_allclose(drawn.mean(axis=0), (low + high) / 2, atol=4 * 0.5 / math.sqrt(12 * 4000))
    np.testing.assert_allclose(drawn.std(axis=0), (high - low) / math.sqrt(12), rtol=0.05)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(3), atol=0.07)


def test_orientations_are_drawn_uniformly(config: EnvConfig) -> None:
    """The angle of a uniformly random rotation has the density (1 - cos) / pi, and its axis has no direction."""
    drawn = numbers(make_env(config, num_envs=20_000).command("orientation"))
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, atol=1e-6)
    assert (drawn[:, 0] >= 0).all()
    angles = np.sort(2 * np.arccos(drawn[:, 0].clip(0, 1)))
    cumulative = (angles - np.sin(angles)) / math.pi
    distance = np.abs(cumulative - np.linspace(0, 1, len(angles))).max()
    assert distance < 1.63 / math.sqrt(len(angles))  # Kolmogorov-Smirnov, at 1 %
    axes = drawn[:, 1:] / np.linalg.norm(drawn[:, 1:], axis=1, keepdims=True)
    np.testing.assert_allclose(axes.mean(axis=0), 0.0, atol=0.02)
    np.testing.assert_allclose(axes.T @ axes / len(axes), np.eye(3) / 3, atol=0.01)


def test_steering_commands_what_is_set(env: Env) -> None:
    values = torch.tensor([0.3, -0.4, 2.0])
    steered = numbers(objects.steer_orientation(env, values))
    assert steered.shape == (NUM_ENVS, 4)
    expected = np.empty(4)
    mujoco.mju_euler2Quat(expected, values.double().numpy(), "XYZ")
    assert np.abs(steered @ expected) == pytest.approx(np.ones(NUM_ENVS), abs=1e-6)


def test_objects_start_where_they_shall(config: EnvConfig) -> None:
    start = {
        "place": reset_event(objects.reset_place, object="cube", x=(0.1, 0.2), y=(-0.3, -0.3), z=(0.6, 0.7)),
        "turn": reset_event(objects.reset_orientation, object="cube"),
    }
    env = make_env(replace(config, events=start), num_envs=500)
    place, turn = numbers(env.qpos("cube"))[:, :3], numbers(env.qpos("cube"))[:, 3:]
    assert ((place >= [0.1, -0.3001, 0.6]) & (place <= [0.2, -0.2999, 0.7])).all()
    assert place[:, 0].std() == pytest.approx(0.1 / math.sqrt(12), rel=0.1)
    np.testing.assert_allclose(np.linalg.norm(turn, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose((turn[:, :, None] * turn[:, None]).mean(axis=0)[1:, 1:], np.eye(3) / 4, atol=0.05)
    assert (env.state.qpos[:, :2] == 0).all()
    before = env.state.qpos.clone()
    mask = torch.arange(500) < 100
    env.reset(mask)
    assert torch.equal(env.state.qpos[~mask], before[~mask])
    assert (env.state.qpos[mask] != before[mask]).any(dim=1).all()


def test_consecutive_goals_in_one_episode(config: EnvConfig) -> None:
    """An object that stays as it is reaches the goals that are near it, one after another."""

    def near_goal(env: Env) -> torch.Tensor:
        angle = torch.rand(env.num_envs, generator=env.rng)
        return torch.stack([(angle / 2).cos(), (angle / 2).sin(), 0 * angle, 0 * angle], dim=1)

    env = make_env(
        replace(
            config,
            commands={"goal": CommandTerm(func=near_goal, resampling_s=(99.0, 99.0), resample_on="turned")},
            successes={
                "turned": success(objects.reached, command="goal", object="cube", tolerance=0.4).replace(
                    measure="count"
                )
            },
            rewards={"near": reward(objects.near_orientation, 1.0, command="goal", object="cube", tolerance=0.4)},
            terminations={"dropped": termination(objects.dropped, object="cube", below_m=0.0)},
            curriculum={"level": curriculum(raise_with_success, success="turned", step=0.1)},
        ),
        num_envs=NUM_ENVS,
    )
    count = np.zeros(NUM_ENVS)
    for _ in range(30):
        angles = objects.angle(env, command="goal", object="cube")
        env.step(torch.zeros(NUM_ENVS, 1))
        count += numbers(angles) <= 0.4
        assert env.success_count("turned").tolist() == count.tolist()
    assert count.min() == 0  # where a goal was drawn that the object is not near, there it ends
    assert count.max() >= 2


def test_orientations_differ_by_the_angle_between_them() -> None:
    generator = np.random.default_rng(0)
    axes, angles = [], []
    for angle in (0.0, 1e-3, 0.3, 1.5, 3.0, math.pi):
        turns = generator.normal(size=(2, 4))
        first = turns[0] / np.linalg.norm(turns[0])
        axis = turns[1, :3] / np.linalg.norm(turns[1, :3])
        second, turn, matrix = np.zeros(4), np.zeros(4), np.zeros(9)
        mujoco.mju_axisAngle2Quat(turn, axis, angle)
        mujoco.mju_mulQuat(second, first, turn)
        pair = []
        for quaternion in (first, second):
            mujoco.mju_quat2Mat(matrix, quaternion)
            pair.append(matrix.reshape(3, 3)[:, :2].T.flatten())
        axes.append(pair)
        angles.append(angle)
    first, second = torch.tensor(np.array(axes)).unbind(dim=1)
    found = objects.orientation_difference(first, second)
    torch.testing.assert_close(found, torch.tensor(angles, dtype=torch.float64), atol=1e-6, rtol=1e-6)
    crooked = torch.cat([2 * first[:, :3], first[:, 3:] + 0.7 * first[:, :3]], dim=1)
    torch.testing.assert_close(objects.orientation_difference(crooked, second), found, atol=1e-6, rtol=1e-6)
