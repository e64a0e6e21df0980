"""Joints that are locked: a robot learns with fewer of them than its file has."""

from typing import Any

import mujoco
import numpy as np

from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.completion.keyframes import HOME, activation_columns
from mjtrain.sim.robots.completion.parts import compile_copy, free_name, match
from mjtrain.sim.robots.read_layout import ON_JOINT, SCALAR_JOINTS, control_columns


def lock_joints(spec: Any, patterns: tuple[str, ...]) -> None:
    """Weld hinges and slides where the default pose has them; their actuators, and the sensors of both, are removed.

    The robot must have all its actuators, sensors and keyframes. Keyframes lose the columns of the joints.
    """
    there = [joint.name for joint in spec.joints if joint.type in SCALAR_JOINTS]
    names = set(match("locked-joints", patterns, "hinge or slide", there))
    _untie(spec, names)
    model = compile_copy(spec)
    joints = [joint for joint in spec.joints if joint.name in names]
    _place_bodies(spec, model, joints)
    removed = [part for part in spec.actuators if part.trntype in ON_JOINT and part.target in names]
    keyframes = _shorten_keyframes(model, names, {part.name for part in removed})
    for key in spec.keys:  # MuJoCo checks their sizes whenever something is deleted
        key.qpos = key.qvel = key.ctrl = key.act = []
    gone = {mujoco.mjtObj.mjOBJ_JOINT: names, mujoco.mjtObj.mjOBJ_ACTUATOR: {part.name for part in removed}}
    for part in [*spec.sensors]:
        if part.objname in gone.get(part.objtype, ()):
            spec.delete(part)
    for part in [*removed, *joints]:
        spec.delete(part)
    for key in spec.keys:
        key.qpos, key.qvel, key.ctrl, key.act = keyframes[key.name]


def _untie(spec: Any, names: set[str]) -> None:
    """Remove equalities between joints that are all locked; refuse joints that something else ties to others."""
    for tendon in spec.tendons:
        for joint in (wrap.target.name for wrap in tendon.path if wrap.type == mujoco.mjtWrap.mjWRAP_JOINT):
            if joint in names:
                raise RequestError(
                    f"--env.robot.locked-joints: joint {joint} is part of tendon {tendon.name or tendon.id}; leave the "
                    "joint out, or remove the tendon from the robot's file"
                )
    for part in [part for part in spec.equalities if part.type == mujoco.mjtEq.mjEQ_JOINT]:
        tied = {part.name1, part.name2} - {""}
        if tied <= names:
            spec.delete(part)
        elif tied & names:
            raise RequestError(
                f"--env.robot.locked-joints: joint {(tied & names).pop()} is tied to joint {(tied - names).pop()} by "
                f"equality {part.name or part.id}; lock both or neither"
            )


def _place_bodies(spec: Any, model: Any, joints: list[Any]) -> None:
    """Give the bodies of joints the place in their parents that they have in the default pose."""
    data = mujoco.MjData(model)
    home = next((index for index in range(model.nkey) if model.key(index).name == HOME), None)
    pose = model.qpos0 if home is None else model.key_qpos[home]
    for joint in joints:
        column = int(model.joint(joint.name).qposadr[0])
        data.qpos[column] = pose[column]
    if (data.qpos != model.qpos0).any():
        _keep_ends(spec, model)
    mujoco.mj_kinematics(model, data)
    for joint in joints:
        body = joint.parent
        if body.frame is not None:
            raise RequestError(f"--env.robot.locked-joints: body {body.name} of joint {joint.name} is in a <frame>")
        index = int(model.jnt_bodyid[model.joint(joint.name).id])
        parent = int(model.body_parentid[index])
        turn, place = data.xmat[parent].reshape(3, 3).T, np.zeros(4)
        inverse = data.xquat[parent] * [1, -1, -1, -1]
        mujoco.mju_mulQuat(place, inverse, data.xquat[index])
        body.pos = turn @ (data.xpos[index] - data.xpos[parent])
        body.quat, body.alt.type = place, mujoco.mjtOrientation.mjORIENTATION_QUAT
        _turn_back(data, index, body.joints, {part.name for part in joints})


def _keep_ends(spec: Any, model: Any) -> None:
    """Fix the ends of connects and welds of bodies, which MuJoCo otherwise measures in the new reference pose."""
    bodies = {body.name: body for body in spec.bodies} | {"": spec.worldbody}
    for part, data in zip(spec.equalities, model.eq_data, strict=True):
        if part.type == mujoco.mjtEq.mjEQ_WELD and part.objtype == mujoco.mjtObj.mjOBJ_BODY:
            part.data[3:10] = data[3:10]
        elif part.type == mujoco.mjtEq.mjEQ_CONNECT and part.objtype == mujoco.mjtObj.mjOBJ_BODY:
            ends = ((bodies[part.name1], data[:3]), (bodies[part.name2], data[3:6]))
            sites = [body.add_site(name=free_name("connect", spec.sites), pos=place) for body, place in ends]
            part.objtype, part.name1, part.name2 = mujoco.mjtObj.mjOBJ_SITE, sites[0].name, sites[1].name


def _turn_back(data: Any, body: int, parts: list[Any], locked: set[str]) -> None:
    """Keep joints of a body where they are in the world, although locked ones have turned the body's frame."""
    model, turn = data.model, data.xmat[body].reshape(3, 3).T
    for index, joint in enumerate(parts, int(model.body_jntadr[body])):
        if joint.name in locked:
            continue
        axis, place = turn @ data.xaxis[index], turn @ (data.xanchor[index] - data.xpos[body])
        if np.allclose(axis, model.jnt_axis[index]) and np.allclose(place, model.jnt_pos[index]):
            continue
        if joint.frame is not None:
            raise RequestError(
                f"--env.robot.locked-joints: joint {joint.name} of body {model.body(body).name}, which locked joints "
                "turn, is in a <frame>"
            )
        joint.axis, joint.pos = axis, place


def _shorten_keyframes(model: Any, joints: set[str], actuators: set[str]) -> dict[str, tuple[np.ndarray, ...]]:
    """Return qpos, qvel, ctrl and act of each keyframe without the columns of joints and of actuators."""
    qpos, qvel = np.ones(model.nq, bool), np.ones(model.nv, bool)
    ctrl, act = np.ones(model.nu, bool), np.ones(model.na, bool)
    for name in joints:
        qpos[model.joint(name).qposadr[0]] = qvel[model.joint(name).dofadr[0]] = False
    for name in actuators:
        index = model.actuator(name).id
        ctrl[control_columns(model, index)] = act[activation_columns(model, index)] = False
    return {
        model.key(index).name: (
            model.key_qpos[index][qpos],
            model.key_qvel[index][qvel],
            model.key_ctrl[index][ctrl],
            model.key_act[index][act],
        )
        for index in range(model.nkey)
    }
