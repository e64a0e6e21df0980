"""How the outputs of term functions mirror: what a function declares, so that a symmetry can be learned with it.

    @mirrors.mirrored(mirrors.polar_vector)
    def base_lin_vel(env, *, joint): ...

A declaration is one of the functions below, or one of your own: it takes the `Mirror` of an environment and the
parameters of the term, and returns the matrix by which the term's columns become those of the mirrored world.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.env.mirror import Mirror

Function = TypeVar("Function", bound=Callable[..., Any])


def mirrored(by: Callable[..., torch.Tensor]) -> Callable[[Function], Function]:
    """Declare how the output of an observation, or of a command or what refines it, mirrors.

    Args:
        by: by(mirror, **params) -> A, for which A x is the mirror image of the column vector x. Shape (size, size).
    """

    def declare(function: Function) -> Function:
        function.__dict__["mirror"] = by
        return function

    return declare


def joint_positions(mirror: Mirror, *, joint: str = "", joints: tuple[str, ...] = (), **_: Any) -> torch.Tensor:
    """Positions of joints, as `Env.qpos` gives them, or relative to the default pose."""
    return mirror.positions(joint or joints)


def joint_velocities(mirror: Mirror, *, joint: str = "", joints: tuple[str, ...] = ()) -> torch.Tensor:
    """Velocities of joints, as `Env.qvel` gives them."""
    return mirror.velocities(joint or joints)


def cosine_and_sine(mirror: Mirror, *, joint: str) -> torch.Tensor:
    """Cosine and sine of the angle of a hinge."""
    return torch.block_diag(torch.eye(1, dtype=torch.float64), mirror.positions(joint))


def sensor_readings(mirror: Mirror, *, sensor: str = "", sensors: tuple[str, ...] = ()) -> torch.Tensor:
    """Readings of sensors, as `Env.sensor` gives them."""
    return mirror.sensors(sensor or sensors)


def one_per_sensor(mirror: Mirror, *, sensors: tuple[str, ...], **_: Any) -> torch.Tensor:
    """One column for each of several sensors, which goes to the sensor's image as it is."""
    return mirror.sensor_order(sensors)


def commands(mirror: Mirror, *, command: str) -> torch.Tensor:
    """A command, as its own function declares."""
    return mirror.command(command)


def actions(mirror: Mirror) -> torch.Tensor:
    """Output of the policy."""
    return mirror.actions()


def unchanged(mirror: Mirror, **_: Any) -> torch.Tensor:  # noqa: ARG001
    """One column that is the same on both sides."""
    return torch.eye(1, dtype=torch.float64)


def polar_vector(mirror: Mirror, *, joint: str) -> torch.Tensor:
    """Velocity, direction or force in the frame of a free body."""
    return mirror.frame(joint)


def axial_vector(mirror: Mirror, *, joint: str) -> torch.Tensor:
    """Angular velocity or torque in the frame of a free body."""
    return -mirror.frame(joint)


def planar_velocity(mirror: Mirror, *, joint: str, **_: Any) -> torch.Tensor:
    """Velocity along x and y, and angular velocity about z, in the frame of a free body."""
    frame = mirror.frame(joint)
    return torch.block_diag(frame[:2, :2], -frame[2:, 2:])


def motion_joints(mirror: Mirror, *, command: str, ahead: tuple[int, ...] = (0,), **_: Any) -> torch.Tensor:  # noqa: ARG001
    """Positions and then velocities of all joints, for each of several frames of a motion."""
    joints = (".*",)
    frame = torch.block_diag(mirror.positions(joints), mirror.velocities(joints))
    return torch.block_diag(*[frame] * len(ahead))


def anchor_position(mirror: Mirror, *, command: str, **_: Any) -> torch.Tensor:
    """Vector in the frame of the anchor body of a motion command."""
    anchor = mirror.command_params(command)["anchor_body"]
    return mirror.body_vectors((anchor,), anchor)


def anchor_axes(mirror: Mirror, *, command: str, **_: Any) -> torch.Tensor:
    """Axes of the anchor body in its own frame."""
    anchor = mirror.command_params(command)["anchor_body"]
    return mirror.body_axes((anchor,), anchor)


def tracked_positions(mirror: Mirror, *, command: str) -> torch.Tensor:
    """Vector for each tracked body of a motion command, in the frame of the anchor body."""
    params = mirror.command_params(command)
    return mirror.body_vectors(params["bodies"], params["anchor_body"])


def tracked_axes(mirror: Mirror, *, command: str) -> torch.Tensor:
    """Axes of each tracked body of a motion command, in the frame of the anchor body."""
    params = mirror.command_params(command)
    return mirror.body_axes(params["bodies"], params["anchor_body"])


def half_stride(mirror: Mirror, **_: Any) -> torch.Tensor:  # noqa: ARG001
    """Sine and cosine of the phase of a gait in which left and right legs alternate, such as a walk or a trot."""
    return -torch.eye(2, dtype=torch.float64)


def height_grid(
    mirror: Mirror, *, joint: str, x: tuple[float, float, int], y: tuple[float, float, int], **_: Any
) -> torch.Tensor:
    """Heights at the points of a grid that turns with a free body, rows of equal y.

    Raises:
        RequestError: The grid is not its own mirror image.
    """
    size = x[2] * y[2]
    order = torch.arange(size).view(y[2], x[2])
    signs = mirror.frame(joint).diagonal()
    for axis, (low, high, number), name in ((0, y, "y"), (1, x, "x")):
        if signs[1 - axis] > 0:
            continue
        if number == 1 and low:
            raise RequestError(f"{name} is {low:g} {high:g} 1; a single row of a grid that mirrors is at 0, as 0 0 1")
        if number > 1 and low != -high:
            raise RequestError(f"{name} is {low:g} {high:g} {number}; a grid that mirrors has equal ends, as -0.5 0.5")
        order = order.flip(axis)
    return torch.eye(size, dtype=torch.float64)[order.flatten()]
