"""Poses of the parts of a model, for renderers and viewers."""

import mujoco
import numpy as np

from mjtrain.config import EnvConfig
from mjtrain.sim.robots.model import load_model
from mjtrain.sim.robots.start import find_base, make_start


class Kinematics:
    """Computes poses of bodies from positions of joints, for the compiled model."""

    def __init__(self, config: EnvConfig) -> None:
        self.model = load_model(config)
        """The model, with the ground."""
        self.touch_sensors = {
            self.model.sensor(index).name: int(self.model.sensor_adr[index])
            for index in range(self.model.nsensor)
            if self.model.sensor_type[index] == mujoco.mjtSensor.mjSENS_TOUCH and self.model.sensor(index).name
        }
        """Column of each touch sensor in sensordata; they read contact forces in N."""
        self.joint_of_column = _name_columns(self.model)
        """Name of the joint that each column of qpos belongs to."""
        self._data = make_start(self.model)
        base = find_base(self.model)
        self.base_body = int(self.model.jnt_bodyid[base]) if base >= 0 else None
        """Body of the free joint of a robot that moves freely, which a camera has to follow; None without it."""
        self.size_m = self._measure()
        """Approximate size of the moving parts, in m."""

    def body_poses(self, qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions (m) and rotation matrices of all bodies in the world's frame, for finite qpos.

        Shape (num_worlds, nq) to (num_worlds, nbody, 3) and (num_worlds, nbody, 3, 3).
        """
        positions = np.empty((len(qpos), self.model.nbody, 3))
        rotations = np.empty((len(qpos), self.model.nbody, 3, 3))
        for world, row in enumerate(qpos):
            self._data.qpos[:] = row
            mujoco.mj_kinematics(self.model, self._data)
            positions[world] = self._data.xpos
            rotations[world] = self._data.xmat.reshape(-1, 3, 3)
        return positions, rotations

    def radius_m(self, free_joint: str) -> float:
        """Return the radius of a sphere around the origin of the body with this joint that holds its geoms, in m."""
        body = int(self.model.joint(free_joint).bodyid[0])
        own = self.model.geom_bodyid == body
        return float((np.linalg.norm(self.model.geom_pos[own], axis=1) + self.model.geom_rbound[own]).max(initial=0.0))

    def _measure(self) -> float:
        mujoco.mj_kinematics(self.model, self._data)
        moving = self.model.body_weldid[self.model.geom_bodyid] != 0
        if not moving.any():
            return 1.0
        reach = self.model.geom_rbound[moving, None]
        low, high = self._data.geom_xpos[moving] - reach, self._data.geom_xpos[moving] + reach
        return float(np.linalg.norm(high.max(axis=0) - low.min(axis=0)))


def _name_columns(model: mujoco.MjModel) -> list[str]:
    ends = [*model.jnt_qposadr[1:], model.nq]
    names = []
    for index, (begin, end) in enumerate(zip(model.jnt_qposadr, ends, strict=True)):
        names += [model.joint(index).name or f"joint {index}"] * (end - begin)
    return names
