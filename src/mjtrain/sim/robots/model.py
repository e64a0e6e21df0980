"""From a robot's config and the ground to a compiled model."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mjtrain.config import EnvConfig, RobotConfig, TerrainConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.completion import complete_robot
from mjtrain.sim.robots.height_field import HeightField, make_height_field

_BASE_M = 0.5
"""Thickness of the ground below its lowest point, in m."""


def load_model(config: EnvConfig) -> tuple[mujoco.MjModel, HeightField | None]:
    """Compile the robot, completed as its config says, on its ground; return the ground's heights if it is generated.

    Both engines, viewers, videos, exports and replays get their model here.

    Raises:
        RequestError: The robot is missing or is no valid model, its config names what it does not have, or the ground
            cannot be generated.
    """
    height_field = make_height_field(config.terrain) if config.terrain.kind == "generated" else None
    spec = open_robot(config.robot)
    try:
        complete_robot(spec, config.robot)
        if config.terrain.kind != "robot":
            _add_ground(spec, config.terrain, height_field)
        return spec.compile(), height_field
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"--env.robot {config.robot.label}: {error}") from error


def open_robot(robot: RobotConfig) -> Any:
    """Return the robot as it is without its completion, as a new `mujoco.MjSpec`.

    Raises:
        RequestError: There is no such file, it is no valid model, or the function fails or returns something else.
    """
    flag = f"--env.robot {robot.label}"
    try:
        if robot.file or robot.spec is None:
            if not Path(robot.file).is_file():
                raise ValueError("there is no such file")
            return mujoco.MjSpec.from_file(robot.file)
        spec = robot.spec()
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"{flag}: {error}") from error
    except Exception as error:  # of the user's function
        raise RequestError(f"{flag}: {type(error).__name__}: {error}") from error
    if not isinstance(spec, mujoco.MjSpec):
        raise RequestError(f"{flag}: the function returned {type(spec).__name__}; it must return an mujoco.MjSpec")
    return spec


def _add_ground(spec: mujoco.MjSpec, config: TerrainConfig, height_field: HeightField | None) -> None:
    """Put a geom named ground into the world."""
    texture = spec.add_texture(
        name="ground",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=[0.32, 0.36, 0.4],
        rgb2=[0.26, 0.3, 0.34],
        width=256,
        height=256,
    )
    material = spec.add_material(name="ground", texrepeat=[1, 1], texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = texture.name
    ground = spec.worldbody.add_geom(name="ground", material=material.name, friction=[config.friction, 0.005, 0.0001])
    ground.contype = ground.conaffinity = 1  # whatever the robot's own defaults are
    ground.rgba = [1, 1, 1, 1]
    if height_field is None:
        ground.type = mujoco.mjtGeom.mjGEOM_PLANE
        ground.size = [0, 0, 0.05]
        return
    rows, columns = height_field.heights.shape
    highest = max(float(height_field.heights.max()), 1e-3)
    spec.add_hfield(
        name="ground",
        nrow=rows,
        ncol=columns,
        size=[*height_field.half_size_m, highest, _BASE_M],
        userdata=(height_field.heights / highest).astype(np.float32).ravel(),
    )
    ground.type = mujoco.mjtGeom.mjGEOM_HFIELD
    ground.hfieldname = "ground"
