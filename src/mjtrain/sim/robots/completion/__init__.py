"""Completes a robot as its config says, between reading its file and compiling it."""

from typing import Any

from mjtrain.config import MountedCameraConfig, RobotConfig
from mjtrain.config.limits import find_type_problems
from mjtrain.runtime.errors import refuse
from mjtrain.sim.robots.completion.actuators import replace_actuators
from mjtrain.sim.robots.completion.keyframes import Controls, forget_controls, set_keyframes
from mjtrain.sim.robots.completion.locks import lock_joints
from mjtrain.sim.robots.completion.names import rename_parts
from mjtrain.sim.robots.completion.parts import (
    add_cameras,
    add_lights,
    add_sites,
    change_geoms,
    exclude_self_collision,
    free_name,
    set_options,
)
from mjtrain.sim.robots.completion.sensors import add_sensors


def complete_robot(spec: Any, config: RobotConfig) -> None:
    """Change an `mujoco.MjSpec` in place. A config that only names a file changes nothing but nameless actuators.

    Raises:
        RequestError: A value is of another type than its field, a camera is out of the limits of its fields, or the
            robot has no part of a name; the message names the flag and what would be right.
        ValueError: MuJoCo cannot compile the result.
    """
    refuse(find_type_problems(RobotConfig, config, "--env.robot", limits=False))  # a run may have recorded others
    refuse(find_type_problems(dict[str, MountedCameraConfig], config.cameras, "--env.robot.cameras"))
    rename_parts(spec, config.names)
    if config.timestep is not None:
        spec.option.timestep = config.timestep
    set_options(spec, config.options)
    change_geoms(spec, config.geoms)
    if not config.self_collision:
        exclude_self_collision(spec)
    add_sites(spec, config.sites)
    controls: Controls = {}
    if config.actuators or config.locked_joints:  # which tell keyframes apart by their names
        for number, key in enumerate(spec.keys):
            key.name = key.name or free_name(f"key_{number}", spec.keys)
    if config.actuators:
        controls = forget_controls(spec)
        replaced = replace_actuators(spec, config.actuators)
        controls = {
            key: {name: value for name, value in values.items() if name not in replaced}
            for key, values in controls.items()
        }
    add_sensors(spec, config.sensors)
    set_keyframes(spec, config, controls)
    if config.locked_joints:
        lock_joints(spec, config.locked_joints)
    add_cameras(spec, config.cameras)
    add_lights(spec, config.lights)
