"""What the cameras of a config are in a model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import mujoco
import numpy as np

from mjtrain.config.env import CameraConfig, StreamName
from mjtrain.runtime.errors import RequestError

_MOST_CLASSES = 255
"""Classes are stored in a byte; 0 is the background."""


@dataclass(frozen=True, kw_only=True)
class ResolvedCamera:
    """A camera of the config, found in the model."""

    config: CameraConfig
    index: int
    class_of_geom: np.ndarray
    """Class of each geom, 0 for background. uint8, shape (ngeom,)."""

    @property
    def ratio(self) -> float:
        """Width of the image over its height."""
        return self.config.width / self.config.height


def check_cameras(model: mujoco.MjModel, cameras: Mapping[str, CameraConfig]) -> dict[str, ResolvedCamera]:
    """Find the cameras of a config in a model, without rendering anything."""
    found = {name: _resolve(model, name, camera) for name, camera in cameras.items()}
    _check_sensors(model, found)
    return found


def _check_sensors(model: mujoco.MjModel, cameras: Mapping[str, ResolvedCamera]) -> None:
    """Check that a camera with a sensor serves images of one ratio only, to which its sensor is stretched."""
    first: dict[int, tuple[str, ResolvedCamera]] = {}
    for name, camera in cameras.items():
        other, same = first.setdefault(camera.index, (name, camera))
        if model.cam_sensorsize[camera.index, 1] and camera.ratio != same.ratio:
            config = camera.config
            raise RequestError(
                f"--env.cameras.{name}.width {config.width}: the camera {model.camera(camera.index).name} has a sensor "
                f"(sensorsize), which is stretched to the {same.config.width} x {same.config.height} pixels of "
                f"{other}; give the same ratio to the height, which is {config.height}"
            )


def _resolve(model: mujoco.MjModel, name: str, camera: CameraConfig) -> ResolvedCamera:
    flag = f"--env.cameras.{name}"
    _check_values(flag, camera)
    wanted = camera.camera or name
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, wanted)
    if index < 0:
        known = ", ".join(model.camera(i).name for i in range(model.ncam) if model.camera(i).name) or "none"
        raise RequestError(f"{flag}.camera {wanted}: the robot has no such camera; it has {known}")
    _check_that_it_sees(model, flag, camera)
    return ResolvedCamera(config=camera, index=index, class_of_geom=_classes_of_geoms(model, flag, camera))


def _check_values(flag: str, camera: CameraConfig) -> None:
    """Check what needs no model, beyond the limits of the fields; a recorded config without a size is damaged."""
    for field in ("width", "height", "interval"):
        if (value := getattr(camera, field)) < 1:
            raise RequestError(f"{flag}.{field} {value}: must be at least 1")
    if not camera.streams or len(set(camera.streams)) < len(camera.streams):
        given = " ".join(camera.streams) or "(none)"
        known = ", ".join(get_args(StreamName))
        raise RequestError(f"{flag}.streams {given}: give one or more of {known}, each once")
    if not camera.near_m < camera.far_m:
        raise RequestError(
            f"{flag}.far-m {camera.far_m:g}: give a number above near_m, which is {camera.near_m:g}; what is beyond "
            "reads far_m"
        )
    if not camera.geom_groups:
        raise RequestError(f"{flag}.geom-groups (none): give one or more of 0 to {mujoco.mjNGROUP - 1}")
    if "segmentation" in camera.streams and not camera.classes:
        raise RequestError(f"{flag}.classes: segmentation needs classes, such as {flag}.classes.robot 'pole|cart'")
    if len(camera.classes) > _MOST_CLASSES:
        raise RequestError(f"{flag}.classes: {len(camera.classes)} classes; give at most {_MOST_CLASSES}")


def _check_that_it_sees(model: mujoco.MjModel, flag: str, camera: CameraConfig) -> None:
    """Check that there is anything to hit: the ray caster does not survive a world without geoms and flexes."""
    if model.nflex or np.isin(model.geom_group, camera.geom_groups).any():
        return
    given = " ".join(map(str, camera.geom_groups))
    groups = ", ".join(map(str, sorted(set(model.geom_group.tolist())))) or "none, as it has no geoms"
    raise RequestError(f"{flag}.geom-groups {given}: has no geom of the robot, whose groups are {groups}")


def _classes_of_geoms(model: mujoco.MjModel, flag: str, camera: CameraConfig) -> np.ndarray:
    """Give each geom the first class that matches it or its body, if classes are shown."""
    found = np.zeros(model.ngeom, dtype=np.uint8)
    if "segmentation" not in camera.streams:
        return found
    visible = np.isin(model.geom_group, camera.geom_groups)
    for number, (label, patterns) in enumerate(camera.classes.items(), start=1):
        option = f"{flag}.classes.{label}"
        if not patterns:
            raise RequestError(f"{option}: give at least one regular expression over geoms and bodies")
        geoms = np.logical_or.reduce([_geoms_that_match(model, option, pattern) for pattern in patterns])
        if not (geoms & visible).any():
            groups = ", ".join(str(group) for group in sorted(set(model.geom_group[geoms].tolist())))
            raise RequestError(
                f"{option} {' '.join(patterns)}: the camera sees none of these geoms, which are in group {groups}; "
                f"add it to {flag}.geom-groups"
            )
        found[geoms & (found == 0)] = number
    return found


def _geoms_that_match(model: mujoco.MjModel, option: str, pattern: str) -> np.ndarray:
    """Return which geoms a pattern names, themselves or through their body. Shape (ngeom,)."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise RequestError(f"{option} {pattern}: is not a valid regular expression: {error}") from error
    geom_names = [model.geom(index).name for index in range(model.ngeom)]
    body_names = [model.body(index).name for index in range(model.nbody)]
    bodies = np.array([bool(name) and bool(expression.fullmatch(name)) for name in body_names])
    named = np.array([bool(name) and bool(expression.fullmatch(name)) for name in geom_names], dtype=bool)
    matched = named | bodies[model.geom_bodyid]
    if not matched.any():
        with_geoms = [name for index, name in enumerate(body_names) if name and model.body_geomnum[index]]
        geoms = ", ".join(filter(None, geom_names)) or "without names"
        raise RequestError(
            f"{option} {pattern}: matches no geom and no body with geoms; the robot has geoms {geoms} and bodies "
            f"{', '.join(with_geoms) or 'without names'}"
        )
    return matched
