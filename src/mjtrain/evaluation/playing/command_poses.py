"""Where viewers and pages mark a command."""

import numpy as np

from mjtrain.sim.robots.kinematics import Kinematics


def to_poses(command: np.ndarray, free_joint: str, qpos: np.ndarray, kinematics: Kinematics) -> np.ndarray:
    """Complete commands that are positions or quaternions to poses. Shape (rows, 7).

    An orientation is shown above its object, where neither the object nor a hand around it hides the mark.

    Args:
        command: Positions in m, quaternions, or both and more. Shape (rows, size).
        free_joint: Joint of the object that a quaternion is for.
        qpos: State of the worlds. Shape (rows, nq).
        kinematics: Of the same model.
    """
    if command.shape[1] == 3:
        return np.hstack([command, np.tile([1.0, 0.0, 0.0, 0.0], (len(command), 1))])
    if command.shape[1] == 4:
        begin = int(kinematics.model.joint(free_joint).qposadr[0])
        place = qpos[:, begin : begin + 3].copy()
        place[:, 2] += 1.5 * kinematics.radius_m(free_joint)
        return np.hstack([place, command])
    return command[:, :7]
