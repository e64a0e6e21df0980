"""Moving objects: goal poses, current poses, success and loss.

An object is a free body of the MJCF file; a parameter `object` is the name of its free joint. A commanded place is a
position in m, a quaternion (w, x, y, z), or both, in the world's frame: 3, 4 or 7 columns. `place_command`,
`orientation_command` and `reach.pose_command` draw them. For the height of an object above the ground there is
`root.base_height`, whose joint may be that of an object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mjtrain.config.limits import MORE_THAN_0, Bounds, OrientationSensorOrNone, PositionSensor, Positive
from mjtrain.env.sampling import commanded_orientation, commanded_position, uniform
from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from mjtrain.env.env import Env
    from mjtrain.env.events import Worlds


def place_command(env: Env, *, x: Bounds, y: Bounds, z: Bounds) -> torch.Tensor:
    """Draw positions in m from a box, uniformly, in the world's frame. Shape (num_envs, 3)."""
    return torch.stack([uniform(env, bounds) for bounds in (x, y, z)], dim=1)


def orientation_command(env: Env) -> torch.Tensor:
    """Draw orientations uniformly from all rotations: quaternions (w, x, y, z) with w >= 0. Shape (num_envs, 4)."""
    # The direction of a normal distribution in four dimensions is uniform.
    drawn = torch.randn(env.num_envs, 4, generator=env.rng, device=env.device)
    drawn = torch.where(drawn[:, :1] < 0, -drawn, drawn)
    return drawn / drawn.norm(dim=1, keepdim=True)


def steer_orientation(env: Env, values: torch.Tensor) -> torch.Tensor:
    """Command roll, pitch, yaw (rad) by hand, as a draw of `orientation_command`. Shape (num_envs, 4).

    `targets.steer` does so for `place_command`.
    """
    return rotations.from_euler(*values.expand(env.num_envs, 3).unbind(dim=1))


def position_error(env: Env, *, command: str, object: str) -> torch.Tensor:
    """Vector from an object to its commanded position, in m, in the world's frame. Shape (num_envs, 3)."""
    return commanded_position(env, command) - env.qpos(object)[:, :3]


def orientation_error(env: Env, *, command: str, object: str) -> torch.Tensor:
    """Rotation from an object to its commanded orientation as axis times angle, in rad, in the world's frame.

    Shape (num_envs, 3), of length pi at most.
    """
    return rotations.rotation_vector(_missing_rotation(env, command, object))


def remaining_rotation(env: Env, *, command: str, object: str) -> torch.Tensor:
    """Rotation from an object to its commanded orientation, continuous also where the angle is pi.

    Returns:
        The first two columns of the rotation matrix in the world's frame, (1, 0, 0, 0, 1, 0) where the command is met;
        for why, see Zhou et al., "On the Continuity of Rotation Representations in Neural Networks", CVPR 2019.
        Shape (num_envs, 6).
    """
    return rotations.first_axes(_missing_rotation(env, command, object))


def distance(env: Env, *, command: str, object: str) -> torch.Tensor:
    """Distance of an object from its commanded position, in m. Shape (num_envs,)."""
    return position_error(env, command=command, object=object).norm(dim=1)


def angle(env: Env, *, command: str, object: str) -> torch.Tensor:
    """Angle between an object and its commanded orientation, in rad, from 0 to pi. Shape (num_envs,)."""
    return orientation_error(env, command=command, object=object).norm(dim=1)


def position_in(
    env: Env, *, object: str, position_sensor: PositionSensor, orientation_sensor: OrientationSensorOrNone = None
) -> torch.Tensor:
    """Position of an object relative to a tool or a palm, in m. Shape (num_envs, 3).

    Args:
        orientation_sensor: A framequat sensor on the tool, for the position in its frame. None: along the world's axes.
    """
    offset = env.qpos(object)[:, :3] - env.sensor(position_sensor)
    return _seen_from(env, orientation_sensor, offset)


def orientation_in(env: Env, *, object: str, orientation_sensor: OrientationSensorOrNone = None) -> torch.Tensor:
    """Orientation of an object relative to a tool or a palm.

    Args:
        orientation_sensor: A framequat sensor on the tool. None: relative to the world.

    Returns:
        The first two columns of the rotation matrix: the x and the y axis of the object in the frame of the tool.
        Shape (num_envs, 6).
    """
    quaternion = env.qpos(object)[:, 3:]
    if orientation_sensor is not None:
        quaternion = rotations.multiply(rotations.conjugate(env.sensor(orientation_sensor)), quaternion)
    return rotations.first_axes(quaternion)


def cube_orientation_in(env: Env, *, object: str, orientation_sensor: OrientationSensorOrNone = None) -> torch.Tensor:
    """Orientation of a cube relative to a tool or a palm, the same for the 24 rotations that leave its shape as it is.

    To the physics these 24 are one, if mass and friction are the same on all faces. A policy that sees nothing else of
    the orientation than this and `remaining_rotation` acts alike in all of them, and what it learns in one it knows in
    the others.

    Args:
        object: Name of the free joint. The faces are normal to the axes of the body.
        orientation_sensor: A framequat sensor on the tool. None: relative to the world.

    Returns:
        The sums over the three axes of the cube of x^4, y^4, z^4 (less their mean over all rotations, 3/5), x^3 y,
        x y^3, x^3 z, x z^3, y^3 z and y z^3, where (x, y, z) is the axis in the frame of the tool, times 2.5. They are
        continuous, and the same for two orientations only if these look the same. Shape (num_envs, 9).
    """
    x_and_y = orientation_in(env, object=object, orientation_sensor=orientation_sensor).unflatten(1, (2, 3))
    axes = torch.cat([x_and_y, torch.linalg.cross(x_and_y[:, :1], x_and_y[:, 1:])], dim=1)
    squares, cubes = axes**2, axes**3
    fourth = 2.5 * ((squares**2).sum(dim=1) - 0.6)
    pairs = [(cubes[..., i] * axes[..., j]).sum(dim=1) for i, j in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1))]
    return torch.cat([fourth, 2.5 * torch.stack(pairs, dim=1)], dim=1)


def orientation_difference(estimated: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """Angle between two orientations as `orientation_in` gives them, for `ObservationTerm.estimate_error`, in rad.

    Shape (num_envs,).

    Args:
        estimated: Two columns that need not be orthogonal nor of length 1; the second is turned to be orthogonal to the
            first. Shape (num_envs, 6).
        true: Likewise.
    """
    distance = (_complete_axes(estimated) - _complete_axes(true)).flatten(1).norm(dim=1)
    return 2 * torch.asin((distance / 8**0.5).clamp(max=1.0))  # |A - B|^2 = 8 sin^2(angle / 2)


def linear_velocity_in(env: Env, *, object: str, orientation_sensor: OrientationSensorOrNone = None) -> torch.Tensor:
    """Linear velocity of an object in the world, along the axes of a tool or a palm, in m/s. Shape (num_envs, 3).

    Args:
        orientation_sensor: A framequat sensor on the tool, whose own motion is not subtracted. None: along the world's
            axes.
    """
    return _seen_from(env, orientation_sensor, env.qvel(object)[:, :3])


def angular_velocity_in(env: Env, *, object: str, orientation_sensor: OrientationSensorOrNone = None) -> torch.Tensor:
    """Angular velocity of an object in the world, about the axes of a tool or a palm, in rad/s. Shape (num_envs, 3).

    Args:
        orientation_sensor: A framequat sensor on the tool, whose own motion is not subtracted. None: about the world's
            axes.
    """
    velocity = rotations.rotate(env.qpos(object)[:, 3:], env.qvel(object)[:, 3:])
    return _seen_from(env, orientation_sensor, velocity)


def near_position(env: Env, *, command: str, object: str, tolerance_m: Positive) -> torch.Tensor:
    """One where an object is at its commanded position, 1 - tanh(distance / tolerance_m) away. Shape (num_envs,)."""
    return 1 - torch.tanh(distance(env, command=command, object=object) / tolerance_m)


def near_orientation(env: Env, *, command: str, object: str, tolerance: Positive) -> torch.Tensor:
    """One where an object has its commanded orientation, 1 - tanh(angle / tolerance) away from it. Shape (num_envs,).

    Args:
        tolerance: Scale of the angle, in rad.
    """
    return 1 - torch.tanh(angle(env, command=command, object=object) / tolerance)


def near_tool(env: Env, *, object: str, position_sensor: PositionSensor, tolerance_m: Positive) -> torch.Tensor:
    """One where a tool is at an object, 1 - tanh(distance / tolerance_m) away from it. Shape (num_envs,)."""
    return 1 - torch.tanh(position_in(env, object=object, position_sensor=position_sensor).norm(dim=1) / tolerance_m)


def reached(
    env: Env,
    *,
    command: str,
    object: str,
    tolerance_m: Annotated[float | None, MORE_THAN_0] = None,
    tolerance: Annotated[float | None, MORE_THAN_0] = None,
    curriculum: str = "",
    widest: float = 1.0,
) -> torch.Tensor:
    """An object is at its commanded place, for success terms. Boolean, shape (num_envs,).

    Args:
        tolerance_m: Largest distance from the commanded position, in m; None where the position does not matter.
        tolerance: Largest angle to the commanded orientation, in rad; None where the orientation does not matter.
        curriculum: Name of a curriculum term whose level tightens both, from the factor widest at level 0 to 1 at level
            1; empty for the factor 1.
        widest: See curriculum.

    Raises:
        RequestError: Both tolerances are None.
    """
    if tolerance_m is None and tolerance is None:
        raise RequestError("an object reaches a place within a tolerance: give tolerance_m, tolerance or both")
    factor = widest + (1.0 - widest) * env.level(curriculum) if curriculum else 1.0
    there = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    if tolerance_m is not None:
        there = there & (distance(env, command=command, object=object) <= tolerance_m * factor)
    if tolerance is not None:
        there = there & (angle(env, command=command, object=object) <= tolerance * factor)
    return there


def dropped(env: Env, *, object: str, below_m: float) -> torch.Tensor:
    """An object is too low, for termination terms. Boolean, shape (num_envs,).

    Args:
        below_m: Least z in the world's frame, in m.
    """
    return env.qpos(object)[:, 2] < below_m


def strayed(env: Env, *, object: str, position_sensor: PositionSensor, beyond_m: Positive) -> torch.Tensor:
    """An object is too far from a tool or a palm, for termination terms. Boolean, shape (num_envs,).

    Args:
        beyond_m: Largest distance, in m.
    """
    return position_in(env, object=object, position_sensor=position_sensor).norm(dim=1) > beyond_m


def reset_place(env: Env, worlds: Worlds, *, object: str, x: Bounds, y: Bounds, z: Bounds) -> None:
    """Start an object at a position in m from a box, drawn uniformly, in the world's frame."""
    start = env.engine.layout.qpos[object].start
    worlds.qpos[:, start : start + 3] = place_command(env, x=x, y=y, z=z)


def reset_orientation(env: Env, worlds: Worlds, *, object: str) -> None:
    """Start an object in an orientation that is drawn uniformly from all rotations."""
    start = env.engine.layout.qpos[object].start
    worlds.qpos[:, start + 3 : start + 7] = orientation_command(env)


def raise_with_success(
    env: Env, level: torch.Tensor, *, success: str, at_least: float = 1.0, step: float
) -> torch.Tensor:
    """Raise the level of worlds whose episode ended with success, and lower that of the others; for a curriculum.

    Episodes that `Env.stagger` has shortened change no level.

    Args:
        at_least: What it must measure of the episode, see `SuccessTerm.measure`: 1 for end and ever.
        step: Rise and fall of the level.
    """
    is_whole = env.statistics.episode_steps() == env.episode_step
    return level + torch.where(env.success_measure(success) >= at_least, step, -step) * is_whole


def _missing_rotation(env: Env, command: str, object: str) -> torch.Tensor:
    """Return the rotation from an object to its commanded orientation, in the world's frame. Shape (num_envs, 4)."""
    return rotations.multiply(commanded_orientation(env, command), rotations.conjugate(env.qpos(object)[:, 3:]))


def _complete_axes(axes: torch.Tensor) -> torch.Tensor:
    """Return the rotation matrices, of which axes has the first two columns. Shape (num_envs, 3, 3), by columns."""
    x = torch.nn.functional.normalize(axes[:, :3], dim=1)
    y = torch.nn.functional.normalize(axes[:, 3:] - (x * axes[:, 3:]).sum(dim=1, keepdim=True) * x, dim=1)
    return torch.stack([x, y, torch.linalg.cross(x, y)], dim=1)


def _seen_from(env: Env, orientation_sensor: str | None, vector: torch.Tensor) -> torch.Tensor:
    if orientation_sensor is None:
        return vector
    return rotations.rotate_inverse(env.sensor(orientation_sensor), vector)
