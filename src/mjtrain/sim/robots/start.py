"""The state in which episodes begin; without torch, which the processes that draw must not import."""

import mujoco


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
