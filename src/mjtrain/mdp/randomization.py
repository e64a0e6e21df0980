"""Domain randomisation: each world gets its own values in fields of the model, on both engines.

For events of mode startup or reset. Factors and offsets are relative to the compiled model, so they do not accumulate
over episodes. After changes of masses, inertias, centres of mass and armature, derived constants are computed again for
each changed world: do those at startup rather than at every reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mjtrain.config.limits import Bounds, Factors, Range, Shares
from mjtrain.env.sampling import uniform
from mjtrain.runtime.deferred_imports import torch
from mjtrain.sim.robots.model_fields import MODEL_FIELDS

if TYPE_CHECKING:
    from mjtrain.env.env import Env
    from mjtrain.env.events import Worlds


def mass(env: Env, worlds: Worlds, *, bodies: tuple[str, ...], factor: Factors) -> None:
    """Scale the masses and inertias of bodies by the same factors.

    Args:
        bodies: Regular expressions over bodies.
        factor: Bounds of the factor, drawn for each body.
    """
    rows = env.engine.layout.rows("body", bodies)
    factors = uniform(env, factor, len(rows))
    _scale(env, worlds, "body_mass", rows, factors)
    _scale(env, worlds, "body_inertia", rows, factors[..., None])
    _refresh(env, worlds, "body_mass")


def inertia(env: Env, worlds: Worlds, *, bodies: tuple[str, ...], factor: Factors) -> None:
    """Scale the principal inertias of bodies but not their masses; one factor per body keeps them physical.

    Args:
        bodies: Regular expressions over bodies.
        factor: Bounds of the factor, drawn for each body.
    """
    rows = env.engine.layout.rows("body", bodies)
    _scale(env, worlds, "body_inertia", rows, uniform(env, factor, len(rows))[..., None])
    _refresh(env, worlds, "body_inertia")


def center_of_mass(env: Env, worlds: Worlds, *, bodies: tuple[str, ...], offset_m: Bounds) -> None:
    """Move the centres of mass of bodies.

    Args:
        bodies: Regular expressions over bodies.
        offset_m: Bounds of the offset along each axis of the body, in m.
    """
    rows = env.engine.layout.rows("body", bodies)
    _write(env, worlds, "body_ipos", rows, _nominal(env, "body_ipos")[rows] + uniform(env, offset_m, len(rows), 3))
    _refresh(env, worlds, "body_ipos")


def friction(
    env: Env,
    worlds: Worlds,
    *,
    geoms: tuple[str, ...],
    sliding: Annotated[tuple[float, float], Range(ordered=True, least=0)],
) -> None:
    """Set the sliding friction of geoms to one value in each world.

    MuJoCo uses the larger friction of two geoms in contact, unless one has a higher priority.

    Args:
        geoms: Regular expressions over geoms.
        sliding: Bounds of the coefficient.
    """
    rows = env.engine.layout.rows("geom", geoms)
    values = _nominal(env, "geom_friction")[rows].repeat(env.num_envs, 1, 1)
    values[..., 0] = uniform(env, sliding, 1)
    _write(env, worlds, "geom_friction", rows, values)


def armature(env: Env, worlds: Worlds, *, joints: tuple[str, ...], factor: Shares) -> None:
    """Scale the armature of joints.

    Args:
        joints: Regular expressions over slides and hinges.
        factor: Bounds of the factor, drawn for each degree of freedom.
    """
    _scale_dofs(env, worlds, "dof_armature", joints, factor)
    _refresh(env, worlds, "dof_armature")


def damping(env: Env, worlds: Worlds, *, joints: tuple[str, ...], factor: Shares) -> None:
    """Scale the damping of joints.

    Args:
        joints: Regular expressions over slides and hinges.
        factor: Bounds of the factor, drawn for each degree of freedom.
    """
    _scale_dofs(env, worlds, "dof_damping", joints, factor)


def actuator_gains(env: Env, worlds: Worlds, *, actuators: tuple[str, ...], factor: Shares) -> None:
    """Scale gain and bias parameters of actuators: kp and kv of position actuators. Gears stay as they are.

    Args:
        actuators: Regular expressions over actuators.
        factor: Bounds of the factor, drawn for each actuator.
    """
    rows = env.engine.layout.rows("actuator", actuators)
    factors = uniform(env, factor, len(rows))[..., None]
    _scale(env, worlds, "actuator_gainprm", rows, factors)
    _scale(env, worlds, "actuator_biasprm", rows, factors)


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


def _refresh(env: Env, worlds: Worlds, field: str) -> None:
    assert MODEL_FIELDS[field]
    env.engine.refresh_model(worlds.mask)
