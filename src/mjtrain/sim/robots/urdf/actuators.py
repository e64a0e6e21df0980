"""Actuators for the joints of a URDF, which has effort limits at most."""

import math
import re

import mujoco
import numpy as np

from mjtrain.config.robot_import import ImportConfig
from mjtrain.config.robot_parts import ActuatorConfig
from mjtrain.runtime.errors import count
from mjtrain.sim.robots.measured import hangs_on
from mjtrain.sim.robots.read_layout import SCALAR_JOINTS
from mjtrain.sim.robots.start import find_base

TIMESTEP_S = 0.002
"""Physics step of an imported robot, in s."""

_HINGE, _SLIDE = mujoco.mjtJoint.mjJNT_HINGE.value, mujoco.mjtJoint.mjJNT_SLIDE.value


def scalar_joints(model: mujoco.MjModel) -> list[int]:
    """Return the hinges and slides."""
    return [joint for joint in range(model.njnt) if model.jnt_type[joint] in SCALAR_JOINTS]


def followers(model: mujoco.MjModel) -> dict[int, tuple[int, np.ndarray]]:
    """Return joints that mimic others, with the one that leads and the polynomial."""
    rows = np.flatnonzero(model.eq_type == mujoco.mjtEq.mjEQ_JOINT.value)
    return {int(model.eq_obj1id[row]): (int(model.eq_obj2id[row]), model.eq_data[row, :5]) for row in rows}


def choose_actuators(
    model: mujoco.MjModel, home: np.ndarray, config: ImportConfig
) -> tuple[dict[str, ActuatorConfig], list[str]]:
    """Return a position actuator for each joint that moves by itself."""
    data = mujoco.MjData(model)
    data.qpos[:] = home
    mujoco.mj_forward(model, data)
    inverse = np.zeros((model.nv, model.nv))
    mujoco.mj_solveM(model, data, inverse, np.eye(model.nv))
    mimics = followers(model)
    actuators, unlimited, softened = {}, [], []
    for joint in scalar_joints(model):
        if joint in mimics:
            continue
        name, dof, is_hinge = model.joint(joint).name, int(model.jnt_dofadr[joint]), model.jnt_type[joint] == _HINGE
        effort = float(model.jnt_actfrcrange[joint, 1]) if model.jnt_actfrclimited[joint] else 0.0
        if not 0 < effort < math.inf:
            effort = _guess_effort(model, data, joint)
            unlimited.append(f"{name} {effort:.3g}")
        width = float(np.ptp(model.jnt_range[joint])) if model.jnt_limited[joint] else 0.0
        error = config.full_effort_at if is_hinge else (0.1 * width or 0.05)
        inertia = 1.0 / float(inverse[dof, dof])
        kp, stiffest = effort / error, inertia * (0.5 / TIMESTEP_S) ** 2
        if kp > stiffest:
            softened.append(name)
            kp = stiffest
        kv = 2 * config.damping_ratio * math.sqrt(kp * inertia)
        actuators[name] = ActuatorConfig(
            joints=(re.escape(name),),
            kp=float(f"{kp:.4g}"),
            kv=float(f"{kv:.4g}"),
            force_range=(-effort, effort),
            ctrl_range=None if model.jnt_limited[joint] or not is_hinge else (-math.pi, math.pi),
        )
    kps = [actuator.kp for actuator in actuators.values()]
    notes = [
        f"actuators: {count(len(kps), 'position actuator')}, kp {min(kps):.3g} to {max(kps):.3g}: the full effort at "
        f"{config.full_effort_at:g} rad (--full-effort-at), damped by {config.damping_ratio:g} of critical "
        "(--damping-ratio); the gains of the robot's own controller are better"
    ]
    if unlimited:
        notes.append(
            f"actuators: no effort limit in the file, so one was guessed from the weight: {', '.join(unlimited)}"
        )
    if softened:
        notes.append(f"actuators: kp reduced to what physics steps of {TIMESTEP_S:g} s allow: {', '.join(softened)}")
    if mimics:
        names = ", ".join(model.joint(joint).name for joint in mimics)
        notes.append(f"actuators: none for joints that mimic others: {names}")
    return actuators, notes


def _guess_effort(model: mujoco.MjModel, data: mujoco.MjData, joint: int) -> float:
    """Guess an effort limit: twice what holds up what hangs on the joint, or a quarter of a robot that stands on it."""
    body = int(model.jnt_bodyid[joint])
    below = [b for b in range(model.nbody) if hangs_on(model, b, body)]
    mass = float(model.body_mass[below].sum())
    if find_base(model) >= 0:
        mass = max(mass, float(model.body_mass.sum()) / 4)
    weight = 2 * mass * 9.81
    if model.jnt_type[joint] == _SLIDE:
        return float(f"{max(weight, 1.0):.3g}")
    reach = max(float(np.linalg.norm(data.xipos[b] - data.xanchor[joint])) for b in below)
    return float(f"{max(weight * reach, 0.1):.3g}")
