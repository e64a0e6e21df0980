"""Names of parts: new ones, and those of actuators that have none."""

import re
from typing import Any

import mujoco

from mjtrain.config import NamesConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.completion.parts import free_name, list_parts, match_one

_OBJECTS = {
    "joint": (mujoco.mjtObj.mjOBJ_JOINT,),
    "body": (mujoco.mjtObj.mjOBJ_BODY, mujoco.mjtObj.mjOBJ_XBODY),
    "geom": (mujoco.mjtObj.mjOBJ_GEOM,),
    "site": (mujoco.mjtObj.mjOBJ_SITE,),
    "actuator": (mujoco.mjtObj.mjOBJ_ACTUATOR,),
    "sensor": (mujoco.mjtObj.mjOBJ_SENSOR,),
}
_TARGETS = {
    mujoco.mjtTrn.mjTRN_JOINT: "joint",
    mujoco.mjtTrn.mjTRN_JOINTINPARENT: "joint",
    mujoco.mjtTrn.mjTRN_SITE: "site",
    mujoco.mjtTrn.mjTRN_BODY: "body",
    mujoco.mjtTrn.mjTRN_SLIDERCRANK: "site",
}


def rename_parts(spec: Any, config: NamesConfig) -> None:
    """Give parts new names, and use these wherever the robot refers to them; actuators without a name get one."""
    if config.free_joint:
        _name_free_joint(spec, config.free_joint)
    for kind in _OBJECTS:
        plural, parts = "bodies" if kind == "body" else f"{kind}s", list_parts(spec, kind)
        if kind == "actuator":
            _name_actuators(spec)  # after the new names of joints, and before those of actuators
        old_names: list[str] = [part.name for part in parts if part.name and part.name != "world"]
        new_names: dict[str, str] = {}
        for pattern, template in getattr(config, plural).items():
            flag = f"names.{plural}"
            for name in match_one(flag, pattern, kind, old_names):
                try:
                    new_names[name] = re.sub(f"^(?:{pattern})$", template, name)
                except (re.error, IndexError) as error:
                    raise RequestError(f"--env.robot.{flag} {pattern} {template}: {error}") from error
        after = [new_names.get(name, name) for name in old_names]
        doubled = sorted({name for name in after if after.count(name) > 1})
        if doubled:
            raise RequestError(f"--env.robot.names.{plural}: would give {', '.join(doubled)} to more than one {kind}")
        _check_tendons(spec, kind, new_names, f"--env.robot.names.{plural}")
        for part in parts:  # in two passes, as names may be exchanged
            if part.name in new_names:
                part.name = f"\x01{new_names[part.name]}"
        for part in parts:
            part.name = part.name.removeprefix("\x01")
        if new_names:
            _refer(spec, kind, new_names)


def _name_free_joint(spec: Any, name: str) -> None:
    free = [joint for joint in spec.joints if joint.type == mujoco.mjtJoint.mjJNT_FREE]
    nameless = [joint for joint in free if not joint.name]
    if len(nameless) != 1:
        named = ", ".join(joint.name for joint in free if joint.name) or "none"
        raise RequestError(
            f"--env.robot.names.free-joint {name}: the robot has {len(nameless)} free joints without a name, and with "
            f"one {named}; rename those with --env.robot.names.joints"
        )
    if any(joint.name == name for joint in spec.joints):
        raise RequestError(f"--env.robot.names.free-joint {name}: another joint has this name")
    nameless[0].name = name


def _check_tendons(spec: Any, kind: str, names: dict[str, str], flag: str) -> None:
    """Refuse new names of what a tendon runs over: MuJoCo cannot replace a part of its path."""
    for tendon in spec.tendons:
        for part in (part for wrap in tendon.path for part in (wrap.target, wrap.sidesite) if part is not None):
            if f"Mjs{kind.capitalize()}" == type(part).__name__ and names.get(part.name, part.name) != part.name:
                raise RequestError(
                    f"{flag}: {kind} {part.name} would be {names[part.name]}, and tendon {tendon.name or tendon.id} of "
                    f"the robot's file names it, which does not follow; let the {kind} keep its name"
                )


def _refer(spec: Any, kind: str, names: dict[str, str]) -> None:
    """Replace names in everything that refers to parts of a kind by name."""

    def replace(part: Any, *fields: str) -> None:
        for field in fields:
            name = getattr(part, field)
            setattr(part, field, names.get(name, name))

    for sensor in spec.sensors:
        if sensor.objtype in _OBJECTS[kind]:
            replace(sensor, "objname")
        if sensor.reftype in _OBJECTS[kind]:
            replace(sensor, "refname")
    for actuator in spec.actuators:
        if _TARGETS.get(actuator.trntype) == kind:
            replace(actuator, "target")
        if kind == "site":
            replace(actuator, "refsite", "slidersite")
    for equality in spec.equalities:
        joined = equality.type == mujoco.mjtEq.mjEQ_JOINT
        if kind == ("joint" if joined else {v[0]: k for k, v in _OBJECTS.items()}.get(equality.objtype, "body")):
            replace(equality, "name1", "name2")
    for part in spec.tuples:
        of_kind = [mujoco.mjtObj(number) in _OBJECTS[kind] for number in part.objtype]
        part.objname = [names.get(n, n) if hit else n for n, hit in zip(part.objname, of_kind, strict=True)]
    if kind == "body":
        for exclude in spec.excludes:
            replace(exclude, "bodyname1", "bodyname2")
        for part in (*spec.cameras, *spec.lights):
            replace(part, "targetbody")
    if kind == "geom":
        for pair in spec.pairs:
            replace(pair, "geomname1", "geomname2")


def _name_actuators(spec: Any) -> None:
    """Name actuators that have no name after what they drive; a second one on it gets the type or a number too."""
    for actuator in spec.actuators:
        if actuator.name or not actuator.target:
            continue
        is_taken = any(other.name == actuator.target for other in spec.actuators)
        name = f"{actuator.target}_{actuator_type(actuator)}" if is_taken else actuator.target
        actuator.name = free_name(name, spec.actuators)


def actuator_type(actuator: Any) -> str:
    """Return the MJCF element that an actuator is like: motor, position, velocity, muscle, or general."""
    affine = actuator.biastype == mujoco.mjtBias.mjBIAS_AFFINE
    if actuator.gaintype == mujoco.mjtGain.mjGAIN_MUSCLE:
        return "muscle"
    if actuator.gaintype == mujoco.mjtGain.mjGAIN_FIXED and affine:
        return "position" if actuator.biasprm[1] else "velocity"
    fixed = actuator.gaintype == mujoco.mjtGain.mjGAIN_FIXED and actuator.dyntype == mujoco.mjtDyn.mjDYN_NONE
    return "motor" if fixed else "general"
