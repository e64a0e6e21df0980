"""The robot: an MJCF file or a function that builds it, what a task adds to it, and what a URDF does not say."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from mjtrain.config.limits import (
    AT_LEAST_0,
    COUNT,
    COUNT_FROM_1,
    FINITE,
    FRACTION,
    INT,
    MORE_THAN_0,
    NONZERO,
    Direction,
    Range,
)

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

    iterations: Annotated[int | None, COUNT_FROM_1] = None
    """Most iterations of the solver."""

    ls_iterations: Annotated[int | None, COUNT_FROM_1] = None
    """Most iterations of its line search."""

    noslip_iterations: Annotated[int | None, COUNT] = None
    """Iterations of the noslip solver."""

    ccd_iterations: Annotated[int | None, COUNT_FROM_1] = None
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

    contype: Annotated[int | None, INT] = None
    """Bits that say what kind of geom this is, see MuJoCo on collision filtering."""

    conaffinity: Annotated[int | None, INT] = None
    """Bits that say with which kinds it collides."""

    condim: Annotated[int | None, INT] = None
    """Dimensions of the contact: 1 frictionless, 3 sliding, 4 torsional, 6 rolling friction too."""

    friction: Annotated[Vector | None, AT_LEAST_0] = None
    """Sliding (no unit), torsional and rolling friction (both in m)."""

    priority: Annotated[int | None, INT] = None
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

    num: Annotated[int, INT] = 1
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
    """Bounds of the force before the gear, in N m or N, besides actuatorfrcrange of the joint. None: no others."""

    stall_torque: Annotated[float | None, MORE_THAN_0] = None
    """With no_load_speed, a limit that falls with the speed, as of a motor on a battery: the force at standstill with
    full voltage, before the gear, in N m or N. None: the motor is as strong at any speed. With it the actuator is
    MuJoCo's dcmotor: it exerts what the type says, up to stall_torque * (1 - speed / no_load_speed), and, where it
    brakes, up to stall_torque * (1 + speed / no_load_speed). force_range limits the current on top of that."""

    no_load_speed: Annotated[float | None, MORE_THAN_0] = None
    """Speed at which a motor with stall_torque exerts no more force, in rad/s or m/s, before the gear."""

    ctrl_range: tuple[float, float] | None = None
    """Bounds of the control. None: the joint's range for type position with gear 1, if it has one; else unbounded."""

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


@dataclass(frozen=True, kw_only=True)
class RobotConfig:
    """A robot with its scene, and changes to it that leave its file untouched.

    They are made in the order of the fields: names first, lights last.
    """

    file: str = ""
    """MJCF file. In Python also a pathlib.Path, a module with MJCF_PATH (as in robot_descriptions), or a function that
    returns an mujoco.MjSpec, which becomes `spec`."""

    spec: Callable[..., Any] | None = None
    """spec() -> mujoco.MjSpec: builds the robot if no file is given."""

    timestep: Annotated[float | None, MORE_THAN_0] = None
    """Physics step, in s. None: as in the file."""

    names: NamesConfig = field(default_factory=NamesConfig)
    """New names for parts of the robot."""

    options: OptionConfig = field(default_factory=OptionConfig)
    """Options of the simulation."""

    geoms: dict[str, GeomConfig] = field(default_factory=dict)
    """Changes of geoms, in this order: collisions, friction, groups."""

    self_collision: bool = True
    """False: parts of the robot do not collide with each other, only with the rest of the scene."""

    sites: dict[str, SiteConfig] = field(default_factory=dict)
    """Sites that are added, by name."""

    actuators: dict[str, ActuatorConfig] = field(default_factory=dict)
    """Actuators that replace those of the file, in groups. Actuators of the file that have no name are named after
    their joint, tendon, site or body."""

    sensors: dict[str, SensorConfig] = field(default_factory=dict)
    """Sensors that are added, by name; one of the same name in the file is replaced."""

    keyframes: dict[str, KeyframeConfig] = field(default_factory=dict)
    """Poses that are added, by name; one of the same name in the file is replaced."""

    keyframe: str = ""
    """Name of the keyframe that is the default pose. Default: home if there is one, else the reference pose."""

    locked_joints: tuple[str, ...] = ()
    """Regular expressions over slides and hinges that stay where the default pose has them. They are no joints of the
    model then, and their actuators and sensors are left out."""

    cameras: dict[str, MountedCameraConfig] = field(default_factory=dict)
    """Cameras that are added, by name."""

    lights: dict[str, LightConfig] = field(default_factory=dict)
    """Lights that are added, by name."""

    mirror: MirrorConfig = field(default_factory=MirrorConfig)
    """Which parts are mirror images of each other. It changes nothing of the robot."""

    def __post_init__(self) -> None:
        given: Any = self.spec if self.file == "" and self.spec is not None else self.file
        if isinstance(given, str | os.PathLike) or hasattr(given, "MJCF_PATH"):
            object.__setattr__(self, "file", str(getattr(given, "MJCF_PATH", given)))
            if given is self.spec:
                object.__setattr__(self, "spec", None)
        elif callable(given) and hasattr(given, "__qualname__"):  # a partial has no name to record
            object.__setattr__(self, "file", "")
            object.__setattr__(self, "spec", given)
        else:
            raise TypeError(
                f"the robot is {given!r}; give a path, a RobotConfig, a module with MJCF_PATH or a function that "
                "returns an mujoco.MjSpec"
            )

    @property
    def label(self) -> str:
        """What messages call it: the file, or module:function."""
        if self.file or self.spec is None:
            return self.file
        return f"{self.spec.__module__}:{self.spec.__qualname__}"

    @property
    def file_name(self) -> str:
        """Name of its MJCF file without folders, or the one that a copy of a built robot has."""
        return Path(self.file).name if self.file or self.spec is None else f"{self.spec.__name__}.xml"


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """What a URDF does not say."""

    out: str | None = None
    """Folder for the MJCF file and its meshes. Default: a folder with the name of the robot."""

    fixed_base: bool = False
    """The root link is fixed to the world. Default: it gets a free joint."""

    home: dict[str, float] = field(default_factory=dict)
    """Joint positions of the home pose in rad or m, by regular expressions that match whole names, such as
    --home '.*_knee' -1.2. Default: zero, or the middle of a range that leaves zero out."""

    collisions: Literal["mesh", "capsule", "box", "none"] = "mesh"
    """With what the meshes of <collision> collide: mesh: their convex hull; capsule, box: one that is fitted to
    it; none: only primitives collide."""

    full_effort_at: Annotated[float, MORE_THAN_0] = 0.5
    """Position error in rad at which a position actuator asks for all the effort that the URDF allows: kp is the effort
    divided by this. For slides it is a tenth of the range."""

    damping_ratio: Annotated[float, AT_LEAST_0] = 0.5
    """Damping of the actuators as a fraction of the critical damping of a joint with its inertia in the home
    pose."""

    mesh_dir: str | None = None
    """Folder in which meshes are looked for, by their paths and then by their names. Default: that of the URDF."""

    leave_out_unreadable: bool = False
    """Leave out meshes that are missing, and those of <collision> that MuJoCo cannot read. Meshes of <visual> that it
    cannot read are always left out, and the collision geometry is shown in their place."""
