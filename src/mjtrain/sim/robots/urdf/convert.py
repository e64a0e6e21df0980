"""Turn a URDF into a robot that can be trained: base, actuators, home pose, sensors and collisions."""

import math
import re
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mjtrain.config import ActuatorConfig, RobotConfig
from mjtrain.config.limits import find_option_problems
from mjtrain.config.robot import ImportConfig, KeyframeConfig, OptionConfig, SensorConfig, SiteConfig
from mjtrain.runtime.errors import RequestError, count, refuse
from mjtrain.runtime.files import write_whole
from mjtrain.sim.robots.completion import complete_robot
from mjtrain.sim.robots.completion.parts import free_name
from mjtrain.sim.robots.layout import match_names
from mjtrain.sim.robots.measured import hangs_on
from mjtrain.sim.robots.read_layout import SCALAR_JOINTS
from mjtrain.sim.robots.robot_bundle import RobotBundleError, bundle_built_robot
from mjtrain.sim.robots.start import find_base
from mjtrain.sim.robots.urdf.read import read_urdf

_FAR_M = 100.0
"""Depth of the plane from which heights of geoms are measured, in m."""

_FOOT_M = 0.01
"""Geoms that end within this height of the lowest one stand on the ground, in m."""

_FITTED = {"capsule": mujoco.mjtGeom.mjGEOM_CAPSULE, "box": mujoco.mjtGeom.mjGEOM_BOX}

_TIMESTEP_S = 0.002
"""Physics step of an imported robot, in s."""

_HINGE, _SLIDE = mujoco.mjtJoint.mjJNT_HINGE.value, mujoco.mjtJoint.mjJNT_SLIDE.value


def import_urdf(file: Path, config: ImportConfig) -> tuple[Path, list[str]]:
    """Write a robot as MJCF, with its meshes beside it; nothing is overwritten.

    Returns:
        The MJCF file, and lines about what was assumed, found elsewhere or left out.
    """
    refuse(find_option_problems(config))
    spec, roots, notes = read_urdf(file, config)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", spec.modelname or file.stem).strip(".") or "robot"
    out = Path(config.out or name) / f"{name}.xml"
    if out.exists():
        raise RequestError(f"{out}: exists; give another folder with --out")
    try:
        notes += _fix_or_free(spec, config, roots)
        notes += _choose_geoms(spec, config)
        notes += _complete(spec, config)
        files = bundle_built_robot(RobotConfig(spec=_named(lambda: spec, name)))
    except (RobotBundleError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        words = " ".join(str(error).split())
        raise RequestError(f"{file}: {words}{_advise(words, spec)}") from error
    try:
        for path, content in files.items():
            (out.parent / path).parent.mkdir(parents=True, exist_ok=True)
            write_whole(out.parent / path, content)
    except OSError as error:
        raise RequestError(f"--out {out.parent}: cannot be written ({error.strerror or error})") from error
    return out, notes


def _advise(words: str, spec: Any) -> str:
    """Say what MuJoCo's error leaves out: what to change in a URDF, and the link of a geom without a name."""
    if "mjMINVAL" in words:
        return "; give this link an <inertial> with a mass and an inertia"
    if "balanceinertia" in words:
        return ', as in <mujoco><compiler balanceinertia="true"/></mujoco>, or give this link its true inertia'
    geom = re.search(r" in geom Element name '', id (\d+)", words)
    return "" if geom is None else f", on link {spec.geoms[int(geom.group(1))].parent.name}"


def _named(function: Any, name: str) -> Any:
    function.__name__ = function.__qualname__ = name
    return function


def _fix_or_free(spec: Any, config: ImportConfig, roots: list[str]) -> list[str]:
    """Give the root link a free joint, unless it is fixed, has one, or is the world."""
    moving = [joint for joint in spec.joints if joint.type == mujoco.mjtJoint.mjJNT_FREE]
    if config.fixed_base:
        if moving:
            raise RequestError(f"--fixed-base: the file gives the robot a floating joint, {moving[0].name}")
        return ["base: the root link is fixed to the world"]
    if len(roots) > 1:
        raise RequestError(
            f"{spec.modelname}: has {len(roots)} root links, {' and '.join(roots)}; join them, or give --fixed-base, "
            "which fixes each to the world"
        )
    bodies = spec.worldbody.bodies
    if moving or not bodies:
        return []
    if "world" in roots or bodies[0].joints:
        return ["base: fixed, because the file hangs the robot on the link world"]
    name = free_name("root", spec.joints)
    bodies[0].add_freejoint(name=name)
    return [f"base: link {bodies[0].name} has a free joint, {name} (--fixed-base fixes it to the world)"]


def _choose_geoms(spec: Any, config: ImportConfig) -> list[str]:
    """Show visual geometry and hide collision geometry on links that have both; choose with what meshes collide."""
    notes, hulls, weightless = [], 0, []
    for body in spec.bodies:
        shown = [geom for geom in body.geoms if not geom.contype and not geom.conaffinity]
        for geom in body.geoms:
            collides = geom not in shown
            geom.group = 2 if not collides else (3 if shown else 0)
            if collides and geom.type == mujoco.mjtGeom.mjGEOM_MESH:
                hulls += 1
                if config.collisions == "none":
                    geom.contype = geom.conaffinity = 0
                elif config.collisions in _FITTED:
                    geom.type = _FITTED[config.collisions]
            if collides and not body.explicitinertial and not body.joints and body.name != "world":
                geom.density = 0
                weightless.append(body.name)
    if hulls:
        words = {"mesh": "as convex hulls", "none": "that collide with nothing"}
        how = words.get(config.collisions, f"as one {config.collisions} each")
        notes.append(f"collisions: {count(hulls, 'mesh', 'meshes')} {how} (--collisions mesh, capsule, box or none)")
    if weightless:
        links = ", ".join(dict.fromkeys(weightless))
        notes.append(f"masses: none for links without <inertial> that are fixed to others ({links})")
    return notes


def _complete(spec: Any, config: ImportConfig) -> list[str]:
    """Add what a training needs, in place."""
    spec.option.timestep = _TIMESTEP_S
    model = spec.compile()
    if not set(_scalar_joints(model)) - _followers(model).keys():
        raise RequestError(f"{spec.modelname}: needs a revolute, continuous or prismatic joint that mimics no other")
    home, pose_notes = _choose_home(model, config)
    lift, feet = _stand(spec, home)
    base = find_base(model)
    height = int(model.jnt_qposadr[base]) + 2 if base >= 0 else None
    if height is not None:
        home[height] += lift
        where = "where the lowest geom touches the ground" if feet else "as in the file, because no geom collides"
        pose_notes.append(f"home: the base is at a height of {home[height]:.3f} m, {where}")
    notes = [*pose_notes, *_exclude_touching(spec, model, home)]
    actuators, actuator_notes = _choose_actuators(model, home, config)
    sites, sensors, sensor_notes = _choose_sensors(model, feet, base)
    complete_robot(
        spec,
        RobotConfig(
            options=OptionConfig(integrator="implicitfast"),
            actuators=actuators,
            sites=sites,
            sensors=sensors,
            keyframes={
                "home": KeyframeConfig(
                    joints={
                        re.escape(model.joint(joint).name): float(home[model.jnt_qposadr[joint]])
                        for joint in _scalar_joints(model)
                    },
                    free_joint="" if height is None else model.joint(base).name,
                    height=None if height is None else float(home[height]),
                )
            },
        ),
    )
    return [
        *notes,
        *actuator_notes,
        *sensor_notes,
        f"options: physics steps of {_TIMESTEP_S:g} s, integrator implicitfast; rotors have no inertia (armature 0)",
    ]


def _choose_home(model: mujoco.MjModel, config: ImportConfig) -> tuple[np.ndarray, list[str]]:
    """Return the home pose, with the base where the file has it. Shape (nq,)."""
    pose, moved = model.qpos0.copy(), []
    names = {model.joint(joint).name: joint for joint in _scalar_joints(model)}
    for name, joint in names.items():
        low, high = model.jnt_range[joint]
        if model.jnt_limited[joint] and not low <= 0 <= high:
            pose[model.jnt_qposadr[joint]] = (low + high) / 2
            moved.append(name)
    mimics = _followers(model)
    for pattern, value in config.home.items():
        try:
            matched = match_names((pattern,), names, "joint")
        except RequestError as error:
            raise RequestError(f"--home {pattern} {value:.15g}: {error}") from error
        own = [name for name in matched if names[name] not in mimics]
        if not own:
            leader = model.joint(mimics[names[matched[0]]][0]).name
            raise RequestError(f"--home {pattern} {value:g}: joint {matched[0]} mimics {leader}; set that one")
        for name in own:
            low, high = model.jnt_range[names[name]]
            if model.jnt_limited[names[name]] and not low <= value <= high:
                bounds = f"outside the range {low:.15g} to {high:.15g} of joint {name}"
                raise RequestError(f"--home {pattern} {value:.15g}: {bounds}")
            pose[model.jnt_qposadr[names[name]]] = value
    for _ in mimics:  # one may mimic another, whose place in this order is not known
        for follower, (leader, coefficients) in mimics.items():
            lead = pose[model.jnt_qposadr[leader]]
            pose[model.jnt_qposadr[follower]] = np.polynomial.polynomial.polyval(lead, coefficients)
    for follower, (leader, _) in mimics.items():
        position, (low, high) = float(pose[model.jnt_qposadr[follower]]), model.jnt_range[follower]
        if model.jnt_limited[follower] and max(low - position, position - high) > max(high - low, 1.0):
            raise RequestError(
                f"joint {model.joint(follower).name} mimics {model.joint(leader).name}, and is at {position:g} in the "
                f"home pose, outside its range {low:g} to {high:g}; give another --home, multiplier or offset"
            )
    given = "as given by --home, and " if config.home else ""
    notes = [f"home: {given}joints at 0" + (f"; at the middle of its range: {', '.join(moved)}" if moved else "")]
    if not config.home:
        notes[0] += " (--home '.*_knee' -1.2 bends joints)"
    return pose, notes


def _stand(spec: Any, pose: np.ndarray) -> tuple[float, list[str]]:
    """Return how far the base has to rise until the lowest geom touches the ground, in m, and the bodies there."""
    measured = spec.copy()
    measured.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], pos=[0, 0, -_FAR_M])
    model = measured.compile()
    data = mujoco.MjData(model)
    data.qpos[:] = pose
    mujoco.mj_kinematics(model, data)
    plane = int(np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE.value)[-1])
    heights = {
        geom: mujoco.mj_geomDistance(model, data, plane, geom, 10 * _FAR_M, None) - _FAR_M
        for geom in range(model.ngeom)
        if model.geom_contype[geom] and geom != plane and model.body_weldid[model.geom_bodyid[geom]]
    }
    if not heights:
        return 0.0, []
    lowest = min(heights.values())
    feet = [int(model.geom_bodyid[geom]) for geom, height in heights.items() if height < lowest + _FOOT_M]
    return -lowest, [model.body(body).name for body in dict.fromkeys(feet)]


def _exclude_touching(spec: Any, model: mujoco.MjModel, pose: np.ndarray) -> list[str]:
    data = mujoco.MjData(model)
    data.qpos[:] = pose
    mujoco.mj_fwdPosition(model, data)
    pairs = {tuple(sorted(int(model.geom_bodyid[geom]) for geom in contact.geom)) for contact in data.contact}
    names = [tuple(model.body(body).name for body in pair) for pair in sorted(pairs) if 0 not in pair]
    for first, second in names:
        spec.add_exclude(bodyname1=first, bodyname2=second)
    if not names:
        return []
    listed = ", ".join(f"{first} and {second}" for first, second in names[:4]) + (", …" if len(names) > 4 else "")
    return [f"collisions: excluded between links that touch in the home pose: {listed}"]


def _choose_sensors(
    model: mujoco.MjModel, feet: list[str], base: int
) -> tuple[dict[str, SiteConfig], dict[str, SensorConfig], list[str]]:
    """Return sensors of the base and of the feet; on a fixed base, of the ends of the chains."""
    if base < 0:
        ends = [
            model.body(body).name
            for body in range(1, model.nbody)
            if body not in model.body_parentid and model.body_weldid[body]
        ]
        sensors = {f"{end}_position": SensorConfig(type="framepos", object=end, object_type="xbody") for end in ends}
        return {}, sensors, [f"sensors: {', '.join(sensors)}"]
    root = int(model.jnt_bodyid[base])
    imus = [b for b in range(1, model.nbody) if re.search(r"(^|_)imu(_|$)", model.body(b).name, re.I)]
    link = model.body(max(imus, key=lambda body: model.body_weldid[body] == root, default=root)).name
    sites = {"imu": SiteConfig(body=link)}
    sensors = {
        "base_velocity": SensorConfig(type="velocimeter", object="imu"),
        "base_angular_velocity": SensorConfig(type="gyro", object="imu"),
        "base_acceleration": SensorConfig(type="accelerometer", object="imu"),
        "up": SensorConfig(
            type="framezaxis", object="world", object_type="xbody", reference="imu", reference_type="site"
        ),
    }
    for foot in feet:
        contact = SensorConfig(type="contact", object=foot, object_type="body", data=("force",), reduce="netforce")
        sensors[f"{foot}_contact"] = contact
    where = f"on link {link}" if imus else f"at the frame of link {link}, because no link is named imu"
    return sites, sensors, [f"sensors: {', '.join(sensors)}; the IMU is {where}"]


def _scalar_joints(model: mujoco.MjModel) -> list[int]:
    return [joint for joint in range(model.njnt) if model.jnt_type[joint] in SCALAR_JOINTS]


def _followers(model: mujoco.MjModel) -> dict[int, tuple[int, np.ndarray]]:
    """Return joints that mimic others, with the one that leads and the polynomial."""
    rows = np.flatnonzero(model.eq_type == mujoco.mjtEq.mjEQ_JOINT.value)
    return {int(model.eq_obj1id[row]): (int(model.eq_obj2id[row]), model.eq_data[row, :5]) for row in rows}


def _choose_actuators(
    model: mujoco.MjModel, home: np.ndarray, config: ImportConfig
) -> tuple[dict[str, ActuatorConfig], list[str]]:
    """Return a position actuator for each joint that moves by itself."""
    data = mujoco.MjData(model)
    data.qpos[:] = home
    mujoco.mj_forward(model, data)
    inverse = np.zeros((model.nv, model.nv))
    mujoco.mj_solveM(model, data, inverse, np.eye(model.nv))
    mimics = _followers(model)
    actuators, unlimited, softened = {}, [], []
    for joint in _scalar_joints(model):
        if joint in mimics:
            continue
        name, dof, is_hinge = model.joint(joint).name, int(model.jnt_dofadr[joint]), model.jnt_type[joint] == _HINGE
        effort = float(model.jnt_actfrcrange[joint, 1]) if model.jnt_actfrclimited[joint] else 0.0
        if not 0 < effort < math.inf:
            effort = _guess_effort(model, data, joint)
            unlimited.append(f"{name} {effort:.3g}")
        width = float(np.ptp(model.jnt_range[joint])) if model.jnt_limited[joint] else 0.0
        error = config.full_effort_at if is_hinge else (0.1 * width or 0.05)
        inertia = 1.0 / float(inverse[dof, dof])
        kp, stiffest = effort / error, inertia * (0.5 / _TIMESTEP_S) ** 2
        if kp > stiffest:
            softened.append(name)
            kp = stiffest
        kv = 2 * config.damping_ratio * math.sqrt(kp * inertia)
        position = float(home[model.jnt_qposadr[joint]])
        actuators[name] = ActuatorConfig(
            joints=(re.escape(name),),
            kp=float(f"{kp:.4g}"),
            kv=float(f"{kv:.4g}"),
            force_range=(-effort, effort),
            ctrl_range=None if model.jnt_limited[joint] or not is_hinge else (position - math.pi, position + math.pi),
        )
    kps = [actuator.kp for actuator in actuators.values()]
    notes = [
        f"actuators: {count(len(kps), 'position actuator')}, kp {min(kps):.3g} to {max(kps):.3g}: the full effort at "
        f"{config.full_effort_at:g} rad (--full-effort-at), damped by {config.damping_ratio:g} of critical "
        "(--damping-ratio); the gains of the robot's own controller are better"
    ]
    if unlimited:
        notes.append(f"actuators: no effort limit in the file; guessed from the weight: {', '.join(unlimited)}")
    if softened:
        notes.append(f"actuators: kp reduced to what physics steps of {_TIMESTEP_S:g} s allow: {', '.join(softened)}")
    if mimics:
        names = ", ".join(model.joint(joint).name for joint in mimics)
        notes.append(f"actuators: none for joints that mimic others: {names}")
    return actuators, notes


def _guess_effort(model: mujoco.MjModel, data: mujoco.MjData, joint: int) -> float:
    """Guess an effort limit: twice what holds up what hangs on the joint, or a quarter of a robot that stands on it."""
    body = int(model.jnt_bodyid[joint])
    below = [b for b in range(model.nbody) if hangs_on(model, b, body)]
    mass = float(model.body_mass[below].sum())
    if find_base(model) >= 0:
        mass = max(mass, float(model.body_mass.sum()) / 4)
    weight = 2 * mass * 9.81
    if model.jnt_type[joint] == _SLIDE:
        return float(f"{max(weight, 1.0):.3g}")
    reach = max(float(np.linalg.norm(data.xipos[b] - data.xanchor[joint])) for b in below)
    return float(f"{max(weight * reach, 0.1):.3g}")
