"""Readings of the worlds, for observation terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.config import StreamName
from mjtrain.mdp import mirrors
from mjtrain.runtime.deferred_imports import torch

if TYPE_CHECKING:
    from mjtrain.env.env import Env


@mirrors.mirrored(mirrors.joint_positions)
def joint_pos(env: Env, *, joint: str) -> torch.Tensor:
    """Position of a joint, in m or rad. Shape (num_envs, 1) for slides and hinges."""
    return env.qpos(joint)


@mirrors.mirrored(mirrors.joint_velocities)
def joint_vel(env: Env, *, joint: str) -> torch.Tensor:
    """Velocity of a joint, in m/s or rad/s. Shape (num_envs, 1) for slides and hinges."""
    return env.qvel(joint)


@mirrors.mirrored(mirrors.cosine_and_sine)
def joint_cos_sin(env: Env, *, joint: str) -> torch.Tensor:
    """Cosine and sine of the angle of a hinge, which are continuous where the angle wraps. Shape (num_envs, 2)."""
    env.engine.layout.qpos.check_scalar(joint)
    angle = env.qpos(joint)
    return torch.cat([angle.cos(), angle.sin()], dim=1)


@mirrors.mirrored(mirrors.joint_positions)
def joint_pos_rel(env: Env, *, joints: tuple[str, ...], biased: bool = False) -> torch.Tensor:
    """Positions of slides and hinges relative to the default pose.

    In m or rad, in the order of the model. Shape (num_envs, num_joints).

    Args:
        biased: As encoders read them, with the offsets of `randomization.encoder_bias`.
    """
    layout = env.engine.layout
    return joint_positions(env, joints=joints, biased=biased) - layout.default_qpos[layout.qpos.select(joints)]


@mirrors.mirrored(mirrors.joint_positions)
def joint_positions(env: Env, *, joints: tuple[str, ...], biased: bool = False) -> torch.Tensor:
    """Positions of slides and hinges as the MJCF file counts them; `joint_pos_rel` counts from the default pose.

    In m or rad, in the order of the model. Shape (num_envs, num_joints).

    Args:
        biased: As encoders read them, with the offsets of `randomization.encoder_bias`.
    """
    positions = env.qpos(joints)
    return positions + env.encoder_bias[:, env.engine.layout.qpos.select(joints)] if biased else positions


@mirrors.mirrored(mirrors.joint_positions)
def joint_pos_limit_normalized(env: Env, *, joints: tuple[str, ...]) -> torch.Tensor:
    """Positions of slides and hinges within their ranges in the MJCF file: -1 at the lower end, 1 at the upper end.

    Shape (num_envs, num_joints).

    Args:
        joints: Regular expressions over slides and hinges that have a range.
    """
    low, high = env.engine.layout.joint_limits(joints)
    return (2 * env.qpos(joints) - low - high) / (high - low)


@mirrors.mirrored(mirrors.joint_velocities)
def joint_velocities(env: Env, *, joints: tuple[str, ...]) -> torch.Tensor:
    """Velocities of slides and hinges, in m/s or rad/s. Shape (num_envs, num_joints)."""
    return env.qvel(joints)


@mirrors.mirrored(mirrors.sensor_readings)
def sensor(env: Env, *, sensor: str) -> torch.Tensor:
    """Reading of a sensor, in its own unit and frame. Shape (num_envs, size)."""
    return env.sensor(sensor)


@mirrors.mirrored(mirrors.sensor_readings)
def sensors(env: Env, *, sensors: tuple[str, ...]) -> torch.Tensor:
    """Readings of several sensors side by side. Shape (num_envs, size)."""
    return env.sensor(sensors)


@mirrors.mirrored(mirrors.commands)
def command(env: Env, *, command: str) -> torch.Tensor:
    """Present value of a command term. Shape (num_envs, size)."""
    return env.command(command)


@mirrors.mirrored(mirrors.actions)
def last_action(env: Env) -> torch.Tensor:
    """Last output of the policy, zero when an episode starts. Shape (num_envs, num_actions)."""
    return env.action


@mirrors.mirrored(mirrors.actions)
def ctrl_rel(env: Env) -> torch.Tensor:
    """Controls that the policy asks for, less their offsets; what relative actions add up to.

    In the order of the actions and the actuators' units; without the noise of actions. Shape (num_envs, num_actions).
    """
    return env.ctrl_displacements()


def camera(env: Env, *, camera: str, stream: StreamName | None = None, one_hot: bool = True) -> torch.Tensor:
    """Last frame of a camera, for a group of images.

    Args:
        camera: Name in `EnvConfig.cameras`.
        stream: rgb; depth, as a fraction of `CameraConfig.far_m`; or segmentation. None: all streams of the camera.
        one_hot: Segmentation as one channel per class, 255 where a pixel is of it and all 0 for the background. False:
            one channel of float32 with the index of the class, 0 for the background.

    Returns:
        Shape (num_envs, channels, height, width): rgb has 3 channels of uint8, depth one of float32, segmentation one
        per class of uint8, or one of float32. Streams of both types together are float32: value / 255 of uint8.
    """
    streams = env.cameras.config(camera).streams if stream is None else (stream,)
    images = [_read_stream(env, camera, name, one_hot) for name in streams]
    if len({image.dtype for image in images}) > 1:
        images = [image / 255.0 if image.dtype == torch.uint8 else image for image in images]
    return torch.cat(images, dim=1) if len(images) > 1 else images[0]


def _read_stream(env: Env, camera: str, stream: StreamName, one_hot: bool) -> torch.Tensor:
    image, config = env.cameras.images(camera, stream), env.cameras.config(camera)
    if stream == "depth":
        return image / config.far_m
    if stream == "segmentation":
        if not one_hot:
            return image.float()
        classes = torch.arange(1, len(config.classes) + 1, dtype=torch.uint8, device=env.device)
        return (image == classes[:, None, None]).to(torch.uint8) * 255
    return image


@mirrors.mirrored(mirrors.height_grid)
def height_scan(
    env: Env, *, joint: str, x: tuple[float, float, int], y: tuple[float, float, int], offset: float
) -> torch.Tensor:
    """Height of a free body above points of the ground around it, minus an offset, in m.

    Args:
        joint: Name of the free joint.
        x: First and last point ahead of the body in m, and the number of points. The grid turns with the heading.
        y: First and last point to the left of the body, likewise.
        offset: In m. With the height of the standing body, flat ground reads zero.

    Returns:
        Shape (num_envs, x[2] * y[2]), rows of equal y.
    """
    env.engine.layout.qpos.check_free(joint)
    pose = env.qpos(joint)
    return pose[:, 2:3] - offset - env.ground.scan(pose, x, y)
