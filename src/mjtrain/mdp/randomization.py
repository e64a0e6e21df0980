"""Domain randomisation: each world gets its own values in fields of the model, on both engines.

For events of mode startup or reset. Factors and offsets are relative to the compiled model, so they do not accumulate
over episodes. After changes of masses, inertias, centres of mass and armature, derived constants are computed again for
each changed world: do those at startup rather than at every reset. `encoder_bias` changes readings, not the model.
Expressions over joints match slides and hinges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.config.limits import Bounds, Factors, Shares
from mjtrain.env.sampling import uniform
from mjtrain.runtime.deferred_imports import torch
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from mjtrain.env.env import Env
    from mjtrain.env.events import Worlds


def mass(env: Env, worlds: Worlds, *, bodies: tuple[str, ...], factor: Factors) -> None:
    """Scale the masses and inertias of bodies by the same factors.

    Args:
        factor: Bounds of the factor, drawn for each body.
    """
    rows = env.engine.layout.rows("body", bodies)
    factors = uniform(env, factor, len(rows))
    _scale(env, worlds, "body_mass", rows, factors)
    _scale(env, worlds, "body_inertia", rows, factors[..., None])
    env.engine.refresh_model(worlds.mask)


def inertia(env: Env, worlds: Worlds, *, bodies: tuple[str, ...], factor: Factors) -> None:
    """Scale the principal inertias of bodies but not their masses; one factor per body keeps them physical.

    Args:
        factor: Bounds of the factor, drawn for each body.
    """
    rows = env.engine.layout.rows("body", bodies)
    _scale(env, worlds, "body_inertia", rows, uniform(env, factor, len(rows))[..., None])
    env.engine.refresh_model(worlds.mask)


def center_of_mass(env: Env, worlds: Worlds, *, bodies: tuple[str, ...], offset_m: Bounds) -> None:
    """Move the centres of mass of bodies.

    Args:
        offset_m: Bounds of the offset along each axis of the body, in m.
    """
    rows = env.engine.layout.rows("body", bodies)
    _write(env, worlds, "body_ipos", rows, _nominal(env, "body_ipos")[rows] + uniform(env, offset_m, len(rows), 3))
    env.engine.refresh_model(worlds.mask)


def pseudo_inertia(
    env: Env,
    worlds: Worlds,
    *,
    bodies: tuple[str, ...],
    mass: Factors = (1.0, 1.0),
    stretch: Factors = (1.0, 1.0),
    shear: Bounds = (0.0, 0.0),
    offset_m: Bounds = (0.0, 0.0),
) -> None:
    """Change mass, centre of mass and inertia of bodies together, to those of another body that could exist.

    The matter of a body is stretched, sheared, moved, and multiplied in mass. Whatever is drawn, the inertia stays
    positive and its principal values keep the triangle inequality. In the terms of Rucker and Wensing (2022, "Smooth
    Parameterization of Rigid-Body Inertia", IEEE Robotics and Automation Letters 7(2)), the pseudo-inertia matrix J of
    the compiled body becomes U J U^T. U = exp(alpha) [[A, t], [0, 1]] is upper triangular, with exp(2 alpha) = mass,
    stretch on the diagonal of A, shear above it, and t = offset_m. Axes are the principal axes of the compiled body.
    MuJoCo refuses to shear or move what it compiled as simple, such as a lone free box: give it simple="false" in MJCF.

    Args:
        mass: Bounds of the factor of the mass, drawn for each body.
        stretch: Bounds of the factor of the body's extent, drawn for each axis.
        shear: Bounds of the displacement along x per distance along y and z, and along y per distance along z.
        offset_m: Bounds of the offset of the centre of mass along each axis, in m.
    """
    rows = env.engine.layout.rows("body", bodies)
    inertia, frame = _nominal(env, "body_inertia")[rows], _nominal(env, "body_iquat")[rows]
    factor = uniform(env, mass, len(rows)).double()
    deformation = torch.diag_embed(uniform(env, stretch, len(rows), 3).double())
    deformation[..., (0, 0, 1), (1, 2, 2)] = uniform(env, shear, len(rows), 3).double()
    offset = uniform(env, offset_m, len(rows), 3).double()
    moments = torch.diag_embed(inertia.sum(-1, keepdim=True) / 2 - inertia)  # sums of m x x^T
    moments = factor[..., None, None] * (deformation @ moments @ deformation.mT)
    values, axes = torch.linalg.eigh(moments)
    axes = axes * torch.linalg.det(axes)[..., None, None]  # a rotation, not a reflection
    changed = values.sum(-1, keepdim=True) - values
    _write(env, worlds, "body_mass", rows, _nominal(env, "body_mass")[rows] * factor)
    _write(env, worlds, "body_inertia", rows, changed.clamp(min=0.0))
    moved = rotations.rotate(frame.expand(*offset.shape[:-1], 4), offset)
    _write(env, worlds, "body_ipos", rows, _nominal(env, "body_ipos")[rows] + moved)
    _write(env, worlds, "body_iquat", rows, rotations.multiply(frame, rotations.from_matrix(axes)))
    env.engine.refresh_model(worlds.mask)


def friction(env: Env, worlds: Worlds, *, geoms: tuple[str, ...], sliding: Shares) -> None:
    """Set the sliding friction of geoms to one value in each world.

    MuJoCo uses the larger friction of two geoms in contact, unless one has a higher priority.

    Args:
        sliding: Bounds of the coefficient.
    """
    rows = env.engine.layout.rows("geom", geoms)
    values = _nominal(env, "geom_friction")[rows].repeat(env.num_envs, 1, 1)
    values[..., 0] = uniform(env, sliding, 1)
    _write(env, worlds, "geom_friction", rows, values)


def armature(env: Env, worlds: Worlds, *, joints: tuple[str, ...], factor: Shares) -> None:
    """Scale the armature of joints.

    Args:
        factor: Bounds of the factor, drawn for each degree of freedom.
    """
    _scale_dofs(env, worlds, "dof_armature", joints, factor)
    env.engine.refresh_model(worlds.mask)


def damping(env: Env, worlds: Worlds, *, joints: tuple[str, ...], factor: Shares) -> None:
    """Scale the damping of joints.

    Args:
        factor: Bounds of the factor, drawn for each degree of freedom.
    """
    _scale_dofs(env, worlds, "dof_damping", joints, factor)


def joint_friction(env: Env, worlds: Worlds, *, joints: tuple[str, ...], friction: Shares) -> None:
    """Set the dry friction of joints (MuJoCo's frictionloss), which most files leave at zero.

    Each joint with dry friction is one more row of the constraint solver.

    Args:
        friction: Bounds in N or N m, drawn for each degree of freedom.
    """
    rows = env.engine.layout.rows("dof", joints)
    _write(env, worlds, "dof_frictionloss", rows, uniform(env, friction, len(rows)))


def actuator_gains(
    env: Env, worlds: Worlds, *, actuators: tuple[str, ...], factor: Shares, kv_factor: Shares | None = None
) -> None:
    """Scale gain and bias parameters of actuators: kp and kv of position actuators, the force of muscles.

    Gears stay as they are.

    Args:
        factor: Bounds of the factor, drawn for each actuator.
        kv_factor: Bounds of a separate factor of kv, for position actuators. None: kv has the factor of kp.
    """
    layout = env.engine.layout
    rows = layout.rows("actuator", actuators)
    factors = uniform(env, factor, len(rows))[..., None]
    apart = factors if kv_factor is None else uniform(env, kv_factor, len(rows))[..., None]
    for field in ("actuator_gainprm", "actuator_biasprm"):
        kinds = layout.gain_kinds[field][rows]  # 0: neither kp nor kv, 1: kp, 2: kv of a position actuator
        _scale(env, worlds, field, rows, torch.where(kinds == 0, 1.0, torch.where(kinds == 2, apart, factors)))


def effort_limits(env: Env, worlds: Worlds, *, actuators: tuple[str, ...], factor: Shares) -> None:
    """Scale the force range of actuators.

    Args:
        actuators: Regular expressions over actuators that have a force range.
        factor: Bounds of the factor, drawn for each actuator; both ends of the range get the same.
    """
    rows = env.engine.layout.rows("actuator", actuators)
    _scale(env, worlds, "actuator_forcerange", rows, uniform(env, factor, len(rows))[..., None])


def encoder_bias(env: Env, worlds: Worlds, *, joints: tuple[str, ...], bias: Bounds) -> None:
    """Draw constant offsets of what encoders read. Observation terms with `biased` see them.

    Physics, rewards, and what the actuators hold do not change.

    Args:
        bias: Bounds of the offset in m or rad, drawn for each joint.
    """
    columns = env.engine.layout.qpos.select(joints)
    before = env.encoder_bias[:, columns]
    env.encoder_bias[:, columns] = torch.where(worlds.mask[:, None], uniform(env, bias, before.shape[1]), before)


def gravity(env: Env, worlds: Worlds, *, offset: Bounds) -> None:
    """Add a random offset to gravity.

    Args:
        offset: Bounds of the offset of each component, in m/s^2, in the world's frame.
    """
    values = env.engine.expand("gravity")
    changed = _nominal(env, "gravity") + uniform(env, offset, 3)
    values.copy_(torch.where(worlds.mask[:, None], changed.to(values.dtype), values))


def _nominal(env: Env, field: str) -> torch.Tensor:
    """Return a field of the compiled model, without the axis of worlds."""
    return env.engine.layout.nominal[field]


def _scale(env: Env, worlds: Worlds, field: str, rows: torch.Tensor, factors: torch.Tensor) -> None:
    _write(env, worlds, field, rows, _nominal(env, field)[rows] * factors)


def _scale_dofs(env: Env, worlds: Worlds, field: str, joints: tuple[str, ...], factor: tuple[float, float]) -> None:
    """Scale a field of degrees of freedom by a factor drawn for each of them."""
    rows = env.engine.layout.rows("dof", joints)
    _scale(env, worlds, field, rows, uniform(env, factor, len(rows)))


def _write(env: Env, worlds: Worlds, field: str, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Put values of shape (num_envs, len(rows), ...) into the masked worlds."""
    live = env.engine.expand(field)
    mask = worlds.mask.view(-1, *[1] * (values.ndim - 1))
    live.index_copy_(1, rows, torch.where(mask, values.to(live.dtype), live.index_select(1, rows)))
