"""Options, geoms, sites, cameras and lights that a robot config changes or adds, found by name."""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import mujoco

from mjtrain.config import GeomConfig, LightConfig, MountedCameraConfig, OptionConfig, SiteConfig
from mjtrain.runtime.errors import RequestError, suggest

_COPIED = ("contype", "conaffinity", "condim", "friction", "priority", "margin", "group", "rgba")

_OF_CAMERA_DEFAULTS = (
    "proj",
    "resolution",
    "sensor_size",
    "focal_length",
    "focal_pixel",
    "principal_length",
    "principal_pixel",
    "intrinsic",
    "quat",
    "ipd",
    "output",
)
"""What the defaults of a file would give a camera of a config. A lens would decide in place of fovy."""

_WORDS = {
    "integrator": (mujoco.mjtIntegrator, "mjINT_"),
    "solver": (mujoco.mjtSolver, "mjSOL_"),
    "cone": (mujoco.mjtCone, "mjCONE_"),
    "jacobian": (mujoco.mjtJacobian, "mjJAC_"),
}
"""Options that are words, which MuJoCo has in capitals behind a prefix."""

_DISABLE, _ENABLE = (
    {name.removeprefix(prefix).lower(): bit for name, bit in bits.__members__.items() if name.startswith(prefix)}
    for bits, prefix in ((mujoco.mjtDisableBit, "mjDSBL_"), (mujoco.mjtEnableBit, "mjENBL_"))
)


def compile_copy(spec: Any) -> mujoco.MjModel:
    """Compile a robot that is not complete."""
    if spec.compiler.fusestatic or spec.compiler.discardvisual:  # the parts that this removes must not be used
        return spec.compile()
    return spec.copy().compile()  # each part that is removed from a compiled spec with meshes takes 20 ms


def choose(flag: str, name: str, kind: str, there: Iterable[str]) -> str:
    """Return a name if it exists; the error has similar names and all existing ones."""
    names = [item for item in there if item]
    if name in names:
        return name
    raise misnamed(flag, name, f"no {kind} has this name", names)


def match(flag: str, patterns: Sequence[str], kind: str, there: Iterable[str]) -> list[str]:
    """Return the names that regular expressions match whole, in the order of `there`; each must match something."""
    names = [item for item in there if item]
    matched = {name for pattern in patterns for name in match_one(flag, pattern, kind, names)}
    return [name for name in names if name in matched]


def match_one(flag: str, pattern: str, kind: str, names: Sequence[str]) -> list[str]:
    """Return the names that one regular expression matches whole."""
    try:
        hits = [name for name in names if re.fullmatch(pattern, name)]
    except re.error as error:
        raise RequestError(f"--env.robot.{flag} {pattern}: is not a valid regular expression ({error})") from error
    if not hits:
        raise misnamed(flag, pattern, f"matches no {kind}", names)
    return hits


def misnamed(flag: str, value: str, why: str, there: Iterable[str]) -> RequestError:
    """Make the error for a wrong name: the flag, the value, why, similar names and all that there are."""
    names = list(there)
    hint = suggest(value, names, "")
    return RequestError(f"--env.robot.{flag} {value}: {why}{hint}; available: {', '.join(names) or 'none'}")


def change_geoms(spec: Any, geoms: dict[str, GeomConfig]) -> None:
    """Change the geoms that each entry chooses."""
    for label, config in geoms.items():
        flag = f"geoms.{label}"
        if not config.geoms and not config.bodies:
            raise RequestError(f"--env.robot.{flag}: chooses no geoms; give expressions as its geoms or bodies")
        names = match(f"{flag}.geoms", config.geoms, "geom", [geom.name for geom in spec.geoms])
        bodies = match(f"{flag}.bodies", config.bodies, "body", [body.name for body in spec.bodies])
        for geom in spec.geoms:
            if (geom.name and geom.name in names) or (geom.parent.name and geom.parent.name in bodies):
                if config.collision is not None:
                    geom.contype = geom.conaffinity = int(config.collision)
                for name in _COPIED:
                    value = getattr(config, name)
                    if value is not None:
                        setattr(geom, name, value)


def exclude_self_collision(spec: Any) -> None:
    """Exclude contacts between bodies that hang on the same body of the world."""
    for index, body in enumerate(spec.bodies):
        if not body.name:  # an exclusion needs names
            body.name = free_name(f"body_{index}", spec.bodies)
    for root in spec.worldbody.bodies:
        tree = [root.name, *(body.name for body in root.find_all("body"))]
        for first, second in itertools.combinations(dict.fromkeys(tree), 2):
            spec.add_exclude(bodyname1=first, bodyname2=second)


def list_parts(spec: Any, kind: str) -> Any:
    """Return the parts of a kind, such as joint or body."""
    return spec.bodies if kind == "body" else getattr(spec, f"{kind}s")


def free_name(name: str, parts: Any) -> str:
    """Return a name, with a number from 2 on if parts have it already."""
    taken = {part.name for part in parts}
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain((name,), numbered) if free not in taken)


def add_sites(spec: Any, sites: dict[str, SiteConfig]) -> None:
    """Add sites."""
    for name, config in sites.items():
        _check_free(f"sites.{name}", name, "site", spec.sites)
        body = _find_body(spec, f"sites.{name}.body", config.body)
        body.add_site(
            name=name,
            pos=config.pos,
            quat=config.quat,
            size=config.size,
            type=getattr(mujoco.mjtGeom, f"mjGEOM_{config.type.upper()}"),
        )


def add_cameras(spec: Any, cameras: dict[str, MountedCameraConfig]) -> None:
    """Add cameras."""
    without_defaults = mujoco.MjSpec().worldbody.add_camera()
    for name, config in cameras.items():
        _check_free(f"cameras.{name}", name, "camera", spec.cameras)
        body = _find_body(spec, f"cameras.{name}.body", config.body)
        camera = body.add_camera(name=name, pos=config.pos, fovy=config.fovy, mode=_mode(config))
        for field in _OF_CAMERA_DEFAULTS:
            setattr(camera, field, getattr(without_defaults, field))
        camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
        if config.xyaxes is not None:
            camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
            camera.alt.xyaxes = config.xyaxes
        if config.mode.startswith("target"):
            _find_body(spec, f"cameras.{name}.target", config.target)
            camera.targetbody = config.target


def add_lights(spec: Any, lights: dict[str, LightConfig]) -> None:
    """Add lights."""
    for name, config in lights.items():
        _check_free(f"lights.{name}", name, "light", spec.lights)
        body = _find_body(spec, f"lights.{name}.body", config.body)
        body.add_light(
            name=name,
            pos=config.pos,
            dir=config.dir,
            diffuse=config.diffuse,
            mode=_mode(config),
            type=getattr(mujoco.mjtLightType, f"mjLIGHT_{config.type.upper()}"),
        )


def _mode(config: MountedCameraConfig | LightConfig) -> Any:
    return getattr(mujoco.mjtCamLight, f"mjCAMLIGHT_{config.mode.upper()}")


def _find_body(spec: Any, flag: str, name: str) -> Any:
    return spec.body(choose(flag, name, "body", [body.name for body in spec.bodies]))


def _check_free(flag: str, name: str, kind: str, parts: Any) -> None:
    if any(part.name == name for part in parts):
        raise RequestError(f"--env.robot.{flag}: the robot has a {kind} of this name; give another name")


def set_options(spec: Any, config: OptionConfig) -> None:
    """Set the options that are given."""
    for name in OptionConfig.__dataclass_fields__:
        value = getattr(config, name)
        if value is None or name in ("enable", "disable"):
            continue
        if name in _WORDS:
            words, prefix = _WORDS[name]
            value = words.__members__[prefix + value.upper()]
        setattr(spec.option, name, value)
    for name in config.disable:
        _switch(spec.option, "disable", name, on=False)
    for name in config.enable:
        _switch(spec.option, "enable", name, on=True)


def _switch(option: Any, field: str, name: str, *, on: bool) -> None:
    if name not in _DISABLE and name not in _ENABLE:
        raise misnamed(f"options.{field}", name, "is not a MuJoCo flag", (*_DISABLE, *_ENABLE))
    flags, bit = ("disableflags", _DISABLE[name]) if name in _DISABLE else ("enableflags", _ENABLE[name])
    sets = on == (name in _ENABLE)
    before = int(getattr(option, flags))
    setattr(option, flags, before | int(bit) if sets else before & ~int(bit))
