"""Robots with drawn actuators: a controller that knows only the exported metadata gives MuJoCo's torques."""

import json
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from mjtrain.config import ActionTerm, EnvConfig, RobotConfig
from mjtrain.evaluation.export.metadata import describe_actions
from support.envs import make_env

JOINTS = ("a", "b", "c", "d", "e")
MIXED = ("a", "b")
"""Joints of actuators of any kind, also by a tendon; the others have linear ones only."""

LINEAR = {
    "position": '<position {on} kp="{p}" kv="{v}" {ranges}/>',
    "damped position": '<position {on} kp="{p}" dampratio="{r}" {ranges}/>',
    "velocity": '<velocity {on} kv="{v}" {ranges}/>',
    "motor": "<motor {on} {ranges}/>",
    "general": '<general {on} biastype="affine" gainprm="{p}" biasprm="{r} {n} {m}" {ranges}/>',
    "general without bias": '<general {on} gainprm="{p}" biasprm="{r} {n} {m}" {ranges}/>',
    "general with constant gain": '<general {on} gaintype="affine" gainprm="{p}" biastype="affine" biasprm="{r} {n}"/>',
    "pid": '<pid {on} kp="{p}" kv="{v}" {force}/>',
    "pid with inputs": '<pid {on} kp="{p}" kv="{v}" input="{inputs}" {force}/>',
}
LINEAR |= {  # up to a limit that falls with the speed
    "dcmotor with driver": '<dcmotor {on} motorconst="{r}" resistance="{v}" controller="{p} 0 {v} 0 0 {p}" {input}/>',
}
OTHERS = {
    "damper": '<damper {on} kv="{v}" ctrlrange="0 1"/>',
    "general with gain": '<general {on} gaintype="affine" gainprm="{p} {n} {m}"/>',
    "cylinder": '<cylinder {on} area="{r}" timeconst=".1"/>',
    "filtered position": '<position {on} kp="{p}" timeconst=".1"/>',
    "muscle": '<muscle {on} lengthrange="-1 1"/>',
    "integrated velocity": '<intvelocity {on} kp="{p}" kv="{v}" actrange="-3 3"/>',
    "pid with integral": '<pid {on} kp="{p}" kv="{v}" ki="{r}"/>',
    "dcmotor": '<dcmotor {on} motorconst="0.1" resistance="{r}"/>',
    "position on a tendon": '<position {named} tendon="both" kp="{p}" gear="{gear}"/>',
}


def draw_robot(rng: np.random.Generator) -> tuple[str, dict[str, str]]:
    """Draw an MJCF file, and the kinds of its actuators by name: each of them once, on hinges and slides."""
    kinds = {f"m{index}": kind for index, kind in enumerate(rng.permutation([*LINEAR, *OTHERS, *LINEAR]))}
    actuators = "".join(
        {**LINEAR, **OTHERS}[kind].format(**draw_numbers(rng, name, kind)) for name, kind in kinds.items()
    )
    bodies = ""
    for name in JOINTS:
        limit = f'actuatorfrcrange="{-rng.uniform(1, 60)} {rng.uniform(1, 60)}"' if rng.random() < 0.5 else ""
        axis, place = " ".join(map(str, rng.normal(size=3))), " ".join(map(str, rng.uniform(-0.3, 0.3, 3)))
        kind = rng.choice(["hinge", "slide"])
        bodies += f'<body pos="{place}"><joint name="{name}" type="{kind}" axis="{axis}" {limit}/><geom size=".1"/>'
    return (
        f"""<mujoco><compiler angle="radian"/><default><joint armature="0.1"/></default>
        <worldbody>{bodies}{"</body>" * len(JOINTS)}</worldbody>
        <tendon><fixed name="both"><joint joint="a" coef="2"/><joint joint="b" coef="-1"/></fixed></tendon>
        <actuator>{actuators}</actuator></mujoco>""",
        kinds,
    )


def draw_numbers(rng: np.random.Generator, name: str, kind: str) -> dict[str, Any]:
    """Draw what an actuator of any kind is made of."""
    p, v, r = rng.uniform(1, 200), rng.uniform(0.1, 20), rng.uniform(0.1, 2)
    gear, joint = rng.choice([-1, 1]) * rng.uniform(0.2, 30), rng.choice(JOINTS if kind in LINEAR else MIXED)
    target = rng.choice(["joint", "joint", "jointinparent"])
    low, high = sorted(rng.uniform(-1, 1, 2))
    force = f'forcerange="{-rng.uniform(0.1, 30)} {rng.uniform(0.1, 30)}"' if rng.random() < 0.5 else ""
    inputs = [word for word in ("pos", "vel", "ff") if rng.random() < 0.6] or ["vel"]
    return {
        **{"p": p, "v": v, "r": r, "n": -rng.uniform(1, 200), "m": -rng.uniform(0.1, 20), "gear": gear},
        **{"named": f'name="{name}"', "on": f'name="{name}" {target}="{joint}" gear="{gear}"', "force": force},
        **{"ranges": force + (f' ctrlrange="{low} {high}"' if rng.random() < 0.5 else "")},
        **{"inputs": " ".join(inputs), "input": f'input="{" ".join(inputs)}"'},
    }


def clip(value: float, bounds: list[float] | None) -> float:
    return value if bounds is None else min(max(value, bounds[0]), bounds[1])


def compute_torques(
    rows: list[dict[str, Any]], ctrl: np.ndarray, positions: dict[str, float], velocities: dict[str, float]
) -> tuple[dict[str, float], dict[str, float | None]]:
    """The controller: torques of the actuators where the metadata gives them, and of joints where it gives all."""
    of_actuator: dict[str, float] = {}
    of_joint: dict[str, float | None] = {}
    for actuator in dict.fromkeys(row["actuator"] for row in rows):
        own = [row for row in rows if row["actuator"] == actuator]
        row = own[0]
        joint = row["joint"]
        if row["formula"] == "none":
            of_joint[joint] = None
            continue
        torque = sum(each["gain"] * clip(float(ctrl[each["ctrl_index"]]), each["control_range"]) for each in own)
        torque += row["bias"] - row["kp"] * positions[joint] - row["kd"] * velocities[joint]
        if row["formula"] == "limited":
            stall, speed = row["stall_torque"], velocities[joint] / row["no_load_speed"]
            torque = clip(torque, [-stall * (1 + speed), stall * (1 - speed)])
        of_actuator[actuator] = clip(torque, row["torque_range"])
        before = of_joint.get(joint, 0.0)
        of_joint[joint] = None if before is None else before + of_actuator[actuator]
    limits = {row["joint"]: row["joint_torque_range"] for row in rows}
    return of_actuator, {
        joint: None if torque is None else clip(torque, limits[joint]) for joint, torque in of_joint.items()
    }


def read_torques(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """MuJoCo's torques of each actuator on each degree of freedom. Shape (num_actuators, nv)."""
    moment = np.zeros((len(data.actuator_force), model.nv))
    mujoco.mju_sparse2dense(moment, data.actuator_moment, data.moment_rownnz, data.moment_rowadr, data.moment_colind)
    return moment * data.actuator_force[:, None]


@pytest.mark.parametrize("seed", range(6))
def test_a_controller_written_from_the_metadata_gives_the_torques(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    xml, kinds = draw_robot(rng)
    file = tmp_path / "robot.xml"
    file.write_text(xml)
    terms: dict[str, Any] = {"observations": {}, "rewards": {}, "terminations": {}, "actions": {"all": ActionTerm()}}
    config = EnvConfig(robot=RobotConfig(file=str(file)), decimation=1, episode_length_s=1.0, **terms)
    rows = json.loads(json.dumps(describe_actions(make_env(config, num_envs=1)), allow_nan=False))
    assert {row["actuator"] for row in rows if row["formula"] != "none"} == {
        name for name, kind in kinds.items() if kind in LINEAR
    }
    model = mujoco.MjModel.from_xml_string(xml)
    data, compared = mujoco.MjData(model), 0
    for _ in range(10):
        data.qpos[:], data.qvel[:] = rng.uniform(-1, 1, model.nq), rng.uniform(-1, 1, model.nv)
        data.ctrl[:] = rng.uniform(-2, 2, model.nu)
        mujoco.mj_forward(model, data)
        columns = {name: model.joint(name).dofadr[0] for name in JOINTS}
        positions = {name: data.qpos[model.joint(name).qposadr[0]] for name in JOINTS}
        velocities = {name: data.qvel[column] for name, column in columns.items()}
        of_actuator, of_joint = compute_torques(rows, data.ctrl, positions, velocities)
        found = read_torques(model, data)
        for name, torque in of_actuator.items():
            row = next(row for row in rows if row["actuator"] == name)
            assert torque == pytest.approx(found[model.actuator(name).id, columns[row["joint"]]], rel=1e-9, abs=1e-9)
            compared += 1
        for joint in {row["joint"] for row in rows} - {None, *MIXED}:
            assert of_joint[joint] == pytest.approx(data.qfrc_actuator[columns[joint]], rel=1e-9, abs=1e-9)
    assert compared == 10 * 2 * len(LINEAR)
