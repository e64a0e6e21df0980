"""A translucent second robot in a scene, such as what it should do beside what it does."""

import copy

import mujoco
import numpy as np

from mjtrain.sim.drawing.scene import list_visible
from mjtrain.sim.robots.start import find_root

COLOR = (0.2, 0.75, 0.5, 0.3)
"""Red, green, blue and opacity."""


def list_ghost_geoms(model: mujoco.MjModel) -> dict[int, list[int]]:
    """Return the visible geoms of the robot by body: what has its free joint, and what hangs from it."""
    root = find_root(model)
    found: dict[int, list[int]] = {}
    for geom in list_visible(model):
        body = int(model.geom_bodyid[geom])
        if root >= 0 and model.body_rootid[body] == model.jnt_bodyid[root]:
            found.setdefault(body, []).append(geom)
    return found


class GhostGeoms:
    """Adds a ghost to scenes of a model. Nothing but these scenes changes."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = copy.copy(model)
        self._model.geom_matid[:] = -1
        self._model.geom_rgba[:] = 0.0  # what is not visible at all is not added
        for geoms in list_ghost_geoms(model).values():
            self._model.geom_rgba[geoms] = COLOR
        self._data = mujoco.MjData(self._model)
        self._option = mujoco.MjvOption()
        self._option.flags[:] = 0
        self._option.sitegroup[:] = 0

    def add(self, scene: mujoco.MjvScene, qpos: np.ndarray) -> None:
        """Add a ghost in a pose, qpos of shape (nq,), to what a scene already shows."""
        self._data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, self._data)
        dynamic = int(mujoco.mjtCatBit.mjCAT_DYNAMIC)
        mujoco.mjv_addGeoms(self._model, self._data, self._option, mujoco.MjvPerturb(), dynamic, scene)
