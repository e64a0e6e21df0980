"""What a task may add to a robot or change of it, part by part."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from mjtrain.config.limits import AT_LEAST_0, AT_LEAST_1, FINITE, FRACTION, MORE_THAN_0, NONZERO, Direction, Range

Vector = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class NamesConfig:
    """New names for parts of the robot. All other settings, and the terms of the task, use the new names."""

    joints: dict[str, str] = field(default_factory=dict)
    """Regular expressions that match whole names, and what replaces them, with groups as in re.sub: for example
    "(.*)_joint" and "\\1". At most one expression may match a name."""

    free_joint: str = ""
    """Name for a free joint that has none, as <freejoint/> often has; used before the others."""

    bodies: dict[str, str] = field(default_factory=dict)
    """The same for bodies."""

    geoms: dict[str, str] = field(default_factory=dict)
    """The same for geoms."""

    sites: dict[str, str] = field(default_factory=dict)
    """The same for sites."""

    actuators: dict[str, str] = field(default_factory=dict)
    """The same for actuators."""

    sensors: dict[str, str] = field(default_factory=dict)
    """The same for sensors."""


@dataclass(frozen=True, kw_only=True)
class MirrorConfig:
    """Which parts of a robot are mirror images of each other; only a symmetry of the learning asks."""

    plane: Literal["x", "y"] = "y"
    """Axis of the world that the mirror reverses: y for the left and the right of a robot that looks along x."""

    names: dict[str, str] = field(default_factory=dict)
    """Regular expressions that match whole names of parts on the left, and the names of their images on the right, with
    groups as in re.sub: for example "FL_(.*)" and "FR_\\1". They hold for joints, actuators, sensors, bodies and sites.
    What none matches is its own image."""

    tolerance: Annotated[float, MORE_THAN_0] = 0.1
    """Largest difference between an acceleration of a joint and that of its image, as a fraction of the largest
    acceleration of any joint. Robots are not quite even, and measured damping or friction may differ much."""


@dataclass(frozen=True, kw_only=True)
class OptionConfig:
    """MuJoCo's <option>, by its names. None: as in the file."""

    integrator: Literal["Euler", "RK4", "implicit", "implicitfast"] | None = None
    """Numerical integrator."""

    solver: Literal["PGS", "CG", "Newton"] | None = None
    """Constraint solver."""

    cone: Literal["pyramidal", "elliptic"] | None = None
    """Shape of the friction cones."""

    jacobian: Literal["dense", "sparse", "auto"] | None = None
    """Form of the constraint Jacobian."""

    iterations: Annotated[int | None, AT_LEAST_1] = None
    """Most iterations of the solver."""

    ls_iterations: Annotated[int | None, AT_LEAST_1] = None
    """Most iterations of its line search."""

    noslip_iterations: Annotated[int | None, AT_LEAST_0] = None
    """Iterations of the noslip solver."""

    ccd_iterations: Annotated[int | None, AT_LEAST_1] = None
    """Most iterations of convex collision detection."""

    tolerance: Annotated[float | None, AT_LEAST_0] = None
    """Tolerance at which the solver stops."""

    impratio: Annotated[float | None, MORE_THAN_0] = None
    """Ratio of frictional to normal constraint impedance."""

    gravity: Annotated[Vector | None, FINITE] = None
    """Gravity in the world's frame, in m/s²."""

    wind: Annotated[Vector | None, FINITE] = None
    """Velocity of the medium, in m/s."""

    density: Annotated[float | None, AT_LEAST_0] = None
    """Density of the medium, in kg/m³."""

    viscosity: Annotated[float | None, AT_LEAST_0] = None
    """Viscosity of the medium, in Pa s."""

    disable: tuple[str, ...] = ()
    """Names in <flag> that are turned off, such as contact, gravity, eulerdamp, filterparent."""

    enable: tuple[str, ...] = ()
    """Names in <flag> that are turned on, such as contact, energy."""


@dataclass(frozen=True, kw_only=True)
class GeomConfig:
    """Changes of geoms. They are chosen by name, by body, or both; None: as in the file."""

    geoms: tuple[str, ...] = ()
    """Regular expressions that match whole names of geoms."""

    bodies: tuple[str, ...] = ()
    """Regular expressions that match whole names of bodies: all their geoms, with a name or without."""

    collision: bool | None = None
    """False: they collide with nothing (contype and conaffinity 0). True: with every geom that collides (both 1)."""

    contype: int | None = None
    """Bits that say what kind of geom this is, see MuJoCo on collision filtering."""

    conaffinity: int | None = None
    """Bits that say with which kinds it collides."""

    condim: int | None = None
    """Dimensions of the contact: 1 frictionless, 3 sliding, 4 torsional, 6 rolling friction too."""

    friction: Annotated[Vector | None, AT_LEAST_0] = None
    """Sliding (no unit), torsional and rolling friction (both in m)."""

    priority: int | None = None
    """Where two geoms touch, the friction of the one with the higher priority counts."""

    margin: Annotated[float | None, FINITE] = None
    """Distance below which there is a contact, in m."""

    group: Annotated[int | None, Range(least=0, most=5)] = None
    """Group that viewers show or hide together, 0 to 5; by default 0 to 2 are shown."""

    rgba: Annotated[tuple[float, float, float, float] | None, FRACTION] = None
    """Colour and opacity, 0 to 1 each."""


@dataclass(frozen=True, kw_only=True)
class SiteConfig:
    """A site that is added: a named frame on a body."""

    body: str = "world"
    """Body that it is fixed to."""

    pos: Annotated[Vector, FINITE] = (0.0, 0.0, 0.0)
    """Position in the body's frame, in m."""

    quat: Annotated[Quaternion, Direction()] = (1.0, 0.0, 0.0, 0.0)
    """Orientation in the body's frame, quaternion (w, x, y, z)."""

    type: Literal["sphere", "capsule", "ellipsoid", "cylinder", "box"] = "sphere"
    """Shape. It matters to touch and insidesite sensors, and to viewers."""

    size: Annotated[Vector, FINITE] = (0.01, 0.01, 0.01)
    """Radius or half sizes as in MJCF, in m."""


@dataclass(frozen=True, kw_only=True)
class SensorConfig:
    """A sensor that is added, by MuJoCo's names; docs/robots.md has a table of all types."""

    type: str = ""
    """Name of the MJCF element, such as framepos, framelinvel, framezaxis, gyro, velocimeter, touch, contact, jointpos,
    actuatorfrc, subtreecom."""

    object: str = ""
    """Name of what it measures: a site, body, geom, camera, joint, tendon or actuator, as the type asks for. Sensors
    that sit on a site also take a body, whose frame gets a site, or a geom, whose shape gets one; touch takes a site or
    a geom."""

    object_type: str = ""
    """Kind of the object, where several have this name: site, xbody (the frame of a body), body (its inertial frame),
    geom, camera; for contact: geom, body, subtree, site. Default: the first of site, xbody, geom, camera; for
    contact, of geom, body, site."""

    reference: str = ""
    """Frame in which a frame sensor measures, or the second object of contact, distance and the like. Default: the
    world, or anything."""

    reference_type: str = ""
    """Kind of the reference, as for object_type."""

    cutoff: Annotated[float, AT_LEAST_0] = 0.0
    """Readings are clipped at this absolute value; 0: they are not."""

    data: tuple[str, ...] = ("found",)
    """Type contact: what is reported, of found, force, torque, dist, pos, normal, tangent, in this order."""

    reduce: Literal["none", "mindist", "maxforce", "netforce"] = "none"
    """Type contact: which contacts are reported if there are more than num."""

    num: int = 1
    """Type contact: number of contacts that are reported."""


@dataclass(frozen=True, kw_only=True)
class ActuatorConfig:
    """Actuators for joints, named after them. Those that drive these joints in the file are removed."""

    joints: tuple[str, ...] = (".*",)
    """Regular expressions that match whole names of hinges and slides; each gets one actuator."""

    type: Literal["position", "velocity", "motor"] = "position"
    """What the control is: a target position (force = kp * (ctrl - position) - kv * velocity), a target velocity
    (force = kv * (ctrl - velocity)), or the force itself."""

    kp: Annotated[float, FINITE] = 0.0
    """Type position: gain, in N m/rad or N/m."""

    kv: Annotated[float, AT_LEAST_0] = 0.0
    """Types position and velocity: damping, in N m s/rad or N s/m."""

    gear: Annotated[float, NONZERO] = 1.0
    """Factor from the force of the actuator to that of the joint."""

    force_range: tuple[float, float] | None = None
    """Bounds of the actuator's force before the gear, in N m or N. None: unbounded."""

    stall_torque: Annotated[float | None, MORE_THAN_0] = None
    """With no_load_speed, a limit that falls with the speed, as of a motor on a battery: the force at standstill with
    full voltage, before the gear, in N m or N. None: the motor is as strong at any speed. With it the actuator is
    MuJoCo's dcmotor: it exerts what the type says, up to stall_torque * (1 - speed / no_load_speed), and, where it
    brakes, up to stall_torque * (1 + speed / no_load_speed). force_range limits the current on top of that."""

    no_load_speed: Annotated[float | None, MORE_THAN_0] = None
    """Speed at which a motor with stall_torque exerts no more force, in rad/s or m/s, before the gear."""

    ctrl_range: tuple[float, float] | None = None
    """Bounds of the control. None: the range of the joint for type position if it has one, else unbounded."""

    armature: Annotated[float | None, AT_LEAST_0] = None
    """Reflected inertia of the rotor that the joints get, in kg m² or kg. None: as in the file."""

    damping: Annotated[float | None, AT_LEAST_0] = None
    """Viscous damping that the joints get, in N m s/rad or N s/m. None: as in the file."""

    frictionloss: Annotated[float | None, AT_LEAST_0] = None
    """Dry friction that the joints get, in N m or N. None: as in the file."""


@dataclass(frozen=True, kw_only=True)
class KeyframeConfig:
    """A pose that is added under a name. What it leaves out is as in the reference pose."""

    joints: dict[str, float] = field(default_factory=dict)
    """Positions of hinges and slides by regular expressions that match whole names, in rad or m; at most one
    expression may match a joint."""

    free_joint: str = ""
    """Free joint that height and quat set. Default: the one that names.free_joint names, else the only one, else the
    only one of a body with actuators."""

    height: Annotated[float | None, FINITE] = None
    """Height (z) of the free joint, in m."""

    quat: Annotated[Quaternion | None, Direction()] = None
    """Orientation of the free joint, quaternion (w, x, y, z)."""

    ctrl: dict[str, float] = field(default_factory=dict)
    """Controls by regular expressions over actuators, at most one for each. Default: those with which position
    actuators hold the pose, and zero for others."""


@dataclass(frozen=True, kw_only=True)
class MountedCameraConfig:
    """A camera that is added."""

    body: str = "world"
    """Body that it is fixed to."""

    pos: Annotated[Vector, FINITE] = (0.0, 0.0, 0.0)
    """Position in the body's frame, in m."""

    xyaxes: Annotated[tuple[float, float, float, float, float, float] | None, FINITE] = None
    """Directions of the picture's right and up in the body's frame. None: right is x and up is y."""

    mode: Literal["fixed", "track", "trackcom", "targetbody", "targetbodycom"] = "fixed"
    """How it moves, as in MJCF; trackcom keeps its distance from the centre of mass and its orientation."""

    target: str = ""
    """Modes targetbody and targetbodycom: the body that it looks at."""

    fovy: Annotated[float, Range(above=0, below=180)] = 45.0
    """Vertical field of view, in degrees."""


@dataclass(frozen=True, kw_only=True)
class LightConfig:
    """A light that is added."""

    body: str = "world"
    """Body that it is fixed to."""

    pos: Annotated[Vector, FINITE] = (0.0, 0.0, 4.0)
    """Position in the body's frame, in m."""

    dir: Annotated[Vector, Direction()] = (0.0, 0.0, -1.0)
    """Direction in the body's frame."""

    mode: Literal["fixed", "track", "trackcom"] = "fixed"
    """How it moves, as in MJCF."""

    type: Literal["spot", "directional"] = "directional"
    """Kind of light."""

    diffuse: Annotated[Vector, FRACTION] = (0.7, 0.7, 0.7)
    """Colour, 0 to 1 each."""
