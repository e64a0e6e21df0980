"""How much nearer to its goal an object was turned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.mdp import objects, rotations, torch

if TYPE_CHECKING:
    from mjtrain.mdp import Env


def orientation(env: Env, *, object: str) -> torch.Tensor:
    """Orientation of an object, for a command that is drawn again at the end of every env step.

    Thus the terms of an env step know how the object lay before it.

    Args:
        object: Name of the free joint.

    Returns:
        Quaternion (w, x, y, z). Shape (num_envs, 4).
    """
    return env.qpos(object)[:, 3:].clone()


def progress(env: Env, *, command: str, before: str, object: str) -> torch.Tensor:
    """How fast the angle to the commanded orientation became smaller in this env step, in rad/s.

    Summed over the time until a goal is reached, it is the angle that was to be turned, whatever the way. So motion to
    and fro is worth nothing.

    Args:
        command: Name of the command with the orientation.
        before: Name of the command that holds what `orientation` was before the env step.
        object: Name of the free joint.

    Returns:
        Shape (num_envs,).
    """
    missing = rotations.multiply(env.command(command), rotations.conjugate(env.command(before)))
    angle_before = rotations.rotation_vector(missing).norm(dim=1)
    return (angle_before - objects.angle(env, command=command, object=object)) / env.step_dt
