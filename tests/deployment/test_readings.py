"""What a controller builds from joints, sensors and metadata is what the policy was trained on."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import ObservationTerm, RobotConfig, TerrainConfig
from mjtrain.deployment.observation import Observer
from mjtrain.deployment.robot import Readings
from mjtrain.deployment.simulated_readings import SimulatedReadings
from mjtrain.deployment.simulated_robot import SimulatedRobot, Simulation
from mjtrain.deployment.terms import ERRORS, REPORTED_BY_ROBOT, TERMS, Scene, compute
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.ground import Ground
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.evaluation.export.field_keys import make_field_keys
from mjtrain.evaluation.export.metadata import describe_policy
from mjtrain.mdp import observations
from mjtrain.mdp.root import base_ang_vel, projected_gravity
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.sim.robots.model import load_model, robot_only
from mjtrain.sim.robots.robot import save_model
from support.envs import actions_for, make_env
from support.metadata import describe_task

TERMS_PAGE = Path(__file__).parents[2] / "docs" / "terms.md"
SCAN = "height_scan"
TASKS = (
    "Quadruped-Velocity-Flat",
    "Quadruped-Velocity-Rough",
    "Go2-Velocity-Flat",
    "Humanoid-Velocity-Flat",
    "Hand-Reorient-Cube",
    "Arm-Reach",
    "Arm-Lift-Cube",
    "Cartpole-Swingup",
)


def read(env: Env, metadata: dict[str, Any]) -> Readings:
    """Measure world 0 as a robot does."""
    layout = env.engine.layout
    return Readings(
        positions={name: env.qpos(name)[0].numpy().copy() for name in layout.qpos},
        velocities={name: env.qvel(name)[0].numpy().copy() for name in layout.qvel},
        sensors={name: env.sensor(name)[0].numpy().copy() for name in metadata["sensors"]},
    )


def call(env: Env, term: ObservationTerm) -> np.ndarray:
    """Return what a term reads, without its scale and clip. Shape (num_envs, size)."""
    return term.func(env, **term.params).numpy().copy()


@pytest.mark.parametrize("task", TASKS)
def test_observations_are_built_from_readings_alone(task: str) -> None:
    env, metadata = describe_task(task, history=2 if task == "Arm-Reach" else 1)
    (group,) = load_task(task).agent.obs_groups["actor"]
    scan = load_task(task).env.observations[group].get(SCAN)
    observer = Observer(metadata, values=frozenset([SCAN] if scan else []))
    action = np.zeros(env.num_actions)
    for step, chosen in enumerate(0.3 * actions_for(env, 12, seed=4)[:, 0]):
        readings = read(env, metadata)
        if scan is not None:
            readings = replace(readings, values={SCAN: call(env, scan)[0]})
        scene = Scene(
            metadata=metadata,
            readings=readings,
            commands={name: env.command(name)[0].numpy() for name in metadata["commands"]},
            action=action,
            displacements=env.ctrl_displacements()[0].numpy().copy(),
            step=int(env.episode_step[0]),
            wanted={name: env.drawn_command(name)[0].numpy() for name in metadata["commands"]},
        )
        for name, command in metadata["commands"].items():
            for error, term in command["errors"].items():
                distance = np.linalg.norm(compute(ERRORS, term, scene))
                assert distance == pytest.approx(float(env.command_error(name, error)[0]), rel=1e-5), error
        expected = env.observe()[group][0].numpy()
        np.testing.assert_allclose(observer.observe(scene), expected, rtol=1e-6, atol=1e-6, err_msg=f"env step {step}")
        _, _, terminated, truncated = env.step(chosen[None])
        assert not (terminated | truncated).any()
        action = chosen.numpy()


def test_groups_may_use_the_same_names() -> None:
    """For what differs in its history, in its function or in its parameters."""
    config = load_task("Quadruped-Velocity-Rough")
    (group,) = config.agent.obs_groups["actor"]
    terms = to_eval_config(config.env).observations[group]
    scan, joints = terms[SCAN], next(term for term in terms.values() if term.func is observations.joint_pos_rel)
    other = scan.replace(params={**scan.params, "offset": scan.params["offset"] + 0.2})
    velocities = joints.replace(func=observations.joint_velocities, params={"joints": (".*",)}, history=3)
    groups = {
        "one": {SCAN: scan, "joints": joints.replace(history=2)},
        "two": {SCAN: other, "joints": velocities, "same": joints},
        "three": {SCAN: scan.replace(history=2), "same": joints.replace(history=3)},
    }
    env = make_env(replace(to_eval_config(config.env), observations={**config.env.observations, **groups}), num_envs=1)
    policy = SimpleNamespace(inputs={name: env.observe()[name].shape[1:] for name in groups}, iteration=0)
    run = TrainedRun(task="", env=env.config, agent=config.agent)
    metadata = json.loads(json.dumps(describe_policy(run, env, cast("Any", policy))))
    names = [term["name"] for term in metadata["observations"]]
    assert names == [SCAN, "joints", f"two.{SCAN}", "two.joints", "same", SCAN, "same"]
    model = load_model(env.config)
    data = mujoco.MjData(model)
    readings = SimulatedReadings(model, data, metadata, 0.0, np.random.default_rng(0))
    observer = Observer(metadata, values=frozenset(readings.measure()[0]["values"]))
    for action in 0.3 * actions_for(env, 4):
        data.qpos[:], data.qvel[:] = env.state.qpos[0].numpy(), env.state.qvel[0].numpy()
        nothing = np.zeros(env.num_actions)
        measured = Readings(**readings.measure()[0])
        scene = Scene(metadata=metadata, readings=measured, commands={}, action=nothing, displacements=nothing, step=0)
        expected = np.concatenate([env.observe()[name][0].numpy() for name in groups])
        np.testing.assert_allclose(observer.observe(scene), expected, rtol=0, atol=1e-4)
        env.step(action)


def test_terms_of_an_object_are_not_those_of_the_base() -> None:
    described = {task: describe_task(task)[1] for task in ("Quadruped-Velocity-Flat", "Arm-Lift-Cube")}
    assert {task: metadata["base"] for task, metadata in described.items()} == {
        "Quadruped-Velocity-Flat": "base",
        "Arm-Lift-Cube": None,
    }
    config = load_task("Arm-Lift-Cube")
    params = {"joint": "cube"}
    terms = {func.__name__: ObservationTerm(func=func, params=params) for func in (projected_gravity, base_ang_vel)}
    calm = to_eval_config(config.env)
    env = make_env(replace(calm, observations={**calm.observations, "cube": terms}), num_envs=1)
    policy = SimpleNamespace(inputs={"cube": (6,)}, iteration=0)
    metadata = describe_policy(TrainedRun(task="", env=env.config, agent=config.agent), env, cast("Any", policy))
    assert [term["measured_by"] for term in metadata["observations"]] == ["estimator", "estimator"]
    named = {
        **metadata,
        "observations": [{**term, "name": f"cube_{term['name']}"} for term in metadata["observations"]],
    }
    assert make_field_keys(named)[0]["observation_names"] == "cube_projected_gravity,cube_base_ang_vel"


def test_the_heading_of_a_velocity_command_is_not_a_velocity() -> None:
    nothing, still = np.zeros(1), np.array([0.0, 0.0, 0.0, 2.0, 0.0])
    scene = Scene(
        metadata={"control_period_s": 0.02},
        readings=Readings(positions={}, velocities={}, sensors={}),
        commands={"velocity": still},
        action=nothing,
        displacements=nothing,
        step=3,
    )
    assert not TERMS["mjtrain.mdp.gait:clock"](scene, {"command": "velocity", "frequency_hz": 1.0}).any()
    still[0] = 0.1
    assert TERMS["mjtrain.mdp.gait:clock"](scene, {"command": "velocity", "frequency_hz": 1.0}).any()


def test_a_reading_has_the_largest_noise_of_the_terms_that_show_it_in_its_own_unit() -> None:
    body = '<body><joint name="j"/><joint name="k"/><geom size="0.1"/></body>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    terms = {"joint_pos_limit_normalized": ("j", 0.01), "joint_positions": (".*", 0.02), "joint_pos_rel": ("k", 0.0)}
    described = [
        {"name": name, "func": f"mjtrain.mdp.observations:{name}", "params": {"joints": [joints]}, "noise": noise}
        for name, (joints, noise) in terms.items()
    ]
    metadata = {"default_pose": {"j": [0.0], "k": [0.0]}, "joints": {"j": {"range": [-4.0, 4.0]}}, "sensors": {}}
    metadata["observations"] = described
    sensing = SimulatedReadings(model, mujoco.MjData(model), metadata, 1.0, np.random.default_rng(0))
    measured = [sensing.measure()[0]["positions"] for _ in range(300)]
    largest = {name: max(abs(float(each[name][0])) for each in measured) for name in ("j", "k")}
    assert 0.03 < largest["j"] <= 0.04
    assert 0.015 < largest["k"] <= 0.02


def test_a_single_name_is_not_an_expression(tmp_path: Path) -> None:
    """A vendor's names may have dots and brackets."""
    joints = "".join(f'<body><joint name="{name}"/><geom size="0.1"/></body>' for name in ("arm.1", "arm-1", "arm(1)"))
    sensors = "".join(f'<jointpos name="{name}" joint="arm.1"/>' for name in ("q.1", "q-1", "q(1)"))
    text = f"<mujoco><worldbody>{joints}</worldbody><sensor>{sensors}</sensor></mujoco>"
    (file := tmp_path / "robot.xml").write_text(text)
    reads = {"joint_pos": ("arm.1", "arm(1)"), "sensor": ("q.1", "q(1)")}
    terms = {
        name: ObservationTerm(func=getattr(observations, func), params={func.split("_")[0]: name}, noise=0.1)
        for func, names in reads.items()
        for name in names
    }
    config = replace(load_task("Cartpole-Balance").env, robot=str(file), actions={}, rewards={}, events={})
    config = replace(config, observations={"actor": terms}, terminations={})
    env = make_env(config, num_envs=1)
    run = TrainedRun(task="", env=config, agent=load_task("Cartpole-Balance").agent)
    policy = SimpleNamespace(inputs={"actor": (4,)}, iteration=0)
    metadata = json.loads(json.dumps(describe_policy(run, env, cast("Any", policy))))
    assert [term.get("joints", term.get("sensors")) for term in metadata["observations"]] == [[name] for name in terms]
    model = load_model(config)
    noisy, truth = SimulatedReadings(model, mujoco.MjData(model), metadata, 1.0, np.random.default_rng(0)).measure()
    read = {kind: {name for name, value in noisy[kind].items() if (value != truth[kind][name]).any()} for kind in noisy}
    assert read == {
        "positions": {*reads["joint_pos"]},
        "velocities": set(),
        "sensors": {*reads["sensor"]},
        "values": set(),
    }


def open_with_a_field() -> mujoco.MjSpec:
    field = '<hfield name="ground" nrow="2" ncol="3" size="1 1 1 0.1" elevation="0 1 0 1 0 1"/>'
    robot = '<body><freejoint name="base"/><geom size="0.1"/><geom name="ground" type="hfield" hfield="ground"/></body>'
    return mujoco.MjSpec.from_string(
        f'<mujoco><asset>{field}</asset><worldbody>{robot}<geom type="hfield" hfield="ground"/></worldbody></mujoco>'
    )


@pytest.mark.parametrize("kind", ["robot", "flat", "generated"])
def test_scans_are_of_the_generated_ground_and_not_of_height_fields_of_the_robot(kind: Any) -> None:
    terrain = TerrainConfig(kind=kind, kinds=("rough",), num_levels=2, patch_m=4.0)
    model = load_model(replace(robot_only(RobotConfig(spec=open_with_a_field)), terrain=terrain))
    params = {"joint": "base", "x": (-1.0, 1.0, 9), "y": (-1.0, 1.0, 7), "offset": 0.1}
    scan = {"name": SCAN, "func": "mjtrain.mdp.observations:height_scan", "params": params}
    metadata = {"default_pose": {"base": []}, "observations": [scan], "ground": kind}
    data = mujoco.MjData(model)
    data.qpos[:] = [0.3, -0.2, 1.0, 0.8, 0.0, 0.0, 0.6]
    measured = SimulatedReadings(model, data, metadata, 0.0, np.random.default_rng(0)).measure()[0]
    heights = Ground(terrain, torch.device("cpu")).scan(torch.tensor(data.qpos[None]).float(), params["x"], params["y"])
    assert (float(heights.std()) > 0.005) == (kind == "generated")
    assert measured["values"][SCAN] == pytest.approx(0.9 - heights[0].numpy(), abs=1e-5)


@pytest.mark.parametrize("is_earlier", [False, True], ids=["now", "export of an earlier version"])
@pytest.mark.parametrize(("kinds", "num_levels"), [(("rough",), 1), (("stairs_up", "obstacles"), 4)])
def test_the_simulated_robot_begins_on_the_generated_ground(
    kinds: tuple[str, ...], num_levels: int, is_earlier: bool, tmp_path: Path
) -> None:
    config = load_task("Quadruped-Velocity-Rough").env
    config = replace(config, terrain=replace(config.terrain, kinds=kinds, num_levels=num_levels))
    save_model(config, tmp_path / "model.mjb")
    metadata = describe_task("Quadruped-Velocity-Rough")[1]
    default = list(metadata["default_pose"]["base"])
    if is_earlier:
        del metadata["base"]
    robot = SimulatedRobot(Simulation(model=str(tmp_path / "model.mjb")), metadata)
    pose = robot._data.joint("base").qpos
    ground_m = Ground(config.terrain, torch.device("cpu")).height(torch.zeros(2)).item()
    assert ground_m > 0.04
    assert pose[2] - ground_m - default[2] == pytest.approx(0.0, abs=0.13)
    assert pose[[0, 1, 3, 4, 5, 6]] == pytest.approx(np.delete(default, 2))
    assert robot._data.contact.dist.min(initial=0.0) > -1e-3
    assert metadata["default_pose"]["base"] == default


def test_every_built_in_observation_is_known_or_named() -> None:
    modules = re.split(r"^### `(\w+)`$", TERMS_PAGE.read_text(), flags=re.M)[1:]
    names = {
        f"mjtrain.mdp.{module}:{name}"
        for module, text in zip(modules[::2], modules[1::2], strict=True)
        for name in re.findall(r"^\| `(\w+)` \| observation \|", text, flags=re.M)
    }
    assert len(names) > 25
    names = {name for name in names if not name.startswith("mjtrain.mdp.tracking:")}  # deploy does not compute them
    assert names == (TERMS.keys() | REPORTED_BY_ROBOT.keys()) - {"mjtrain.mdp.observations:joints_from_home"}


class FieldReader:
    """A controller of mjlab's and BeyondMimic's users: it knows their keys, seven names, and no other format."""

    def __init__(self, keys: dict[str, str]) -> None:
        def table(key: str) -> list[list[float]]:
            return [[float(number) for number in item.split(";")] for item in keys[key].split(",")]

        self.names = keys["observation_names"].split(",")
        self.joints = keys["joint_names"].split(",")
        self.home = np.array([float(item) for item in keys["default_joint_pos"].split(",")])
        self.scales, self.clips = table("observation_terms_scale"), table("observation_terms_clip")
        self.lengths = [max(1, int(item)) for item in keys["observation_terms_history_length"].split(",")]
        self.past: dict[str, list[np.ndarray]] = {}

    def observe(self, model: mujoco.MjModel, data: mujoco.MjData, own: dict[str, np.ndarray]) -> np.ndarray:
        known = {
            "joint_pos": np.array([data.joint(name).qpos[0] for name in self.joints]) - self.home,
            "joint_vel": np.array([data.joint(name).qvel[0] for name in self.joints]),
            "actions": own["actions"],
            "command": own.get("command", np.zeros(0)),
        }
        if model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE and model.nq == 7 + len(self.joints):
            turned = data.site("imu").xmat.reshape(3, 3)
            velocity = np.empty(6)
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_SITE, model.site("imu").id, velocity, 1)
            known |= {
                "base_ang_vel": velocity[:3],
                "base_lin_vel": velocity[3:],
                "projected_gravity": turned.T @ np.array([0.0, 0.0, -1.0]),
            }
        parts = []
        for name, scale, clip, length in zip(self.names, self.scales, self.clips, self.lengths, strict=True):
            value = np.clip(known[name] if name in known else own[name], clip[0], clip[1]) * np.array(scale)
            past = self.past.get(name) or [value] * length
            self.past[name] = [*past[1:], value]
            parts += self.past[name]
        return np.concatenate(parts)


@pytest.mark.parametrize("task", ["Quadruped-Velocity-Flat", "Go2-Velocity-Flat", "Hand-Reorient-Cube", "Arm-Reach"])
def test_a_reader_of_the_keys_of_others_builds_the_observation(task: str) -> None:
    env, metadata = describe_task(task, num_envs=4)
    keys, left_out = make_field_keys(metadata)
    assert metadata["keys_left_out"] == left_out
    (group,) = load_task(task).agent.obs_groups["actor"]
    terms = load_task(task).env.observations[group]
    walks = task.endswith("Flat")
    taken = {"base_lin_vel", "base_ang_vel", "projected_gravity", "command", "joint_pos", "joint_vel", "actions"}
    assert (taken - set(keys["observation_names"].split(",")) == set()) == walks, "their names are used"
    model = load_model(load_task(task).env)
    expected = env.observe()[group].numpy()
    for world in range(4):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = env.state.qpos[world].numpy(), env.state.qvel[world].numpy()
        mujoco.mj_forward(model, data)
        own = {name: call(env, term)[world] for name, term in terms.items()}  # what no other controller knows
        own["actions"] = own["last_action"]
        own["command"] = next((own[name] for name in ("command", "pose") if name in own), np.zeros(0))
        np.testing.assert_allclose(FieldReader(keys).observe(model, data, own), expected[world], rtol=1e-6, atol=1e-6)


def test_a_term_that_is_not_what_its_name_says_to_others_is_marked() -> None:
    _, dog = describe_task("Quadruped-Velocity-Flat")
    functions = {"joint_positions": "mjtrain.mdp.observations:joint_positions", "up": "own:gravity"}
    names = {"joint_positions": "joint_pos", "up": "projected_gravity", "last_action": "actions"}
    terms = [
        {**term, "func": functions.get(term["name"], term["func"]), "name": names.get(term["name"], term["name"])}
        for term in dog["observations"]
    ]
    keys, _ = make_field_keys({**dog, "observations": terms})
    own, found = "base_lin_vel,base_ang_vel,own_projected_gravity,command,clock", keys["observation_names"]
    assert found == f"{own},own_joint_pos,joint_vel,actions", "joint_pos of others is relative to the default pose"


def test_keys_are_left_out_where_they_would_be_false() -> None:
    _, dog = describe_task("Quadruped-Velocity-Flat")
    keys, left_out = make_field_keys(dog)
    assert not left_out
    assert set(keys["joint_stiffness"].split(",")) == {"35.0"}
    assert keys["action_clip"].split(",")[0] == "-4.0;4.0"
    relative = {**dog, "actions": [{**row, "relative": True} for row in dog["actions"]]}
    keys, left_out = make_field_keys(relative)
    assert "action_scale" not in keys
    assert "joint_stiffness" in keys
    assert "add to the last control" in left_out["action_scale"]
    clipped = [{**term, "clip": [-2.0, 1.0], "scale": 2.0} for term in dog["observations"]]
    keys, _ = make_field_keys({**dog, "observations": clipped})
    assert keys["observation_terms_clip"].split(",")[0] == "-1.0;0.5", "clipped before it is scaled"
    assert keys["observation_terms_clip"].split(",")[2] == "-0.5;1.0", "of the opposite sign"
    _, hand = describe_task("Hand-Reorient-Cube")
    assert set(make_field_keys(hand)[1]) == {"joint_stiffness", "joint_damping", "action_scale"}
