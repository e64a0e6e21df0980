"""Where the named parts of a model are in the state and in the model's fields."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import mujoco
import numpy as np
import torch

from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.height_field import HeightField
from mjtrain.sim.robots.model_fields import MODEL_FIELDS


def match_names(patterns: Iterable[str], names: Iterable[str], kind: str) -> list[str]:
    """Find names by regular expressions, matched whole.

    Returns:
        Matches in the order of the patterns, and for each pattern in the order of names; none twice.
    """
    names = list(names)
    matched: dict[str, None] = {}
    for pattern in patterns:
        hits = [name for name in names if re.fullmatch(pattern, name)]
        if not hits:
            raise RequestError(f"the robot has no {kind} {pattern!r}; it has {', '.join(names) or 'none'}")
        matched.update(dict.fromkeys(hits))
    return list(matched)


class Columns(dict[str, slice]):
    """Columns by name. The error for an unknown name lists the known ones."""

    def __init__(
        self,
        kind: str,
        columns: dict[str, slice],
        device: torch.device | str,
        *,
        scalar: frozenset[str] | None = None,
    ) -> None:
        """Take the columns of all parts of a kind.

        Args:
            columns: Columns by name, in the order of the model.
            scalar: For joints: names of hinges and slides, the only ones that expressions match. None: expressions
                match all names.
        """
        super().__init__(columns)
        self._kind = kind
        self._device = device
        self._scalar = scalar
        self._selected: dict[tuple[str, ...], slice | torch.Tensor] = {}

    def __missing__(self, name: str) -> slice:
        raise RequestError(f"the robot has no {self._kind} {name!r}; it has {', '.join(self) or 'none'}")

    def check_scalar(self, joint: str) -> None:
        """Raise a RequestError if a joint is free or a ball joint, and so no hinge or slide."""
        if self._scalar is not None and joint in self and joint not in self._scalar:
            kind = "free" if self[joint].stop - self[joint].start > 4 else "ball"
            raise RequestError(f"joint {joint} is a {kind} joint; give a hinge or a slide")

    def check_free(self, joint: str) -> None:
        """Raise a RequestError if a joint is a hinge, a slide or a ball joint, and so has not the columns of a pose."""
        if joint in self and self[joint].stop - self[joint].start != 7:
            kind = "hinge or a slide" if self._scalar is None or joint in self._scalar else "ball joint"
            raise RequestError(f"joint {joint} is a {kind}; give a free joint")

    def match(self, patterns: Iterable[str]) -> list[str]:
        """Find names by regular expressions, matched whole.

        Returns:
            Hinges and slides in the order of the model, for joints. Other parts in the order of the patterns, as
            `match_names` does: terms pair the sensors of feet with other lists. None twice.
        """
        if self._scalar is None:
            return match_names(patterns, self, self._kind)
        found = set()
        for pattern in patterns:
            hits = match_names([pattern], self, self._kind)
            if not self._scalar.intersection(hits):
                raise RequestError(self.describe_unmatched(pattern, hits))
            found.update(hits)
        return [name for name in self if name in found & self._scalar]

    @staticmethod
    def describe_unmatched(pattern: str, hits: Iterable[str]) -> str:
        """Say why a pattern finds nothing though names match it."""
        return (
            f"the expression {pattern!r} matches {', '.join(hits)}, a free or ball joint; expressions over joints take "
            "hinges and slides, so name this joint alone, as in env.qpos(name) or joint=name"
        )

    def select(self, names: str | Sequence[str]) -> slice | torch.Tensor:
        """Return an index of the columns of one name, or of several side by side.

        Args:
            names: One name, or several regular expressions, of which `match` finds the names in their order.

        Returns:
            A slice where the columns are adjacent, so that indexing copies nothing; else a tensor of indices.
        """
        if isinstance(names, str):
            return self[names]
        key = tuple(names)
        if key not in self._selected:
            parts = [self[name] for name in self.match(key)]
            columns = [column for part in parts for column in range(part.start, part.stop)]
            adjacent = columns == list(range(columns[0], columns[0] + len(columns)))
            self._selected[key] = (
                slice(columns[0], columns[-1] + 1) if adjacent else torch.tensor(columns, device=self._device)
            )
        return self._selected[key]


CONTACT_WIDTHS = {"found": 1, "force": 3, "torque": 3, "dist": 1, "pos": 3, "normal": 3, "tangent": 3}
"""What a contact sensor may report of each contact, in the order of its columns, and how many columns that has."""


_BODIES = (mujoco.mjtObj.mjOBJ_BODY.value, mujoco.mjtObj.mjOBJ_XBODY.value)


@dataclass(frozen=True, kw_only=True)
class SensorKind:
    """What a sensor measures."""

    type: str
    """Name of the MJCF element, such as touch."""

    joint: str = ""
    """Joint whose actuator force it measures, by jointactuatorfrc or by actuatorfrc of an actuator of that joint."""

    data: tuple[str, ...] = ()
    """Type contact: what is reported of each contact, of the keys of CONTACT_WIDTHS, in their order."""

    num: int = 1
    """Type contact: number of contacts that are reported side by side."""

    is_relative: bool = False
    """Whether it measures in the frame of a reference."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Addresses of named parts of a model, and the model's own constants."""

    timestep_s: float
    """Physics step, in seconds."""

    qpos: Columns
    """Columns of each joint in qpos."""

    qvel: Columns
    """Columns of each joint in qvel."""

    actuators: dict[str, int]
    """Row of each actuator in the actuator_* fields of the model, in its order."""

    controls: dict[str, slice]
    """Columns in ctrl of each actuator that has any, and of each control of an actuator that has several. The name of
    such a control is the actuator, a colon and the input, as in servo:pos, servo:vel, servo:ff."""

    inputs: tuple[tuple[str, str | None], ...]
    """Actuator of each column of ctrl, and the word for the input if the actuator has several controls."""

    sensors: Columns
    """Columns of each sensor in sensordata."""

    sensor_kinds: dict[str, SensorKind]
    """What each sensor measures."""

    bodies: dict[str, int]
    """Row of each named body in the body_* fields of the model."""

    geoms: dict[str, int]
    """Row of each named geom in the geom_* fields of the model."""

    home: int
    """Index of keyframe "home", with which episodes begin; -1 if the model does not have it."""

    default_qpos: torch.Tensor
    """Positions of keyframe "home" if the model has it, else its reference pose. Shape (nq,)."""

    default_qvel: torch.Tensor
    """Velocities of the same. Shape (nv,)."""

    default_ctrl: torch.Tensor
    """Controls of the same, without the keyframe those of `mujoco.mj_resetCtrl`: zero, or the identity for a
    quaternion. Shape (nu,)."""

    ctrl_range: torch.Tensor
    """Least and largest value of each control, infinite where it has no ctrlrange. Shape (nu, 2)."""

    joint_range: dict[str, tuple[float, float]]
    """Range of each slide and hinge that has one, in m or rad."""

    nominal: dict[str, torch.Tensor]
    """The fields in MODEL_FIELDS as the model was compiled, by name. float64."""

    velocities: tuple[tuple[str, str], ...]
    """Joint and unit of each column of qvel; a joint without a name by its number."""

    quaternions: tuple[slice, ...]
    """Columns in qpos of the quaternion of each free and ball joint, with a name or without."""

    height_field: HeightField | None
    """The generated ground; None without."""

    found_rows: dict[tuple[str, tuple[str, ...]], torch.Tensor] = field(default_factory=dict)
    """Cache of `rows`."""

    found_limits: dict[tuple[str, ...], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """Cache of `joint_limits`."""

    found_pairs: dict[tuple[tuple[str, ...], tuple[str, ...]], torch.Tensor] = field(default_factory=dict)
    """Cache of `joints_of_sensors`."""

    def rows(self, kind: Literal["body", "geom", "actuator", "dof"], patterns: Sequence[str]) -> torch.Tensor:
        """Return the rows of parts in the fields of the model.

        Args:
            kind: What kind of part; "dof" are the degrees of freedom of hinges and slides.
            patterns: Regular expressions over their names (for "dof" over joints), matched whole.

        Returns:
            Indices. Shape (num_rows,).
        """
        key = (kind, tuple(patterns))
        if key not in self.found_rows:
            if kind == "dof":
                parts = [self.qvel[name] for name in self.qvel.match(patterns)]
                rows = [row for part in parts for row in range(part.start, part.stop)]
            else:
                named = {"body": self.bodies, "geom": self.geoms, "actuator": self.actuators}[kind]
                rows = [named[name] for name in match_names(patterns, named, kind)]
            self.found_rows[key] = torch.tensor(rows, device=self.default_qpos.device)
        return self.found_rows[key]

    def joints_of_sensors(self, sensors: Sequence[str], joints: Sequence[str]) -> torch.Tensor:
        """Return the columns in qvel of the joints whose actuator forces sensors measure.

        Args:
            sensors: Regular expressions over sensors of type jointactuatorfrc or actuatorfrc.
            joints: Regular expressions over the hinges and slides that they must measure.

        Returns:
            Indices, in the order of the sensors. Shape (num_joints,).
        """
        key = (tuple(sensors), tuple(joints))
        if key not in self.found_pairs:
            names = self.sensors.match(sensors)
            measured = [self.sensor_kinds[name].joint for name in names]
            wanted = self.qvel.match(joints)
            if sorted(measured) != sorted(wanted):
                raise RequestError(
                    f"the sensors {', '.join(names)} measure the actuator forces of the joints "
                    f"{', '.join(joint or 'none' for joint in measured)}, and the joints are {', '.join(wanted)}; give "
                    "one jointactuatorfrc or actuatorfrc sensor for each joint"
                )
            columns = [self.qvel[joint].start for joint in measured]
            self.found_pairs[key] = torch.tensor(columns, device=self.default_qpos.device)
        return self.found_pairs[key]

    def joint_limits(self, patterns: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lower and upper ends of the ranges of slides and hinges, in m or rad.

        Args:
            patterns: Regular expressions over joints, matched whole.

        Returns:
            Shape (num_joints,) each, in the order of `Columns.select`.
        """
        key = tuple(patterns)
        if key not in self.found_limits:
            names = self.qpos.match(key)
            endless = [name for name in names if name not in self.joint_range]
            if endless:
                raise RequestError(f"joint {', '.join(endless)} of the robot has no range")
            ends = torch.tensor([self.joint_range[name] for name in names], device=self.default_qpos.device)
            self.found_limits[key] = (ends[:, 0].contiguous(), ends[:, 1].contiguous())
        return self.found_limits[key]


def make_layout(
    model: mujoco.MjModel,
    device: torch.device | str,
    dtype: torch.dtype,
    height_field: HeightField | None = None,
) -> Layout:
    """Read the layout of a compiled model. Parts without a name are left out."""
    qpos_width = {
        mujoco.mjtJoint.mjJNT_FREE: (7, 6),
        mujoco.mjtJoint.mjJNT_BALL: (4, 3),
        mujoco.mjtJoint.mjJNT_SLIDE: (1, 1),
        mujoco.mjtJoint.mjJNT_HINGE: (1, 1),
    }
    qpos, qvel, joint_range = {}, {}, {}
    for index in range(model.njnt):
        joint = model.joint(index)
        if not joint.name:
            continue
        position_width, velocity_width = qpos_width[mujoco.mjtJoint(model.jnt_type[index])]
        qpos[joint.name] = slice(model.jnt_qposadr[index], model.jnt_qposadr[index] + position_width)
        qvel[joint.name] = slice(model.jnt_dofadr[index], model.jnt_dofadr[index] + velocity_width)
        if position_width == 1 and model.jnt_limited[index]:
            low, high = model.jnt_range[index]
            joint_range[joint.name] = (float(low), float(high))
    scalar = frozenset(name for name, place in qpos.items() if place.stop - place.start == 1)
    quaternions = {mujoco.mjtJoint.mjJNT_FREE: 3, mujoco.mjtJoint.mjJNT_BALL: 0}
    starts = [
        int(model.jnt_qposadr[index]) + quaternions[mujoco.mjtJoint(model.jnt_type[index])]
        for index in range(model.njnt)
        if mujoco.mjtJoint(model.jnt_type[index]) in quaternions
    ]
    sensors = {
        model.sensor(index).name: slice(model.sensor_adr[index], model.sensor_adr[index] + model.sensor_dim[index])
        for index in range(model.nsensor)
        if model.sensor(index).name
    }
    sensor_kinds = {name: _sensor_kind(model, model.sensor(name).id) for name in sensors}
    actuators = {model.actuator(index).name: index for index in range(model.nactuator)}
    if "" in actuators:
        raise RequestError(_describe_nameless(model, actuators[""]))
    home = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, "home")

    def default(key: object, otherwise: object) -> torch.Tensor:
        return torch.tensor(otherwise if home < 0 else key[home], dtype=dtype, device=device)  # pyright: ignore[reportIndexIssue]

    return Layout(
        timestep_s=float(model.opt.timestep),
        qpos=Columns("joint", qpos, device, scalar=scalar),
        qvel=Columns("joint", qvel, device, scalar=scalar),
        actuators=actuators,
        controls=place_controls(model),
        inputs=tuple(
            (model.actuator(index).name, word) for index in range(model.nactuator) for word in name_inputs(model, index)
        ),
        sensors=Columns("sensor", sensors, device),
        sensor_kinds=sensor_kinds,
        bodies={model.body(index).name: index for index in range(1, model.nbody) if model.body(index).name},
        geoms={model.geom(index).name: index for index in range(model.ngeom) if model.geom(index).name},
        home=home,
        default_qpos=default(model.key_qpos, model.qpos0),
        default_qvel=default(model.key_qvel, [0.0] * model.nv),
        default_ctrl=default(model.key_ctrl, neutral_controls(model)),
        ctrl_range=torch.tensor(_control_range(model), dtype=dtype, device=device),
        joint_range=joint_range,
        velocities=tuple(_describe_velocity(model, column) for column in range(model.nv)),
        quaternions=tuple(slice(start, start + 4) for start in starts),
        nominal={name: torch.tensor(_field(model, name), device=device, dtype=torch.float64) for name in MODEL_FIELDS},
        height_field=height_field,
    )


def make_start(model: mujoco.MjModel) -> mujoco.MjData:
    """Return the state in which episodes begin: keyframe "home" if the model has it, else the reference pose."""
    data = mujoco.MjData(model)
    home = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, "home")
    if home >= 0:
        mujoco.mj_resetDataKeyframe(model, data, home)
    return data


def _describe_velocity(model: mujoco.MjModel, column: int) -> tuple[str, str]:
    index = int(model.dof_jntid[column])
    kind = mujoco.mjtJoint(model.jnt_type[index])
    is_linear = kind == mujoco.mjtJoint.mjJNT_SLIDE or (
        kind == mujoco.mjtJoint.mjJNT_FREE and column - model.jnt_dofadr[index] < 3
    )
    return model.joint(index).name or f"number {index}", "m/s" if is_linear else "rad/s"


def _sensor_kind(model: mujoco.MjModel, index: int) -> SensorKind:
    kind = mujoco.mjtSensor(model.sensor_type[index]).name.removeprefix("mjSENS_").lower()
    kind = kind.replace("actfrc", "actuatorfrc")  # jointactuatorfrc and tendonactuatorfrc in MJCF
    part = int(model.sensor_objid[index])
    if kind == "jointactuatorfrc":
        return SensorKind(type=kind, joint=model.joint(part).name)
    if kind == "actuatorfrc" and model.actuator_trntype[part] == mujoco.mjtTrn.mjTRN_JOINT:
        return SensorKind(type=kind, joint=model.joint(model.actuator_trnid[part, 0]).name)
    if kind == "contact":
        reported, _, num = model.sensor_intprm[index]
        return SensorKind(
            type=kind,
            data=tuple(name for bit, name in enumerate(CONTACT_WIDTHS) if reported & 1 << bit),
            num=int(num),
        )
    reference, reference_type = int(model.sensor_refid[index]), int(model.sensor_reftype[index])
    is_world = reference < 0 or (reference == 0 and reference_type in _BODIES)
    return SensorKind(type=kind, is_relative=bool(reference_type) and not is_world)


def _describe_nameless(model: mujoco.MjModel, index: int) -> str:
    """Say which actuator has no name; `completion` names those that drive something that has one."""
    kind = mujoco.mjtTrn(model.actuator_trntype[index]).name.removeprefix("mjTRN_").lower()
    target = model.actuator_trnid[index, 0]
    driven = repr(model.joint(target).name) if kind.startswith("joint") else f"number {target}"
    return (
        f"actuator {index} of {model.nactuator} has no name (it drives {kind} {driven}); give it one in the MJCF file"
    )


def place_controls(model: mujoco.MjModel) -> dict[str, slice]:
    """Return `Layout.controls`; the name of an actuator counts more than that of another one's control."""
    blocks, single = {}, {}
    for index in range(model.nactuator):
        name, begin = model.actuator(index).name, int(model.actuator_ctrladr[index])
        words = name_inputs(model, index)
        if words:
            blocks[name] = slice(begin, begin + len(words))
        if len(words) > 1:
            single |= {f"{name}:{word}": slice(begin + k, begin + k + 1) for k, word in enumerate(words)}
    return {**single, **blocks} if single else blocks


def name_inputs(model: mujoco.MjModel, index: int) -> list[str | None]:
    """Return a word for each control of an actuator, as in its attribute input, or a number; None for a single one."""
    count, spec = int(model.actuator_ctrlnum[index]), int(model.actuator_ctrlspec[index])
    if count == 1:
        return [None]
    is_input = model.actuator_gaintype[index] != mujoco.mjtGain.mjGAIN_SO3  # there it is the kind of coordinates
    words: list[str | None] = [
        name.removeprefix("mjINPUT_").lower() for name, bit in _INPUTS if is_input and spec & int(bit)
    ]
    return words if len(words) == count else [str(number) for number in range(count)]


_INPUTS = [(name, bit) for name, bit in mujoco.mjtCtrlInput.__members__.items() if name != "mjINPUT_NONE"]
"""MuJoCo orders the controls of an actuator by these bits."""


def neutral_controls(model: mujoco.MjModel) -> np.ndarray:
    """Return the controls of a model that was just reset, as `mujoco.mj_resetCtrl` sets them. Shape (nu,)."""
    ctrl = np.zeros(model.nu)
    is_quaternion = (model.actuator_gaintype == mujoco.mjtGain.mjGAIN_SO3) & (
        model.actuator_ctrlspec == mujoco.mjtCtrlChart.mjCHART_QUAT
    )
    ctrl[model.actuator_ctrladr[is_quaternion]] = 1.0
    return ctrl


def _control_range(model: mujoco.MjModel) -> np.ndarray:
    unlimited = np.tile([-np.inf, np.inf], (model.nu, 1))
    return np.where(model.actuator_ctrllimited[:, None], model.actuator_ctrlrange, unlimited)


def _field(model: mujoco.MjModel, name: str) -> np.ndarray:
    return model.opt.gravity if name == "gravity" else getattr(model, name)
