"""Randomisation of what cameras see: each world gets its own colours, materials, lights and camera poses.

For events of mode startup or reset, in environments with cameras. Nothing that moves is changed. Factors and offsets
are relative to the compiled model, so they do not accumulate over episodes.

`geoms`, `materials` and `lights` are regular expressions over names; a light without a name is called by its number.
`cameras` are regular expressions over the names in `EnvConfig.cameras`. `red`, `green` and `blue` are bounds of these
channels, within 0..1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mjtrain.config.limits import AT_LEAST_0, FRACTION, Offsets, Range
from mjtrain.env.sampling import uniform
from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from mjtrain.env.env import Env
    from mjtrain.env.events import Worlds

Channel = Annotated[tuple[float, float], FRACTION]
"""Bounds of a channel of a colour."""

_RGB = 1
"""Column of mat_texid with the texture that colours a material: mujoco.mjtTextureRole.mjTEXROLE_RGB."""


def geom_color(
    env: Env,
    worlds: Worlds,
    *,
    geoms: tuple[str, ...] = (),
    bodies: tuple[str, ...] = (),
    red: Channel = (0.0, 1.0),
    green: Channel = (0.0, 1.0),
    blue: Channel = (0.0, 1.0),
) -> None:
    """Give each geom a colour, in place of that of its material; a texture is multiplied by it.

    Args:
        bodies: Regular expressions over bodies, for all geoms of each.
    """
    rows = env.cameras.renderer.parts.geoms(geoms, bodies)
    _write_color(env, worlds, "geom_rgba", rows, (red, green, blue))


def material_color(
    env: Env,
    worlds: Worlds,
    *,
    materials: tuple[str, ...],
    red: Channel = (0.0, 1.0),
    green: Channel = (0.0, 1.0),
    blue: Channel = (0.0, 1.0),
) -> None:
    """Give each material a colour; it is that of all its geoms without a colour."""
    rows = env.cameras.renderer.parts.rows("material", materials)
    _write_color(env, worlds, "mat_rgba", rows, (red, green, blue))


def geom_material(
    env: Env, worlds: Worlds, *, geoms: tuple[str, ...] = (), bodies: tuple[str, ...] = (), materials: tuple[str, ...]
) -> None:
    """Give each geom one of several materials of the model, with its texture. A geom's own colour stays.

    Args:
        bodies: Regular expressions over bodies, for all geoms of each.
        materials: Regular expressions over the materials to choose from.
    """
    rows = env.cameras.renderer.parts.geoms(geoms, bodies)
    choices = env.cameras.renderer.parts.rows("material", materials)
    _write(env, worlds, "geom_matid", rows, _choose(env, choices, len(rows)))


def material_texture(env: Env, worlds: Worlds, *, materials: tuple[str, ...], textures: tuple[str, ...]) -> None:
    """Give each material one of several textures of the model.

    Args:
        textures: Regular expressions over the textures to choose from, of type 2d.
    """
    rows = env.cameras.renderer.parts.rows("material", materials)
    choices = env.cameras.renderer.parts.rows("texture", textures)
    values = _nominal(env, "mat_texid")[rows].repeat(env.num_envs, 1, 1)
    values[..., _RGB] = _choose(env, choices, len(rows)).to(values.dtype)
    _write(env, worlds, "mat_texid", rows, values)


def light_position(env: Env, worlds: Worlds, *, lights: tuple[str, ...] = (".*",), offset_m: Offsets) -> None:
    """Move lights.

    Args:
        offset_m: Bounds of the offset along each axis of the body that holds the light, in m.
    """
    rows = env.cameras.renderer.parts.rows("light", lights)
    offset = uniform(env, offset_m, len(rows), 3)
    for field in ("light_pos", "light_pos0", "light_poscom0"):
        _write(env, worlds, field, rows, _nominal(env, field)[rows] + offset)


def light_direction(env: Env, worlds: Worlds, *, lights: tuple[str, ...] = (".*",), angle_rad: Offsets) -> None:
    """Turn lights; it matters for directional lights and spots.

    Args:
        angle_rad: Bounds of the angles about the three axes of the body that holds the light, in rad.
    """
    rows = env.cameras.renderer.parts.rows("light", lights)
    turn = rotations.from_rotation_vector(uniform(env, angle_rad, len(rows), 3))
    for field in ("light_dir", "light_dir0"):
        nominal = _nominal(env, field)[rows].expand(env.num_envs, -1, -1)
        _write(env, worlds, field, rows, rotations.rotate(turn, nominal))


def light_intensity(
    env: Env, worlds: Worlds, *, lights: tuple[str, ...] = (".*",), factor: Annotated[tuple[float, float], AT_LEAST_0]
) -> None:
    """Make lights brighter or darker. The headlight of the model stays as it is.

    Args:
        factor: Bounds of the factor of diffuse, specular and ambient light, drawn for each light.
    """
    rows = env.cameras.renderer.parts.rows("light", lights)
    factors = uniform(env, factor, len(rows), 1)
    for field in ("light_diffuse", "light_specular", "light_ambient"):
        _write(env, worlds, field, rows, _nominal(env, field)[rows] * factors)


def light_color(
    env: Env,
    worlds: Worlds,
    *,
    lights: tuple[str, ...] = (".*",),
    red: Channel = (0.0, 1.0),
    green: Channel = (0.0, 1.0),
    blue: Channel = (0.0, 1.0),
) -> None:
    """Give each light a colour, in place of that of its diffuse light."""
    rows = env.cameras.renderer.parts.rows("light", lights)
    _write_color(env, worlds, "light_diffuse", rows, (red, green, blue))


def camera_position(env: Env, worlds: Worlds, *, cameras: tuple[str, ...] = (".*",), offset_m: Offsets) -> None:
    """Move cameras.

    Args:
        offset_m: Bounds of the offset along each axis, in m: of the body that holds the camera, or of the world for a
            camera of mode track or trackcom.
    """
    rows = env.cameras.renderer.parts.rows("camera", cameras)
    offset = uniform(env, offset_m, len(rows), 3)
    for field in ("cam_pos", "cam_pos0", "cam_poscom0"):
        _write(env, worlds, field, rows, _nominal(env, field)[rows] + offset)


def camera_orientation(env: Env, worlds: Worlds, *, cameras: tuple[str, ...] = (".*",), angle_rad: Offsets) -> None:
    """Turn cameras about their own axes. A camera that targets a body still looks at it.

    Args:
        angle_rad: Bounds of the angles about x (to the right of the image), y (up) and z (towards the viewer), in rad.
    """
    rows = env.cameras.renderer.parts.rows("camera", cameras)
    turn = rotations.from_rotation_vector(uniform(env, angle_rad, len(rows), 3))
    _write(env, worlds, "cam_quat", rows, rotations.multiply(_nominal(env, "cam_quat")[rows].expand_as(turn), turn))
    axes = torch.eye(3, device=env.device).expand(*turn.shape[:-1], 3, 3)
    columns = rotations.rotate(turn[..., None, :], axes).transpose(-1, -2)
    _write(env, worlds, "cam_mat0", rows, _nominal(env, "cam_mat0")[rows] @ columns)


def field_of_view(
    env: Env,
    worlds: Worlds,
    *,
    cameras: tuple[str, ...] = (".*",),
    factor: Annotated[tuple[float, float], Range(least=1e-3)],
) -> None:
    """Scale the vertical field of view of cameras.

    Args:
        factor: Bounds of the factor of the angle fovy, drawn for each camera. A camera with a focal length has none.
    """
    widest = env.cameras.renderer.parts.widest_fovy_deg(cameras)
    if widest and max(factor) > 179.0 / widest:
        raise RequestError(f"factor {factor[0]:g} {factor[1]:g}: both must be at most {179.0 / widest:g}")
    rows = env.cameras.renderer.parts.rows("camera with fovy", cameras)
    _write(env, worlds, "cam_fovy", rows, _nominal(env, "cam_fovy")[rows] * uniform(env, factor, len(rows)))


def _nominal(env: Env, field: str) -> torch.Tensor:
    """Return a field of the compiled model, without the axis of worlds."""
    return env.cameras.renderer.nominal[field]


def _choose(env: Env, choices: torch.Tensor, size: int) -> torch.Tensor:
    """Draw from rows, each as likely. Shape (num_envs, size)."""
    drawn = torch.randint(len(choices), (env.num_envs, size), generator=env.rng, device=env.device)
    return choices[drawn]


def _write_color(
    env: Env, worlds: Worlds, field: str, rows: torch.Tensor, bounds: tuple[tuple[float, float], ...]
) -> None:
    """Draw red, green and blue for each row; what else the field has, as alpha, stays."""
    values = _nominal(env, field)[rows].repeat(env.num_envs, 1, 1)
    for channel, limits in enumerate(bounds):
        values[..., channel] = uniform(env, limits, len(rows))
    if field == "geom_rgba":  # MuJoCo shows the material of a geom whose colour is exactly this grey
        values[..., :3] += 1e-4 * (values[..., :3] == 0.5).all(dim=-1, keepdim=True)
    _write(env, worlds, field, rows, values)


def _write(env: Env, worlds: Worlds, field: str, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Put values of shape (num_envs, len(rows), ...) into the masked worlds."""
    live = env.cameras.renderer.expand(field)
    mask = worlds.mask.view(-1, *[1] * (values.ndim - 1))
    live.index_copy_(1, rows, torch.where(mask, values.to(live.dtype), live.index_select(1, rows)))
