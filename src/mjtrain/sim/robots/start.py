"""The state in which episodes begin, and the root of the robot; without torch, for the processes that draw."""

import mujoco
import numpy as np


def make_start(model: mujoco.MjModel) -> mujoco.MjData:
    """Return the state in which episodes begin: keyframe "home" if the model has it, else the reference pose.

    It has the poses of mocap bodies, which are not part of qpos.
    """
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, find_home(model))
    return data


def find_home(model: mujoco.MjModel) -> int:
    """Return the index of keyframe "home"; -1 without it, for which MuJoCo resets to the reference pose."""
    return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, "home")


def find_root(model: mujoco.MjModel) -> int:
    """Return the free joint of the robot, by its index; -1 without any.

    Objects have free joints, too, and may come first. The robot's is the first whose body, or what hangs from it, has
    actuators, or else hinges or slides, or else the first; those with a name come before others.
    """
    free = [int(joint) for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)]
    driven, jointed = list_driven(model), _list_jointed(model)

    def rank(joint: int) -> tuple[bool, bool, bool]:
        body = int(model.jnt_bodyid[joint])
        return body in driven, body in jointed, bool(model.joint(joint).name)

    return max(free, key=rank, default=-1)


def find_base(model: mujoco.MjModel) -> int:
    """Return the free joint of a robot that moves freely, by its index.

    -1 without any. Also -1 where all actuators, or without actuators all hinges and slides, are on what is fixed to the
    world: a robot with a fixed base moves objects, which may have joints too.
    """
    root, moved = find_root(model), list_driven(model) or _list_jointed(model)
    return root if root >= 0 and (not moved or int(model.jnt_bodyid[root]) in moved) else -1


def _list_jointed(model: mujoco.MjModel) -> set[int]:
    """Return the bodies on the world from which hinges or slides hang, or that have one."""
    is_scalar = np.isin(model.jnt_type, (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE))
    return set(model.body_rootid[model.jnt_bodyid[is_scalar]].tolist())


def list_driven(model: mujoco.MjModel) -> set[int]:
    """Return the bodies on the world that actuators move, or below which they move something."""
    trn, wrap = mujoco.mjtTrn, mujoco.mjtWrap
    of_actuator = {
        trn.mjTRN_JOINT.value: model.jnt_bodyid,
        trn.mjTRN_JOINTINPARENT.value: model.jnt_bodyid,
        trn.mjTRN_SITE.value: model.site_bodyid,
        trn.mjTRN_SLIDERCRANK.value: model.site_bodyid,
        trn.mjTRN_BODY.value: np.arange(model.nbody),
    }
    of_tendon = {wrap.mjWRAP_JOINT.value: model.jnt_bodyid, wrap.mjWRAP_SITE.value: model.site_bodyid}
    bodies = []
    for kind, part in zip(model.actuator_trntype, model.actuator_trnid[:, 0], strict=True):
        if kind == trn.mjTRN_TENDON.value:
            path = slice(model.tendon_adr[part], model.tendon_adr[part] + model.tendon_num[part])
            parts = zip(model.wrap_type[path], model.wrap_objid[path], strict=True)
            bodies += [of_tendon[at][wrapped] for at, wrapped in parts if at in of_tendon]
        elif kind in of_actuator:
            bodies.append(of_actuator[kind][part])
    return set(model.body_rootid[bodies].tolist()) - {0} if bodies else set()
