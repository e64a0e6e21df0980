"""The built-in observation terms of `mjtrain.mdp`, from readings instead of worlds. See docs/terms.md for each."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mjtrain.deployment.robot import Named, Readings
from mjtrain.deployment.rotations import matrix, rotation_vector, turn
from mjtrain.runtime.errors import RequestError, summarise

STANDS_BELOW = 0.05
"""Norm of a velocity command below which it is to stand, as in `mdp.velocity.moving`."""

STOPPED_BELOW = 0.2
"""Planar velocity in m/s below which a robot has stopped, as in `mdp.gait`."""

HEIGHT_SCAN = "mjtrain.mdp.observations:height_scan"

REPORTED_BY_ROBOT = {
    HEIGHT_SCAN: "the ground around the robot is measured by a sensor or a map",
    "mjtrain.mdp.observations:camera": "images come from a camera's driver",
}
"""Built-in terms that no joint or sensor of the metadata gives, and why."""


@dataclass(kw_only=True)
class Scene:
    """What terms are computed from."""

    metadata: dict[str, Any]
    """Of the policy."""

    readings: Readings
    commands: Named
    action: np.ndarray
    """Last output of the policy."""

    displacements: np.ndarray
    """Controls minus their offsets, by output."""

    step: int
    """Control periods since the policy began."""

    wanted: Named = field(default_factory=dict)
    """Commands as they were asked for, before the limit on how fast they change. Only errors read them."""

    def joints(self, patterns: Iterable[str]) -> list[str]:
        """Return the hinges and slides that expressions match, in the order of the model."""
        pose, patterns = self.metadata["default_pose"], tuple(patterns)
        return [
            name
            for name, position in pose.items()
            if len(position) == 1 and any(re.fullmatch(pattern, name) for pattern in patterns)
        ]

    def qpos(self, joint: str) -> np.ndarray:
        """Return the position of a joint."""
        return _read(self.readings.positions, joint, "position of joint")

    def qvel(self, joint: str) -> np.ndarray:
        """Return the velocity of a joint."""
        return _read(self.readings.velocities, joint, "velocity of joint")

    def sensor(self, name: str) -> np.ndarray:
        """Return what a sensor reads."""
        return _read(self.readings.sensors, name, "sensor")

    def sensors(self, patterns: Iterable[str]) -> np.ndarray:
        """Return the readings of the sensors that expressions match, expression by expression."""
        known = self.metadata.get("sensors") or self.readings.sensors
        names = dict.fromkeys(name for pattern in patterns for name in known if re.fullmatch(pattern, name))
        return np.concatenate([self.sensor(name) for name in names])

    def axes(self, sensor: str | None) -> np.ndarray:
        """Return the rotation matrix of the frame that a framequat sensor is on, or of the world."""
        return np.eye(3) if sensor is None else matrix(self.sensor(sensor))

    def command(self, params: dict[str, Any]) -> np.ndarray:
        """Return the command that a term names."""
        return _read(self.commands, params["command"], "command")

    def limits(self, joint: str) -> tuple[float, float]:
        """Return the range of a joint."""
        bounds = self.metadata.get("joints", {}).get(joint, {}).get("range")
        if bounds is None:
            raise RequestError(f"the metadata gives no range of joint {joint}; export the policy again")
        return bounds[0], bounds[1]


Term = Callable[[Scene, dict[str, Any]], np.ndarray]


def _read(values: Named, name: str, what: str) -> np.ndarray:
    try:
        return values[name]
    except KeyError:
        raise RequestError(f"the robot does not report the {what} {name}") from None


def _positions(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    return np.concatenate([scene.qpos(name) for name in scene.joints(params["joints"])])


def _positions_from_home(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    pose = scene.metadata["default_pose"]
    return np.concatenate([scene.qpos(name) - pose[name] for name in scene.joints(params["joints"])])


def _positions_in_range(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    low, high = np.array([scene.limits(name) for name in scene.joints(params["joints"])]).T
    return (2 * _positions(scene, params) - low - high) / (high - low)


def _velocities(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    return np.concatenate([scene.qvel(name) for name in scene.joints(params["joints"])])


def _cosine_and_sine(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    angle = scene.qpos(params["joint"])[0]
    return np.array([np.cos(angle), np.sin(angle)])


def _base_lin_vel(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    return matrix(scene.qpos(params["joint"])[3:]).T @ scene.qvel(params["joint"])[:3]


def _base_ang_vel(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    velocity = scene.qvel(params["joint"])
    return velocity[3:] if len(velocity) > 1 else velocity


def _projected_gravity(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    pose = scene.qpos(params["joint"])
    return np.array([np.sin(pose[0]), -np.cos(pose[0])]) if len(pose) == 1 else -matrix(pose[3:])[2]


def _planar_lin_vel(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    x, z = scene.qvel(params["x_joint"])[0], scene.qvel(params["z_joint"])[0]
    cosine, sine = _cosine_and_sine(scene, {"joint": params["pitch_joint"]})
    return np.array([x * cosine - z * sine, x * sine + z * cosine])


def _base_height(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    pose = scene.qpos(params["joint"])
    if len(pose) > 1 and scene.metadata.get("ground") == "generated":
        raise RequestError("the height above uneven ground cannot be computed from joints: report it as a value")
    return pose[:1] if len(pose) == 1 else pose[2:3]


def _foot_heights(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    if scene.metadata.get("ground") == "generated":
        raise RequestError("heights above uneven ground cannot be computed from sensors: report them as a value")
    return scene.sensors(params["sensors"]).reshape(-1, 3)[:, 2] - params.get("radius_m", 0.0)


def _clock(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    angle = 2 * np.pi * params["frequency_hz"] * scene.metadata["control_period_s"] * scene.step
    steps = np.square(scene.command(params)[:3]).sum() > STANDS_BELOW**2
    if (sensor := params.get("velocity_sensor")) is not None:
        steps |= np.square(scene.sensor(sensor)[:2]).sum() > params.get("stopped_below", STOPPED_BELOW) ** 2
    return float(steps) * np.array([np.sin(angle), np.cos(angle)])


def _place(scene: Scene, params: dict[str, Any], kind: str) -> np.ndarray:
    """Where the object or the tool is for which a place is commanded; the quaternion is last."""
    return scene.qpos(params["object"]) if "object" in params else scene.sensor(params[f"{kind}_sensor"])


def _position_error(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    return scene.command(params)[:3] - _place(scene, params, "position")[:3]


def _missing_rotation(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    return turn(_place(scene, params, "orientation")[-4:], scene.command(params)[-4:])


def _orientation_error(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    return rotation_vector(_missing_rotation(scene, params))


def _planar_error(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    return scene.command(params)[:2] - scene.sensor(params["position_sensor"])[:2]


def _joint_error(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    return scene.command(params) - _positions(scene, params)


def _seen_axes(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    """Axes of an object in the frame of a tool or palm: the columns of a matrix."""
    return scene.axes(params.get("orientation_sensor")).T @ matrix(scene.qpos(params["object"])[3:])


def _position_in(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    offset = scene.qpos(params["object"])[:3] - scene.sensor(params["position_sensor"])
    return scene.axes(params.get("orientation_sensor")).T @ offset


def _cube_orientation_in(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    x, y, z = _seen_axes(scene, params)  # what is summed over are the three axes of the cube
    own = [(axis**4).sum() - 0.6 for axis in (x, y, z)]
    return 2.5 * np.array([*own, x**3 @ y, y**3 @ x, x**3 @ z, z**3 @ x, y**3 @ z, z**3 @ y])


def _linear_velocity_in(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    return scene.axes(params.get("orientation_sensor")).T @ scene.qvel(params["object"])[:3]


def _angular_velocity_in(scene: Scene, params: dict[str, Any]) -> np.ndarray:
    return _seen_axes(scene, params) @ scene.qvel(params["object"])[3:]  # it is in the frame of the object


TERMS: dict[str, Term] = {
    f"mjtrain.mdp.{name}": term
    for name, term in {
        "observations:joint_pos": lambda scene, params: scene.qpos(params["joint"]),
        "observations:joint_vel": lambda scene, params: scene.qvel(params["joint"]),
        "observations:joint_cos_sin": _cosine_and_sine,
        "observations:joint_pos_rel": _positions_from_home,
        "observations:joints_from_home": _positions_from_home,  # in exports of earlier versions
        "observations:joint_positions": _positions,
        "observations:joint_pos_limit_normalized": _positions_in_range,
        "observations:joint_velocities": _velocities,
        "observations:sensor": lambda scene, params: scene.sensor(params["sensor"]),
        "observations:sensors": lambda scene, params: scene.sensors(params["sensors"]),
        "observations:command": lambda scene, params: scene.command(params),
        "observations:last_action": lambda scene, params: scene.action,  # noqa: ARG005
        "observations:ctrl_rel": lambda scene, params: scene.displacements,  # noqa: ARG005
        "root:base_lin_vel": _base_lin_vel,
        "root:base_ang_vel": _base_ang_vel,
        "root:projected_gravity": _projected_gravity,
        "root:planar_lin_vel": _planar_lin_vel,
        "root:base_height": _base_height,
        "gait:clock": _clock,
        "gait:foot_heights": _foot_heights,
        "reach:position_error": _position_error,
        "reach:orientation_error": _orientation_error,
        "objects:position_error": _position_error,
        "objects:orientation_error": _orientation_error,
        "objects:remaining_rotation": lambda scene, params: matrix(_missing_rotation(scene, params))[:, :2].T.ravel(),
        "objects:position_in": _position_in,
        "objects:orientation_in": lambda scene, params: _seen_axes(scene, params)[:, :2].T.ravel(),
        "objects:cube_orientation_in": _cube_orientation_in,
        "objects:linear_velocity_in": _linear_velocity_in,
        "objects:angular_velocity_in": _angular_velocity_in,
        "targets:planar_error": _planar_error,
        "targets:joint_error": _joint_error,
    }.items()
}
"""By the name of the function in the metadata."""

ERRORS: dict[str, Term] = {
    f"mjtrain.mdp.{name}": error
    for name, error in {
        "velocity:lin_vel_xy_error": lambda scene, params: (
            _read(scene.wanted, params["command"], "command")[:2] - scene.sensor(params["sensor"])[:2]
        ),
        "velocity:ang_vel_z_error": lambda scene, params: scene.command(params)[2] - scene.sensor(params["sensor"])[2],
        "objects:distance": _position_error,
        "objects:angle": _orientation_error,
        "reach:distance": _position_error,
        "reach:angle": _orientation_error,
        "targets:planar_distance": _planar_error,
        "targets:joint_distance": _joint_error,
    }.items()
}
"""Differences whose length is the distance from a command, by the name of the function of an `ErrorTerm`."""


def compute(functions: Mapping[str, Term], row: dict[str, Any], scene: Scene) -> np.ndarray:
    """Compute an observation, or an error of a command, that a row of the metadata describes."""
    try:
        return functions[row["func"]](scene, row["params"])
    except RequestError:
        raise
    except (LookupError, TypeError, ValueError, re.error) as error:
        raise RequestError(
            f"{row['func']}: its params in the metadata, or the robot's readings, do not fit this term "
            f"({summarise(error)})"
        ) from error


def find_base(metadata: dict[str, Any]) -> str | None:
    """Return the free joint of the robot; in exports of earlier versions one that a term of a root or a scan reads."""
    if "base" in metadata:
        return metadata["base"]
    for term in metadata["observations"]:
        if term.get("func", "").startswith(("mjtrain.mdp.root:", HEIGHT_SCAN)) and "joint" in term["params"]:
            joint = term["params"]["joint"]
            if len(metadata["default_pose"].get(joint, ())) == 7:
                return joint
    return None
