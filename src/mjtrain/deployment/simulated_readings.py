"""What the simulated robot measures."""

import re
from typing import Any

import mujoco
import numpy as np

from mjtrain.deployment.robot import Named
from mjtrain.deployment.terms import HEIGHT_SCAN, find_base

Measured = dict[str, Any]
"""Arguments of `Readings`: positions, velocities, sensors and values, each by name."""

_FEET_M = 0.5
"""Distance from the base within which feet may be, to each side, in m."""


def take_default_pose(model: mujoco.MjModel, data: mujoco.MjData, metadata: dict[str, Any]) -> None:
    """Put the joints of a simulated robot into the default pose, and its base above the highest ground under it."""
    for joint, position in metadata["default_pose"].items():
        data.joint(joint).qpos[:] = position
    if (base := find_base(metadata)) is not None:
        pose = data.joint(base).qpos
        x, y = np.meshgrid(*(pose[axis] + np.linspace(-_FEET_M, _FEET_M, 21) for axis in (0, 1)))
        pose[2] += _HeightField(model, metadata).heights(x, y).max()


class SimulatedReadings:
    """Reads joints, the sensors that the policy's metadata names, and scans of the ground."""

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        metadata: dict[str, Any],
        noise: float,
        rng: np.random.Generator,
    ) -> None:
        """Find what is read; noise is a multiple of that in the training."""
        self._data, self._rng = data, rng
        self._joints = {name: data.joint(name) for name in metadata["default_pose"]}
        names = [model.sensor(index).name for index in range(model.nsensor) if model.sensor(index).name]
        wanted = set(metadata.get("sensors", names))
        self._sensors = {name: data.sensor(name) for name in names if name in wanted}
        self._scans = {
            term["name"]: term["params"] for term in metadata["observations"] if term.get("func") == HEIGHT_SCAN
        }
        self._field = _HeightField(model, metadata) if self._scans else None
        self._noise = self._find_noise(metadata, noise)

    def measure(self) -> tuple[Measured, Measured]:
        """Return the readings with noise, and the same without, as `Readings` takes them."""
        truth: dict[str, Named] = {
            "positions": {name: joint.qpos.copy() for name, joint in self._joints.items()},
            "velocities": {name: joint.qvel.copy() for name, joint in self._joints.items()},
            "sensors": {name: sensor.data.copy() for name, sensor in self._sensors.items()},
            "values": {name: self._scan(params) for name, params in self._scans.items()},
        }
        noisy = {
            kind: {name: self._add_noise(kind, name, value) for name, value in named.items()}
            for kind, named in truth.items()
        }
        return noisy, truth

    def _add_noise(self, kind: str, name: str, value: np.ndarray) -> np.ndarray:
        largest = self._noise.get((kind, name), 0.0)
        return value + self._rng.uniform(-largest, largest, value.shape) if largest else value

    def _find_noise(self, metadata: dict[str, Any], factor: float) -> dict[tuple[str, str], float]:
        """Return the largest noise of each reading, from the terms that show it unchanged."""
        found: dict[tuple[str, str], float] = {}
        joints = [joint for joint, part in self._joints.items() if part.qpos.size == 1]  # hinges and slides
        for term in metadata["observations"]:
            name, params = term.get("func", "").rpartition(":")[2], term.get("params", {})
            kind, key, known = ("velocities" if "vel" in name else "positions"), "joint", joints
            if name in ("sensor", "sensors"):
                kind, key, known = "sensors", "sensor", list(self._sensors)
            alone = [re.escape(params[key])] if name in ("joint_pos", "joint_vel", "sensor") and key in params else []
            patterns = params.get(f"{key}s") or alone
            parts = [(kind, part) for part in known if any(re.fullmatch(pattern, part) for pattern in patterns)]
            if term["name"] in self._scans:
                parts = [("values", term["name"])]
            for part in parts:
                unit = 1.0
                if name == "joint_pos_limit_normalized" and "joints" in metadata:  # or the observer asks for them
                    low, high = metadata["joints"][part[1]]["range"]
                    unit = (high - low) / 2
                found[part] = max(found.get(part, 0.0), factor * unit * float(term.get("noise", 0.0)))
        return found

    def _scan(self, params: dict[str, Any]) -> np.ndarray:
        """Return the height of the body above a grid of points that turns with it, as `height_scan` does."""
        assert self._field is not None
        pose = self._joints[params["joint"]].qpos
        w, x, y, z = pose[3:]
        heading = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        ahead, left = np.meshgrid(np.linspace(*params["x"]), np.linspace(*params["y"]))
        cosine, sine = np.cos(heading), np.sin(heading)
        world_x = pose[0] + cosine * ahead - sine * left
        world_y = pose[1] + sine * ahead + cosine * left
        return pose[2] - params["offset"] - self._field.heights(world_x.ravel(), world_y.ravel())


class _HeightField:
    """The generated ground of a model, which is its last height field, or the plane z = 0."""

    def __init__(self, model: mujoco.MjModel, metadata: dict[str, Any]) -> None:
        self._heights: np.ndarray | None = None
        if metadata.get("ground") == "generated" and model.nhfield:
            is_field = model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD
            geom = int(np.flatnonzero(is_field & (model.geom_dataid == model.nhfield - 1))[0])
            self._half = model.hfield_size[-1, :2]
            self._heights = model.hfield(model.nhfield - 1).data * model.hfield_size[-1, 2] + model.geom_pos[geom, 2]

    def heights(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the heights at points: each cell is two triangles, divided from low x and y to high x and y."""
        if self._heights is None:
            return np.zeros_like(x)
        rows, columns = self._heights.shape
        column = ((x + self._half[0]) * (columns - 1) / (2 * self._half[0])).clip(0, columns - 1.001)
        row = ((y + self._half[1]) * (rows - 1) / (2 * self._half[1])).clip(0, rows - 1.001)
        left, bottom = column.astype(int), row.astype(int)
        u, v = column - left, row - bottom
        here, right = self._heights[bottom, left], self._heights[bottom, left + 1]
        above, both = self._heights[bottom + 1, left], self._heights[bottom + 1, left + 1]
        lower, upper = here + u * (right - here) + v * (both - right), here + v * (above - here) + u * (both - above)
        return np.where(u >= v, lower, upper)
