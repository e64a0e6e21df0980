"""Domain randomisation: every world gets a robot of its own, on both engines.

For events of mode startup or reset. Factors and offsets are relative to the model as it was compiled, so they do not
add up over episodes. Masses, inertias, centres of mass and armature change constants that follow from them, which costs
a computation per changed world: better at startup than at every reset.
"""

from typing import TYPE_CHECKING

import torch

from mjtrain.engines.layout import MODEL_FIELDS
from mjtrain.env.events import Worlds
from mjtrain.env.sampling import uniform

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def mass(env: "Env", worlds: Worlds, *, bodies: tuple[str, ...], factor: tuple[float, float]) -> None:
    """Scale the masses of bodies, and their inertias with them.

    Args:
        env: The environment.
        worlds: Which ones.
        bodies: Regular expressions over bodies.
        factor: Bounds of the factor, drawn for each body.
    """
    rows = env.engine.layout.rows("body", bodies)
    factors = uniform(env, factor, len(rows))
    _scale(env, worlds, "body_mass", rows, factors)
    _scale(env, worlds, "body_inertia", rows, factors[..., None])
    _refresh(env, worlds, "body_mass")


def inertia(env: "Env", worlds: Worlds, *, bodies: tuple[str, ...], factor: tuple[float, float]) -> None:
    """Scale the principal inertias of bodies and leave their masses; one factor per body, so they stay physical.

    Args:
        env: The environment.
        worlds: Which ones.
        bodies: Regular expressions over bodies.
        factor: Bounds of the factor, drawn for each body.
    """
    rows = env.engine.layout.rows("body", bodies)
    _scale(env, worlds, "body_inertia", rows, uniform(env, factor, len(rows))[..., None])
    _refresh(env, worlds, "body_inertia")


def center_of_mass(env: "Env", worlds: Worlds, *, bodies: tuple[str, ...], offset_m: tuple[float, float]) -> None:
    """Move the centres of mass of bodies.

    Args:
        env: The environment.
        worlds: Which ones.
        bodies: Regular expressions over bodies.
        offset_m: Bounds of the offset along each axis of the body, in m.
    """
    rows = env.engine.layout.rows("body", bodies)
    _write(env, worlds, "body_ipos", rows, _nominal(env, "body_ipos")[rows] + uniform(env, offset_m, len(rows), 3))
    _refresh(env, worlds, "body_ipos")


def friction(env: "Env", worlds: Worlds, *, geoms: tuple[str, ...], sliding: tuple[float, float]) -> None:
    """Set the sliding friction of geoms, one value for all of them in a world.

    MuJoCo takes the larger friction of two touching geoms, unless one has a higher priority.

    Args:
        env: The environment.
        worlds: Which ones.
        geoms: Regular expressions over geoms.
        sliding: Bounds of the coefficient.
    """
    rows = env.engine.layout.rows("geom", geoms)
    values = _nominal(env, "geom_friction")[rows].repeat(env.num_envs, 1, 1)
    values[..., 0] = uniform(env, sliding, 1)
    _write(env, worlds, "geom_friction", rows, values)


def armature(env: "Env", worlds: Worlds, *, joints: tuple[str, ...], factor: tuple[float, float]) -> None:
    """Scale the armature of joints.

    Args:
        env: The environment.
        worlds: Which ones.
        joints: Regular expressions over joints.
        factor: Bounds of the factor, drawn for each degree of freedom.
    """
    rows = env.engine.layout.rows("dof", joints)
    _scale(env, worlds, "dof_armature", rows, uniform(env, factor, len(rows)))
    _refresh(env, worlds, "dof_armature")


def damping(env: "Env", worlds: Worlds, *, joints: tuple[str, ...], factor: tuple[float, float]) -> None:
    """Scale the damping of joints.

    Args:
        env: The environment.
        worlds: Which ones.
        joints: Regular expressions over joints.
        factor: Bounds of the factor, drawn for each degree of freedom.
    """
    rows = env.engine.layout.rows("dof", joints)
    _scale(env, worlds, "dof_damping", rows, uniform(env, factor, len(rows)))


def actuator_gains(env: "Env", worlds: Worlds, *, actuators: tuple[str, ...], factor: tuple[float, float]) -> None:
    """Scale what actuators give for a control and for a state: kp and kv of position actuators, gear of none.

    Args:
        env: The environment.
        worlds: Which ones.
        actuators: Regular expressions over actuators.
        factor: Bounds of the factor, drawn for each actuator.
    """
    rows = env.engine.layout.rows("actuator", actuators)
    factors = uniform(env, factor, len(rows))[..., None]
    _scale(env, worlds, "actuator_gainprm", rows, factors)
    _scale(env, worlds, "actuator_biasprm", rows, factors)


def gravity(env: "Env", worlds: Worlds, *, offset: tuple[float, float]) -> None:
    """Change gravity.

    Args:
        env: The environment.
        worlds: Which ones.
        offset: Bounds of what is added to each component, in m/s^2, in the world's frame.
    """
    values = env.engine.expand("gravity")
    changed = _nominal(env, "gravity") + uniform(env, offset, 3)
    values.copy_(torch.where(worlds.mask[:, None], changed.to(values.dtype), values))


def _nominal(env: "Env", field: str) -> torch.Tensor:
    """Return a field as the model was compiled, without the axis of worlds."""
    return env.engine.layout.nominal[field]


def _scale(env: "Env", worlds: Worlds, field: str, rows: torch.Tensor, factors: torch.Tensor) -> None:
    _write(env, worlds, field, rows, _nominal(env, field)[rows] * factors)


def _write(env: "Env", worlds: Worlds, field: str, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Put values of shape (num_envs, len(rows), ...) into the masked worlds."""
    live = env.engine.expand(field)
    mask = worlds.mask.view(-1, *[1] * (values.ndim - 1))
    live.index_copy_(1, rows, torch.where(mask, values.to(live.dtype), live.index_select(1, rows)))


def _refresh(env: "Env", worlds: Worlds, field: str) -> None:
    assert MODEL_FIELDS[field]
    env.engine.refresh_model(worlds.mask)
