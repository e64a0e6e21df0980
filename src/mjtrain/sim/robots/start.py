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

    Objects have free joints, too, and may come first. The robot's is the first from which hinges or slides hang, or
    else the first; those with a name come before others.
    """
    free = [int(joint) for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)]
    jointed = _list_jointed(model)
    return max(
        free, key=lambda joint: (int(model.jnt_bodyid[joint]) in jointed, bool(model.joint(joint).name)), default=-1
    )


def find_base(model: mujoco.MjModel) -> int:
    """Return the free joint of a robot that moves freely, by its index.

    -1 without any. Also -1 where all hinges and slides hang from the world: a robot with a fixed base moves objects.
    """
    root, jointed = find_root(model), _list_jointed(model)
    return root if root >= 0 and (not jointed or int(model.jnt_bodyid[root]) in jointed) else -1


def _list_jointed(model: mujoco.MjModel) -> set[int]:
    """Return the bodies on the world from which hinges or slides hang, or that have one."""
    is_scalar = np.isin(model.jnt_type, (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE))
    return set(model.body_rootid[model.jnt_bodyid[is_scalar]].tolist())
