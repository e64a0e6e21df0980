"""A controller that knows only the exported metadata gives MuJoCo's torques, or is told that it cannot."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import ActionTerm, ActuatorConfig, EnvConfig, EventTerm, KeyframeConfig, RobotConfig
from mjtrain.deployment.actuation import Actuation
from mjtrain.deployment.policy import DeployedPolicy
from mjtrain.deployment.robot import Readings
from mjtrain.deployment.simulated_drives import SimulatedDrives
from mjtrain.deployment.simulated_robot import SimulatedRobot, Simulation, SteppedRobot
from mjtrain.env.env import Env
from mjtrain.evaluation.export.metadata import describe_actions
from mjtrain.mdp import randomization
from mjtrain.sim.robots.robot import describe_actuators
from support.envs import actions_for, make_env

LINEAR = {
    "position": '<position kp="20" kv="2"/>',
    "position with gear": '<position kp="20" kv="2" gear="3"/>',
    "position with dampratio": '<position kp="20" dampratio="1" gear="-2"/>',
    "position with ranges": '<position kp="20" kv="2" gear="-3" ctrlrange="-.2 .2" forcerange="-1 5"/>',
    "velocity": '<velocity kv="4"/>',
    "velocity with gear": '<velocity kv="4" gear="0.5"/>',
    "motor": '<motor gear="7"/>',
    "motor with range": '<motor gear="7" forcerange="-.1 .1"/>',
    "general": '<general biastype="affine" gainprm="40" biasprm="1 -20 -1" gear="2"/>',
    "general without bias": '<general gainprm="40" biasprm="1 -20 -1" gear="2"/>',
    "general with constant gain": '<general gaintype="affine" gainprm="3" biastype="affine" biasprm="1 -2 -3"/>',
    "pid": '<pid kp="5" kv="1" gear="3"/>',
    "pid with three inputs": '<pid kp="5" kv="1" gear="3" input="pos vel ff" forcerange="-3 3"/>',
    "pid with feedforward": '<pid kp="5" kv="1" input="ff"/>',
    "adds damping": '<position kp="20" kv="2" damping="3" armature=".1"/>',
    "in the parent": '<motor gear="7" jointinparent="j"/>',
}
LIMITED = {
    "dcmotor with position": '<dcmotor motorconst=".5 .8" resistance=".1" controller="20 0 2 0 0 3" input="pos"/>',
    "dcmotor with gear": '<dcmotor motorconst="2" resistance="9" controller="20 0 2 0 0 9" input="pos" gear="-3"/>',
    "dcmotor with range": '<dcmotor motorconst="1" resistance="1" controller="20 0 2 0 0 9" input="pos" '
    'ctrlrange="0 .2"/>',
    "dcmotor with velocity": '<dcmotor motorconst="1" resistance="2" controller="0 0 4 0 0 3" input="vel" gear="2"/>',
    "dcmotor with torque": '<dcmotor motorconst="1" resistance="2" controller="0 0 0 0 0 1" input="ff" gear="7"/>',
    "dcmotor with three inputs": '<dcmotor motorconst="1" resistance="1" controller="5 0 1 0 0 2" input="pos vel ff"/>',
}
"""Of these the torque is linear up to a limit that falls with the speed."""

OTHERS = {
    "damper": ('<damper kv="3" ctrlrange="0 1"/>', "its gain depends on position or velocity"),
    "general with gain": ('<general gaintype="affine" gainprm="2 3 4"/>', "its gain depends on position or velocity"),
    "cylinder": ('<cylinder area="2" timeconst=".1"/>', "it filters its control"),
    "position with filter": ('<position kp="20" timeconst=".1"/>', "it filters its control"),
    "muscle": ('<muscle lengthrange="-1 1"/>', "it is a muscle"),
    "intvelocity": ('<intvelocity kp="5" kv="1" actrange="-3 3"/>', "it integrates its control"),
    "pid with integral": ('<pid kp="5" kv="1" ki="2"/>', "it has an integral or a limit of slew"),
    "pid with slew": ('<pid kp="5" kv="1" slewmax="2"/>', "it has an integral or a limit of slew"),
    "dcmotor": ('<dcmotor motorconst="0.1" resistance="1"/>', "it is a DC motor"),
    "dcmotor with integral": (
        '<dcmotor motorconst="1" resistance="1" controller="5 1 1 0 0 2" input="pos"/>',
        "it is a DC motor",
    ),
    "dcmotor with slew": (
        '<dcmotor motorconst="1" resistance="1" controller="5 0 1 0 2 2" input="pos"/>',
        "it is a DC motor",
    ),
    "dcmotor without limit": (
        '<dcmotor motorconst="1" resistance="1" controller="5 0 1 0 0 0" input="pos"/>',
        "it is a DC motor",
    ),
    "dcmotor with inductance": (
        '<dcmotor motorconst="1" resistance="1" inductance=".1" controller="5 0 1 0 0 2" input="pos"/>',
        "it is a DC motor",
    ),
    "fixed tendon": ('<position tendon="fixed" kp="20"/>', "it drives a tendon, not a joint"),
    "spatial tendon": ('<motor tendon="spatial"/>', "it drives a tendon, not a joint"),
    "site": ('<motor site="tip" gear="0 0 1 0 0 0"/>', "it drives a site, not a joint"),
    "body": ('<adhesion body="arm" gain="3" ctrlrange="0 1"/>', "it drives a body, not a joint"),
    "slidercrank": (
        '<motor cranksite="tip" slidersite="base" cranklength="1"/>',
        "it drives a slidercrank, not a joint",
    ),
    "ball": ('<motor joint="ball" gear="1 0 0"/>', "it drives a ball joint"),
    "free": ('<motor joint="free" gear="0 0 1 0 0 0"/>', "it drives a free joint"),
    "disabled": ('<motor group="3"/>', "the model disables it"),
    "gravity compensation": ('<motor joint="floating"/>', "its joint adds gravity compensation"),
}
TARGETS = ("joint=", "jointinparent=", "tendon=", "site=", "body=")


def model_file(folder: Path, *actuators: str) -> Path:
    """Write a robot with these actuators, on joint j where they do not say, under names a0, a1, ..."""
    named = [
        text.replace(" ", f' name="a{index}" ' + ("" if any(word in text for word in TARGETS) else 'joint="j" '), 1)
        for index, text in enumerate(actuators)
    ]
    path = folder / "robot.xml"
    path.write_text(
        f"""<mujoco>
          <compiler angle="radian"/>
          <option actuatorgroupdisable="3"/>
          <default><joint armature="0.1"/></default>
          <worldbody>
            <site name="base"/>
            <body name="arm"><joint name="j" axis="0 1 0" actuatorfrcrange="-40 40"/><geom size=".1" mass="1"/>
              <site name="tip" pos=".3 0 .1"/></body>
            <body pos="1 0 0"><joint name="ball" type="ball"/><geom size=".1" mass="1"/></body>
            <body pos="2 0 0"><freejoint name="free"/><geom size=".1" mass="1"/></body>
            <body pos="3 0 0" gravcomp="1"><joint name="floating" actuatorgravcomp="true" axis="0 1 0"/>
              <geom size=".1" mass="1" pos=".2 0 0"/></body>
          </worldbody>
          <tendon><fixed name="fixed"><joint joint="j" coef="2"/></fixed>
            <spatial name="spatial"><site site="base"/><site site="tip"/></spatial></tendon>
          <actuator>{"".join(named)}</actuator>
        </mujoco>"""
    )
    return path


def task(robot: RobotConfig, action: ActionTerm | None = None) -> EnvConfig:
    terms = {"observations": {}, "rewards": {}, "terminations": {}, "actions": {"all": action or ActionTerm()}}
    return EnvConfig(robot=robot, decimation=1, episode_length_s=1.0, **terms)


def torque_of(rows: dict[str, dict[str, Any]], ctrl: dict[str, float], position: float, velocity: float) -> float:
    """The formula of docs/deploy-a-policy.md for one joint; rows and controls by the name of the control."""
    total, limits = 0.0, None
    for actuator in dict.fromkeys(name.partition(":")[0] for name in rows):
        own = {name: row for name, row in rows.items() if name.partition(":")[0] == actuator}
        row = next(iter(own.values()))
        assert row["formula"] in ("linear", "limited")
        driven = sum(each["gain"] * limit(ctrl[name], each["control_range"]) for name, each in own.items())
        torque = driven + row["bias"] - row["kp"] * position - row["kd"] * velocity
        if row["formula"] == "limited":
            slowed, speed = row["stall_torque"], velocity / row["no_load_speed"]
            torque = limit(torque, [-slowed * (1 + speed), slowed * (1 - speed)])
        total += limit(torque, row["torque_range"])
        limits = row["joint_torque_range"]
    return limit(total, limits)


def limit(value: float, bounds: list[float] | None) -> float:
    return value if bounds is None else min(max(value, bounds[0]), bounds[1])


def torque_in_mujoco(path: Path, ctrl: list[float], position: float, velocity: float) -> float:
    model = mujoco.MjModel.from_xml_path(str(path))
    data = mujoco.MjData(model)
    data.joint("j").qpos[0], data.joint("j").qvel[0], data.ctrl[:] = position, velocity, ctrl
    mujoco.mj_forward(model, data)
    return float(data.qfrc_actuator[model.joint("j").dofadr[0]])


def assert_same_torque(path: Path) -> None:
    rows = describe_actuators(mujoco.MjModel.from_xml_path(str(path)))
    rng = np.random.default_rng(0)
    for _ in range(20):
        ctrl, (position, velocity) = rng.uniform(-1, 1, len(rows)), rng.uniform(-1, 1, 2)
        said = torque_of(rows, dict(zip(rows, ctrl, strict=True)), position, velocity)
        assert said == pytest.approx(torque_in_mujoco(path, ctrl.tolist(), position, velocity), abs=1e-9)


@pytest.mark.parametrize("kind", LINEAR | LIMITED)
def test_where_the_formula_applies_it_gives_the_torque(kind: str, tmp_path: Path) -> None:
    path = model_file(tmp_path, (LINEAR | LIMITED)[kind])
    assert_same_torque(path)
    rows = describe_actuators(mujoco.MjModel.from_xml_path(str(path)))
    assert {row["formula"] for row in rows.values()} == {"linear" if kind in LINEAR else "limited"}


def test_torques_of_several_actuators_add_up_within_the_range_of_the_joint(tmp_path: Path) -> None:
    kinds = LINEAR["position with gear"], LINEAR["motor"], LINEAR["pid"], LIMITED["dcmotor with gear"]
    assert_same_torque(model_file(tmp_path, *kinds))


@pytest.mark.parametrize("kind", [*(kind for kind in LINEAR if "range" not in kind), *LIMITED])
def test_the_simulated_robot_gives_the_same_torque(kind: str, tmp_path: Path) -> None:
    """Its motors are told gains and positions instead of controls. They brake, too."""
    path = model_file(tmp_path, (LINEAR | LIMITED)[kind])
    config = task(RobotConfig(file=str(path)))
    env = make_env(config, num_envs=1)
    rows = describe_actions(env)
    actuation = Actuation({"actions": rows, "default_pose": {}})
    model = mujoco.MjModel.from_xml_path(str(path))
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    drives = SimulatedDrives(model, data, {"actions": rows})
    for _ in range(20):
        ctrl, (position, velocity) = rng.uniform(-1, 1, len(rows)), rng.uniform(-1, 1, 2)
        data.joint("j").qpos[0], data.joint("j").qvel[0] = position, velocity
        actuation.controls = ctrl
        drives.obey(actuation.drives())
        mujoco.mj_forward(model, data)
        wanted = torque_in_mujoco(path, ctrl.tolist(), position, velocity)
        assert data.qfrc_actuator[model.joint("j").dofadr[0]] == pytest.approx(wanted, abs=1e-9)
        braked = {row["ctrl_index"]: {**row, "kp": 0.0, "bias": 0.0} for row in rows}
        drives.damp()
        mujoco.mj_forward(model, data)
        named = {f"a0:{index}": row for index, row in braked.items()}
        wanted = torque_of(named, dict.fromkeys(named, 0.0), position, velocity)
        assert data.qfrc_actuator[model.joint("j").dofadr[0]] == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("kind", OTHERS)
def test_elsewhere_the_metadata_says_so(kind: str, tmp_path: Path) -> None:
    text, why = OTHERS[kind]
    rows = describe_actuators(mujoco.MjModel.from_xml_path(str(model_file(tmp_path, LINEAR["motor"], text))))
    assert rows.pop("a0")["formula"] == "linear"
    for row in rows.values():
        assert (row["formula"], row["why"]) == ("none", why)
        assert [row[key] for key in ("gain", "bias", "kp", "kd", "torque_range")] == [None] * 5


def test_a_control_that_no_action_drives_is_in_the_bias(tmp_path: Path) -> None:
    path = model_file(tmp_path, LINEAR["pid with three inputs"].replace('forcerange="-3 3"', ""))
    robot = RobotConfig(file=str(path), keyframes={"home": KeyframeConfig(ctrl={"a0:ff": 0.5})})
    config = task(robot, ActionTerm(actuators=("a0:(pos|vel)",)))
    rows = describe_actions(make_env(config, num_envs=1))
    assert [(row["actuator"], row["input"]) for row in rows] == [("a0", "pos"), ("a0", "vel")]
    said = torque_of({f"a0:{row['input']}": row for row in rows}, {"a0:pos": 0.3, "a0:vel": 0.2}, 0.1, 0.4)
    assert said == pytest.approx(torque_in_mujoco(path, [0.3, 0.2, 0.5], 0.1, 0.4))


@pytest.mark.parametrize("type_", ["position", "velocity", "motor"])
def test_a_motor_of_a_config_with_a_stall_torque_has_gains_to_send(type_: str, tmp_path: Path) -> None:
    """At most 9 N m, and 12 N m at standstill; the gains of one robot differ, as an event draws them."""
    gains = {"position": {"kp": 30.0, "kv": 2.0}, "velocity": {"kv": 4.0}, "motor": {}}[type_]
    curve = {"stall_torque": 12.0, "no_load_speed": 1.5, "force_range": (-9.0, 9.0), "gear": -2.0}
    servo = ActuatorConfig(joints=("j",), type=type_, **gains, **curve)  # pyright: ignore[reportArgumentType]
    config = task(RobotConfig(file=str(model_file(tmp_path)), actuators={"servo": servo}))
    env = make_env(config, num_envs=1)
    (row,) = rows = describe_actions(env)
    assert (row["formula"], row["stall_torque"], row["no_load_speed"]) == ("limited", 24.0, 0.75)
    assert row["torque_range"] == [-18.0, 18.0]
    actuation = Actuation({"actions": rows, "default_pose": {"j": [0.0]}})
    assert actuation.stand(Readings(positions={"j": np.array([0.3])}), 0.0)["j"].kp == row["kp"]
    told, drawn = (copy.copy(env.engine.model) for _ in range(2))  # pyright: ignore[reportAttributeAccessIssue]
    drawn.actuator_gainprm[0, [4, 6]] *= 0.7, 1.5
    drives = SimulatedDrives(told, of_told := mujoco.MjData(told), {"actions": rows})
    drives.weaken(drawn.actuator_gainprm, drawn.actuator_biasprm)
    of_drawn, rng, unlimited = mujoco.MjData(drawn), np.random.default_rng(0), []
    for _ in range(30):
        actuation.controls = rng.uniform(-4, 4, 1)
        of_drawn.ctrl[:] = actuation.controls
        for data in (of_told, of_drawn):
            data.joint("j").qpos[0], data.joint("j").qvel[0] = rng.uniform(-1, 1), rng.uniform(-0.6, 0.6)
        of_told.qpos[:], of_told.qvel[:] = of_drawn.qpos, of_drawn.qvel
        drives.obey(actuation.drives())
        mujoco.mj_forward(told, of_told)
        mujoco.mj_forward(drawn, of_drawn)
        column = told.joint("j").dofadr[0]
        assert of_told.qfrc_actuator[column] == pytest.approx(of_drawn.qfrc_actuator[column], abs=1e-9)
        unlimited.append(abs(of_told.qfrc_actuator[column]) < 17.9)
    assert any(unlimited)


class Chosen:
    """A policy that acts as it is told, and reads nothing."""

    def __init__(self, env: Env) -> None:
        pose = {name: env.engine.layout.default_qpos[place].tolist() for name, place in env.engine.layout.qpos.items()}
        described = {"actions": describe_actions(env), "default_pose": pose, "observations": []}
        self.metadata = json.loads(json.dumps(described))
        self.chosen = np.zeros(env.num_actions)

    def act(self, observation: np.ndarray) -> np.ndarray:
        assert observation.shape == (0,)
        return self.chosen


def assert_moves_as_in_the_environment(config: EnvConfig, *, events: bool = False, begins: bool = False) -> None:
    """Compare positions and sensors after each env step of two episodes; if begins, also the accelerations at first."""
    env = make_env(config, num_envs=1)
    policy, engine = Chosen(env), env.engine
    robot = SteppedRobot(engine.model, cast("DeployedPolicy", policy), rng=np.random.default_rng(0))  # pyright: ignore[reportAttributeAccessIssue]
    fields = ("actuator_gainprm", "actuator_biasprm", "actuator_forcerange") if events else ()
    drawn = {name: engine.expand(name)[0].numpy() for name in fields}
    for seed in (0, 1):
        env.reset(torch.ones(1, dtype=torch.bool))
        robot.begin(env.state.qpos[0].double().numpy(), env.state.qvel[0].double().numpy(), drawn)
        if begins:
            assert robot.data.qacc == pytest.approx(engine.follow("qacc")[0].numpy(), rel=1e-5, abs=1e-5)
        assert robot.data.sensordata == pytest.approx(env.state.sensordata[0].numpy(), abs=1e-5)
        for action in actions_for(env, 8, seed=seed)[:, :1]:
            env.step(action)
            policy.chosen = action[0].double().numpy()
            robot.act({}, np.zeros(len(robot.data.qpos)))
            assert robot.step(config.decimation)
            assert robot.data.qpos == pytest.approx(env.state.qpos[0].numpy(), abs=1e-5)
            assert robot.data.sensordata == pytest.approx(env.state.sensordata[0].numpy(), abs=1e-5)


PID = '<pid kp="5" kv="1" ki="2" input="pos vel ff"/>'


@pytest.mark.parametrize("patterns", [("a0:pos",), ("a0:vel",), ("a0:ff", "a0:pos"), ("a0:(pos|vel)",)])
def test_of_a_motor_without_a_formula_each_action_drives_its_own_control(
    patterns: tuple[str, ...], tmp_path: Path
) -> None:
    keyframe = KeyframeConfig(joints={"j": 0.3}, ctrl={"a0:vel": 0.4, "a0:ff": -0.2})
    robot = RobotConfig(file=str(model_file(tmp_path, PID)), keyframes={"home": keyframe})
    actions = {str(index): ActionTerm(actuators=(pattern,)) for index, pattern in enumerate(patterns)}
    assert_moves_as_in_the_environment(replace(task(robot), actions=actions, decimation=4))


@pytest.mark.parametrize(
    "kind",
    ["position with filter", "pid with integral", "pid with slew", "dcmotor with integral", "pid with feedforward"],
)
@pytest.mark.parametrize("kv_factor", [None, (0.4, 0.4)])
def test_motors_with_other_gains_move_as_in_the_environment(
    kind: str, kv_factor: tuple[float, float] | None, tmp_path: Path
) -> None:
    text = (LINEAR | {name: other for name, (other, _) in OTHERS.items()})[kind]
    strong = {"actuators": ("a0",), "factor": (1.5, 1.5)}
    limits = EventTerm(func=randomization.effort_limits, params=strong, mode="startup")
    gains = EventTerm(
        func=randomization.actuator_gains,
        params={"actuators": ("a0",), "factor": (1.5, 1.5), "kv_factor": kv_factor},
        mode="startup",
    )
    text = text.replace("/>", ' forcerange="-.5 .5"/>') if "pid" in kind else text
    config = task(RobotConfig(file=str(model_file(tmp_path, text))))
    events = {"gains": gains} | ({"limits": limits} if "pid" in kind else {})
    assert_moves_as_in_the_environment(replace(config, events=events, decimation=4), events=True)


@pytest.mark.parametrize("kind", ["position", "pid with three inputs", "pid with integral"])
def test_with_delays_it_moves_as_in_the_environment_from_the_first_step(kind: str, tmp_path: Path) -> None:
    """Of the actions, the home controls have been in force before; of the other motor, its own."""
    text = (LINEAR | {name: other for name, (other, _) in OTHERS.items()})[kind]
    late = [each.replace(" ", ' delay="0.03" nsample="20" ', 1) for each in (text, LINEAR["motor"])]
    path = model_file(tmp_path, *late)
    sensor = '<jointpos name="angle" joint="j" delay="0.01" nsample="8" interp="linear"/>'
    path.write_text(path.read_text().replace("<actuator>", f"<sensor>{sensor}</sensor><actuator>"))
    first = "a0:pos" if "three" in kind else "a0"
    keyframe = KeyframeConfig(joints={"j": 0.7}, ctrl={first: 0.6, "a1": 0.5})
    config = task(RobotConfig(file=str(path), keyframes={"home": keyframe}), ActionTerm(actuators=(first,)))
    env = make_env(config, num_envs=1)
    assert env.state.sensordata.item() == pytest.approx(0.7)
    assert_moves_as_in_the_environment(replace(config, decimation=4), begins=True)
    robot = SimulatedRobot(Simulation(model=str(path)), Chosen(env).metadata)
    robot._socket.close()
    assert robot._data.sensor("angle").data == pytest.approx(0.7)


@pytest.mark.parametrize("kind", ["position", "pid with integral"])
def test_with_a_delay_other_gains_begin_with_their_controls(kind: str, tmp_path: Path) -> None:
    text = (LINEAR | {name: other for name, (other, _) in OTHERS.items()})[kind]
    path = model_file(tmp_path, text.replace(" ", ' delay="0.03" nsample="20" ', 1))
    config = task(RobotConfig(file=str(path), keyframes={"home": KeyframeConfig(joints={"j": 0.7}, ctrl={"a0": 0.7})}))
    env = make_env(config, num_envs=1)
    model = copy.copy(env.engine.model)  # pyright: ignore[reportAttributeAccessIssue]
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    metadata = Chosen(env).metadata
    drives, actuation = SimulatedDrives(model, data, metadata), Actuation(metadata)
    actuation.controls = np.array([0.7, 0.0])[: len(metadata["actions"])]
    for change in (lambda: drives.obey(actuation.drives()), drives.damp):
        change()
        for _ in range(10):
            data.joint("j").qpos[0], data.joint("j").qvel[0] = 0.7, 0.0
            mujoco.mj_step(model, data)
            assert data.qfrc_actuator[model.joint("j").dofadr[0]] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("texts", [(LINEAR["position"], LINEAR["motor"]), (LINEAR["motor"],) * 2])
def test_the_range_of_a_joint_bounds_the_sum_of_its_actuators(texts: tuple[str, str], tmp_path: Path) -> None:
    path = model_file(tmp_path, *texts)
    path.write_text(path.read_text().replace('actuatorfrcrange="-40 40"', 'actuatorfrcrange="-3 3"'))
    assert_moves_as_in_the_environment(replace(task(RobotConfig(file=str(path))), decimation=4))


def test_a_motor_without_an_action_shares_the_range_of_its_joint(tmp_path: Path) -> None:
    """It pulls with 4 N m against the other one, which may therefore give 7 N m where the joint takes 3 N m."""
    path = model_file(tmp_path, '<motor gear="9"/>', LINEAR["motor"])
    path.write_text(path.read_text().replace('actuatorfrcrange="-40 40"', 'actuatorfrcrange="-3 3"'))
    robot = RobotConfig(file=str(path), keyframes={"home": KeyframeConfig(ctrl={"a1": -4 / 7})})
    assert_moves_as_in_the_environment(replace(task(robot, ActionTerm(actuators=("a0",))), decimation=4))


@pytest.mark.parametrize("flag", ["enable", "disable"])
def test_relative_actions_add_up_within_a_range_that_mujoco_keeps_to(flag: str, tmp_path: Path) -> None:
    path = model_file(tmp_path, '<position kp="20" kv="2" ctrlrange="-.1 .1"/>')
    old = '<option actuatorgroupdisable="3"/>'
    path.write_text(path.read_text().replace(old, f'<option><flag clampctrl="{flag}"/></option>'))
    config = task(RobotConfig(file=str(path)), ActionTerm(relative=True))
    assert_moves_as_in_the_environment(replace(config, decimation=4))


@pytest.mark.parametrize("kind", ["position with gear", "position with ranges", "motor", "position with filter"])
def test_an_episode_begins_with_the_accelerations_of_the_environment(kind: str, tmp_path: Path) -> None:
    """A touch sensor or an accelerometer shows them."""
    text = (LINEAR | {name: other for name, (other, _) in OTHERS.items()})[kind]
    keyframe = KeyframeConfig(joints={"j": 0.3}, ctrl={"a0": 0.5})
    robot = RobotConfig(file=str(model_file(tmp_path, text)), keyframes={"home": keyframe})
    assert_moves_as_in_the_environment(task(robot, ActionTerm(from_home=True)), begins=True)
