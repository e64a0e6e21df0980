"""How a URDF becomes a robot."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from mjtrain.config.limits import AT_LEAST_0, MORE_THAN_0


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
