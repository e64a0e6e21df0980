"""From the robot's MJCF file and the ground to a compiled model."""

from pathlib import Path

import mujoco
import numpy as np

from mjtrain.config import EnvConfig, TerrainConfig
from mjtrain.engines.height_field import HeightField, make_height_field
from mjtrain.errors import RequestError

_BASE_M = 0.5
"""Thickness of the ground below its lowest point, in m."""


def load_model(config: EnvConfig) -> tuple[mujoco.MjModel, HeightField | None]:
    """Compile the robot on its ground, and return the ground's heights if it is generated.

    Raises:
        RequestError: The MJCF file is missing or is no valid model, or the ground cannot be generated.
    """
    height_field = make_height_field(config.terrain) if config.terrain.kind == "generated" else None
    try:
        if not Path(config.robot).is_file():
            raise ValueError("there is no such file")
        spec = mujoco.MjSpec.from_file(config.robot)
        if config.terrain.kind != "robot":
            _add_ground(spec, config.terrain, height_field)
        return spec.compile(), height_field
    except ValueError as error:
        raise RequestError(f"--env.robot {config.robot}: {error}") from error


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
