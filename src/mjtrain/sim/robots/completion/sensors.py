"""Sensors that are added, by the names of MJCF."""

import functools
from collections.abc import Callable
from typing import Any

import mujoco

from mjtrain.config import SensorConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.completion.parts import choose, compile_copy, list_parts, misnamed
from mjtrain.sim.robots.layout import CONTACT_WIDTHS

_SITE, _FRAME, _SUBTREE = ("site",), ("site", "xbody", "geom", "camera", "body"), ("xbody",)
_JOINT, _TENDON, _ACTUATOR = ("joint",), ("tendon",), ("actuator",)
_CONTACT, _DISTANCE = ("geom", "body", "site", "subtree"), ("geom", "body")

OBJECTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("touch", "accelerometer", "velocimeter", "gyro", "force", "torque", "magnetometer"), _SITE),
    **dict.fromkeys(("rangefinder", "camprojection"), _SITE),
    **dict.fromkeys(("framepos", "framequat", "framexaxis", "frameyaxis", "framezaxis"), _FRAME),
    **dict.fromkeys(("framelinvel", "frameangvel", "framelinacc", "frameangacc"), _FRAME),
    **dict.fromkeys(("jointpos", "jointvel", "jointactuatorfrc", "ballquat", "ballangvel"), _JOINT),
    **dict.fromkeys(("jointlimitpos", "jointlimitvel", "jointlimitfrc"), _JOINT),
    **dict.fromkeys(("tendonpos", "tendonvel", "tendonactuatorfrc"), _TENDON),
    **dict.fromkeys(("tendonlimitpos", "tendonlimitvel", "tendonlimitfrc"), _TENDON),
    **dict.fromkeys(("actuatorpos", "actuatorvel", "actuatorfrc"), _ACTUATOR),
    **dict.fromkeys(("subtreecom", "subtreelinvel", "subtreeangmom"), _SUBTREE),
    **dict.fromkeys(("distance", "normal", "fromto"), _DISTANCE),
    "insidesite": _FRAME,
    "contact": _CONTACT,
    **dict.fromkeys(("clock", "potential", "kinetic"), ()),
}
"""Types of sensors, and the kinds of objects that they take; without a kind, the first that has the name counts."""

_REFERENCES = {
    **{name: _FRAME for name in OBJECTS if name.startswith("frame")},
    **dict.fromkeys(("distance", "normal", "fromto"), _DISTANCE),
    "contact": ("geom", "body", "subtree"),
    "camprojection": ("camera",),
    "insidesite": _SITE,
}
_NEED_REFERENCE = ("distance", "normal", "fromto", "camprojection", "insidesite")
_TYPES = {
    "jointactuatorfrc": "JOINTACTFRC",
    "tendonactuatorfrc": "TENDONACTFRC",
    "distance": "GEOMDIST",
    "normal": "GEOMNORMAL",
    "fromto": "GEOMFROMTO",
    "potential": "E_POTENTIAL",
    "kinetic": "E_KINETIC",
}
_AROUND_M = 0.002
"""A site in place of a geom is larger than geom and margin by this much, as contacts lie on the surface, in m."""

_DATA = tuple(CONTACT_WIDTHS)
_REDUCE = ("none", "mindist", "maxforce", "netforce")


def add_sensors(spec: Any, sensors: dict[str, SensorConfig]) -> None:
    """Add sensors, and the sites that they need."""
    compiled = functools.cache(lambda: compile_copy(spec))  # once, where a geom becomes a site
    for name, config in sensors.items():
        flag = f"sensors.{name}"
        if config.type not in OBJECTS:
            raise misnamed(f"{flag}.type", config.type or repr(""), "is not a sensor type", OBJECTS)
        kind, found = _find_object(spec, compiled, name, config)
        before = next((sensor for sensor in spec.sensors if sensor.name == name), None)
        if before is not None:
            spec.delete(before)
        sensor = spec.add_sensor(
            name=name, type=getattr(mujoco.mjtSensor, f"mjSENS_{_TYPES.get(config.type, config.type.upper())}")
        )
        sensor.objtype, sensor.objname = _object_type(config, kind), found
        _set_reference(spec, sensor, flag, config)
        if config.cutoff:
            sensor.cutoff = config.cutoff
        for field in () if config.type == "contact" else ("data", "reduce", "num"):
            if (value := getattr(config, field)) != getattr(SensorConfig, field):
                given = " ".join(value) if isinstance(value, tuple) else value
                raise RequestError(f"--env.robot.{flag}.{field} {given}: only type contact uses it; leave it out")
        if config.type == "contact":
            sensor.intprm = _contact_settings(flag, config)
        elif config.type == "rangefinder":
            sensor.intprm = [1 << int(mujoco.mjtRayDataField.mjRAYDATA_DIST), 0, 0]


def _find_object(spec: Any, compiled: Callable[[], Any], name: str, config: SensorConfig) -> tuple[str, str]:
    """Return the kind and the name of what a sensor measures; both empty where the type needs none."""
    flag, kinds = f"sensors.{name}.object", OBJECTS[config.type]
    if not config.object and (not kinds or config.type == "contact"):
        return "", ""
    if not kinds:
        raise RequestError(f"--env.robot.{flag} {config.object}: a sensor of type {config.type} takes no object")
    if kinds != _SITE or config.object_type == "site" or config.object in _names(spec, "site"):
        return _find(spec, flag, config.object, config.object_type, kinds)
    shapes_count = config.type == "touch"  # of the contacts inside the site; a body has no shape to give it
    others = ("site", "geom") if shapes_count else ("site", "xbody", "geom")
    kind, found = _find(spec, flag, config.object, config.object_type, others)
    return "site", _add_site(spec, compiled, name, kind, found, flag)


def _set_reference(spec: Any, sensor: Any, flag: str, config: SensorConfig) -> None:
    if not config.reference:
        if config.type in _NEED_REFERENCE:
            raise RequestError(f"--env.robot.{flag}.reference: a sensor of type {config.type} needs one")
        return
    kinds = _REFERENCES.get(config.type)
    if kinds is None:
        raise RequestError(f"--env.robot.{flag}.reference {config.reference}: type {config.type} takes no reference")
    kind, found = _find(spec, f"{flag}.reference", config.reference, config.reference_type, kinds)
    sensor.reftype, sensor.refname = _object_type(config, kind), found


def _find(spec: Any, flag: str, name: str, asked: str, kinds: tuple[str, ...]) -> tuple[str, str]:
    if asked:
        if asked not in kinds:
            raise misnamed(f"{flag}_type", asked, "this type of sensor takes none", kinds)
        return asked, choose(flag, name, _word(asked), _names(spec, asked))
    for kind in kinds:
        if name in _names(spec, kind):
            return kind, name
    words = dict.fromkeys(_word(kind) for kind in kinds)
    there = dict.fromkeys(item for kind in kinds for item in _names(spec, kind))
    raise misnamed(flag, name or repr(""), f"no {' or '.join(words)} has this name", there)


def _word(kind: str) -> str:
    return "body" if kind in ("xbody", "subtree") else kind


def _names(spec: Any, kind: str) -> list[str]:
    return [part.name for part in list_parts(spec, _word(kind)) if part.name]


def _object_type(config: SensorConfig, kind: str) -> Any:
    """Return MuJoCo's type of object; it calls a subtree xbody, and the bodies of most sensors body."""
    if not kind:
        return mujoco.mjtObj.mjOBJ_UNKNOWN
    if kind == "subtree":
        return mujoco.mjtObj.mjOBJ_XBODY
    if OBJECTS[config.type] == _SUBTREE:
        return mujoco.mjtObj.mjOBJ_BODY
    return getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}")


def _contact_settings(flag: str, config: SensorConfig) -> list[int]:
    data = [_DATA.index(choose(f"{flag}.data", word, "contact data", _DATA)) for word in config.data]
    if data != sorted(set(data)):  # the columns come in this order whatever the config says
        right = " ".join(_DATA[index] for index in sorted(set(data)))
        raise RequestError(f"--env.robot.{flag}.data {' '.join(config.data)}: give MuJoCo's order, {right}")
    bits = sum(1 << index for index in data)
    return [bits, _REDUCE.index(config.reduce), config.num]


def _add_site(spec: Any, compiled: Callable[[], Any], name: str, kind: str, found: str, flag: str) -> str:
    """Add a site at the frame of a body, or around a geom in its shape; it is named after the sensor."""
    if name in _names(spec, "site"):
        raise RequestError(
            f"--env.robot.{flag} {found}: would add a site named {name} there, and the robot has one of this name; "
            f"give the sensor another name, or measure at the site (object {name})"
        )
    if kind == "xbody":
        spec.body(found).add_site(name=name, size=[0.01, 0.01, 0.01])
        return name
    model = compiled()
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, found)
    if index < 0:
        raise RequestError(f"--env.robot.{flag} {found}: the file has discardvisual, which removes this geom")
    shape = mujoco.mjtGeom(model.geom_type[index])
    if shape in (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD, mujoco.mjtGeom.mjGEOM_MESH):
        word = shape.name.removeprefix("mjGEOM_").lower()
        raise RequestError(
            f"--env.robot.{flag} {found}: the geom is a {word}, which no site can be; add one with --env.robot.sites"
        )
    spec.geom(found).parent.add_site(
        name=name,
        pos=model.geom_pos[index],
        quat=model.geom_quat[index],
        size=model.geom_size[index] + (model.geom_margin[index] + _AROUND_M) * (model.geom_size[index] > 0),
        type=shape,
    )
    return name
