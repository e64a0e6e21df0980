"""From a robot's config and the ground to a compiled model."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mjtrain.config import EnvConfig, RobotConfig, TerrainConfig
from mjtrain.config.limits import find_type_problems
from mjtrain.runtime.errors import RequestError, StoppedError, message_of, refuse
from mjtrain.runtime.files import find_file_problem
from mjtrain.sim.robots.completion import complete_robot
from mjtrain.sim.robots.completion.parts import free_name
from mjtrain.sim.robots.height_field import HeightField, make_height_field
from mjtrain.sim.robots.robot_bundle import check_loops

_BASE_M = 0.5
"""Thickness of the ground below its lowest point, in m."""

FatalError: type[Exception] = mujoco.FatalError
"""MuJoCo cannot compute a model, for example because its file gives it too little memory."""

_REMEMBERS = {"sleep": mujoco.mjtEnableBit.mjENBL_SLEEP, "ipc": mujoco.mjtEnableBit.mjENBL_IPC}


def load_model(config: EnvConfig) -> mujoco.MjModel:
    """Compile the robot, completed as its config says, on its ground.

    Both engines, viewers, videos, exports and replays get their model here.
    """
    # Without limits, because a run may have recorded others.
    refuse(find_type_problems(TerrainConfig, config.terrain, "--env.terrain", limits=False))
    height_field = make_height_field(config.terrain) if config.terrain.kind == "generated" else None
    spec = open_robot(config.robot)
    try:
        complete_robot(spec, config.robot)
        if config.terrain.kind != "robot":
            _add_ground(spec, config.terrain, height_field)
        model = spec.compile()
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"--env.robot {config.robot.label}: {' '.join(str(error).split())}") from error
    if not 1e-6 <= model.opt.timestep < np.inf:  # MuJoCo compiles any number
        raise RequestError(
            f"--env.robot {config.robot.label}: its timestep is {model.opt.timestep:g} s; give at least 1e-06, as with "
            "--env.robot.timestep 0.002"
        )
    return model


def robot_only(robot: RobotConfig) -> EnvConfig:
    """Return an environment that is nothing but a robot on its own ground, for what compiles and shows models."""
    return EnvConfig(
        robot=robot, decimation=1, episode_length_s=1.0, actions={}, observations={}, rewards={}, terminations={}
    )


def check_flags(model: mujoco.MjModel, flag: str) -> None:
    """Raise a RequestError if the model enables what MuJoCo remembers outside the state of a world.

    A reset of some worlds and a checkpoint would not cover that.
    """
    for name, bit in _REMEMBERS.items():
        if model.opt.enableflags & bit:
            raise RequestError(
                f'{flag}: <flag {name}="enable"/> is not supported, because MuJoCo then remembers more than the state '
                f"of a world; add --env.robot.options.disable {name}"
            )


def write_no_log() -> None:
    """Have MuJoCo write its warnings to no MUJOCO_LOG.TXT in this process."""
    config = mujoco.MjLogConfig.get()
    config.logto_file = False
    mujoco.MjLogConfig.set(config)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keep MuJoCo from printing warnings for the length of a with block.

    Those about the model itself, which are raised whenever it is compiled, are left out too.
    """
    config = mujoco.MjLogConfig.get()
    before, config.logto_console = config.logto_console, False
    mujoco.MjLogConfig.set(config)
    try:
        with warnings.catch_warnings():
            words = r"(?s)compiler attribute .* deprecated|.*\nElement name "  # said by the checks
            warnings.filterwarnings("ignore", words, UserWarning)
            yield
    finally:
        config = mujoco.MjLogConfig.get()
        config.logto_console = before
        mujoco.MjLogConfig.set(config)


def open_robot(robot: RobotConfig) -> Any:
    """Return the robot without its completion, as a new `mujoco.MjSpec`."""
    flag = f"--env.robot {robot.label}"
    try:
        if robot.file or robot.spec is None:
            if not robot.file:
                raise ValueError("no robot is given; give an MJCF file")
            if problem := find_file_problem(Path(robot.file)):
                raise ValueError(problem)
            check_loops(Path(robot.file))  # at a model that attaches itself, MuJoCo crashes
            return mujoco.MjSpec.from_file(robot.file)
        spec = robot.spec()
    except (RequestError, StoppedError):
        raise
    except ValueError as error:
        raise RequestError(f"{flag}: {' '.join(str(error).split())}") from error
    except (Exception, SystemExit) as error:  # of the user's function
        raise RequestError(f"{flag}: {type(error).__name__}: {message_of(error)}") from error
    if not isinstance(spec, mujoco.MjSpec):
        raise RequestError(f"{flag}: the function returned {type(spec).__name__}; it must return an mujoco.MjSpec")
    return spec.copy()  # the function may return the same one again, which must not be complete already


def _add_ground(spec: mujoco.MjSpec, config: TerrainConfig, height_field: HeightField | None) -> None:
    """Put a geom into the world, named ground unless the robot has a geom of this name."""
    texture = spec.add_texture(
        name=free_name("ground", spec.textures),
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=[0.32, 0.36, 0.4],
        rgb2=[0.26, 0.3, 0.34],
        width=256,
        height=256,
    )
    material = spec.add_material(name=free_name("ground", spec.materials), texrepeat=[1, 1], texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = texture.name
    ground = spec.worldbody.add_geom(
        name=free_name("ground", spec.geoms), material=material.name, friction=[config.friction, 0.005, 0.0001]
    )
    ground.contype = ground.conaffinity = 1  # whatever the robot's own defaults are
    ground.group, ground.rgba = 0, [1, 1, 1, 1]
    ground.pos, ground.quat, ground.alt.type = [0, 0, 0], [1, 0, 0, 0], mujoco.mjtOrientation.mjORIENTATION_QUAT
    ground.fromto = [np.nan] * 6
    if height_field is None:
        ground.type = mujoco.mjtGeom.mjGEOM_PLANE
        ground.size = [0, 0, 0.05]
        return
    rows, columns = height_field.heights.shape
    highest = max(float(height_field.heights.max()), 1e-3)
    ground.hfieldname = free_name("ground", spec.hfields)
    spec.add_hfield(
        name=ground.hfieldname,
        nrow=rows,
        ncol=columns,
        size=[*height_field.half_size_m, highest, _BASE_M],
        userdata=(height_field.heights / highest).astype(np.float32).ravel(),
    )
    ground.type = mujoco.mjtGeom.mjGEOM_HFIELD


def list_grounds(model: mujoco.MjModel) -> list[str]:
    """Return the names of the planes and height fields of the world that face upwards and collide, in their order."""
    kinds = (mujoco.mjtGeom.mjGEOM_PLANE.value, mujoco.mjtGeom.mjGEOM_HFIELD.value)
    return [
        model.geom(geom).name or "(no name)"
        for geom in range(model.ngeom)
        if model.geom_bodyid[geom] == 0
        and model.geom_type[geom] in kinds
        and (model.geom_contype[geom] or model.geom_conaffinity[geom])
        and np.square(model.geom_quat[geom][1:3]).sum() < 0.25  # less than 60 degrees from level
    ]
