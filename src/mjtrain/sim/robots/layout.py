"""Where the named parts of a model are in the state and in the model's fields."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from mjtrain.runtime.errors import RequestError

CONTACT_WIDTHS = {"found": 1, "force": 3, "torque": 3, "dist": 1, "pos": 3, "normal": 3, "tangent": 3}
"""What a contact sensor may report of each contact, in the order of its columns, and how many columns that has."""

MODEL_FIELDS = {
    "body_mass": True,
    "body_inertia": True,
    "body_ipos": True,
    "body_iquat": True,
    "dof_armature": True,
    "dof_damping": False,
    "dof_frictionloss": False,
    "geom_friction": False,
    "actuator_gainprm": False,
    "actuator_biasprm": False,
    "actuator_forcerange": False,
    "gravity": False,
}
"""Fields of the model that may differ between worlds, and whether constants are derived from them (`refresh_model`)."""


def match_names(patterns: Iterable[str], names: Iterable[str], kind: str) -> list[str]:
    """Find names by regular expressions, matched whole.

    They are in the order of the patterns, and for each pattern in the order of names; none twice.
    """
    names = list(names)
    matched: dict[str, None] = {}
    for pattern in patterns:
        try:
            hits = [name for name in names if re.fullmatch(pattern, name)]
        except re.error as error:
            words = f"{pattern!r} is not a valid regular expression over {kind} names: {error}; '.*' matches all"
            raise RequestError(words) from error
        if not hits:
            raise RequestError(f"the robot has no {kind} {pattern!r}; it has {', '.join(names) or 'none'}")
        matched.update(dict.fromkeys(hits))
    return list(matched)


class Columns(dict[str, slice]):
    """Columns by name. The error for an unknown name lists the known ones."""

    def __init__(
        self, kind: str, columns: dict[str, slice], device: torch.device | str, *, scalar: frozenset[str] | None = None
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

    def width(self, name: str) -> int:
        """Return how many columns a part has."""
        return self[name].stop - self[name].start

    def check_scalar(self, joint: str) -> None:
        """Raise a RequestError if a joint is free or a ball joint, and so no hinge or slide."""
        if self._scalar is not None and joint in self and joint not in self._scalar:
            kind = "free" if self.width(joint) > 4 else "ball"
            raise RequestError(f"joint {joint} is a {kind} joint; give a hinge or a slide")

    def check_free(self, joint: str) -> None:
        """Raise a RequestError if a joint is a hinge, a slide or a ball joint, and so has not the columns of a pose."""
        if joint in self and self.width(joint) != 7:
            kind = "hinge or a slide" if self._scalar is None or joint in self._scalar else "ball joint"
            raise RequestError(f"joint {joint} is a {kind}; give a free joint")

    def match(self, patterns: Iterable[str]) -> list[str]:
        """Find names by regular expressions, matched whole.

        Returns:
            Hinges and slides in the order of the model, for joints. Other parts in the order of the patterns, as
            `match_names` does: terms pair the sensors of feet with other lists. None twice.
        """
        patterns = list(patterns)
        if not patterns:
            raise RequestError(f"no {self._kind} is named; give at least one expression, such as '.*' for all")
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

    gain_kinds: dict[str, torch.Tensor]
    """What the entries of actuator_gainprm and actuator_biasprm are, by field: 2 the kv of a position actuator, 0 no
    gain, such as the resistance of a DC motor or the lengths of a muscle, 1 all others. uint8, shapes of these
    fields."""

    velocities: tuple[tuple[str, str], ...]
    """Joint and unit of each column of qvel; a joint without a name by its number."""

    quaternions: tuple[slice, ...]
    """Columns in qpos of the quaternion of each free and ball joint, with a name or without."""

    found: dict[tuple[object, ...], Any] = field(default_factory=dict)
    """Cache of `rows`, `joints_of_sensors` and `joint_limits`."""

    def rows(self, kind: Literal["body", "geom", "actuator", "dof"], patterns: Sequence[str]) -> torch.Tensor:
        """Return the rows of parts in the fields of the model. Indices. Shape (num_rows,).

        Args:
            kind: What kind of part; "dof" are the degrees of freedom of hinges and slides.
            patterns: Regular expressions over their names (for "dof" over joints), matched whole.
        """
        key = (kind, tuple(patterns))
        if key not in self.found:
            if kind == "dof":
                rows = [int(self.qvel[name].start) for name in self.qvel.match(patterns)]
            else:
                named = {"body": self.bodies, "geom": self.geoms, "actuator": self.actuators}[kind]
                if not patterns:
                    raise RequestError(f"no {kind} is named; give at least one expression, such as '.*' for all")
                rows = [named[name] for name in match_names(patterns, named, kind)]
            self.found[key] = torch.tensor(rows, device=self.default_qpos.device)
        return self.found[key]

    def joints_of_sensors(self, sensors: Sequence[str], joints: Sequence[str]) -> torch.Tensor:
        """Return the columns in qvel of the joints whose actuator forces sensors measure, in the order of the sensors.

        Shape (num_joints,).

        Args:
            sensors: Regular expressions over sensors of type jointactuatorfrc or actuatorfrc.
            joints: Regular expressions over the hinges and slides that they must measure.
        """
        key = ("joints of sensors", tuple(sensors), tuple(joints))
        if key not in self.found:
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
            self.found[key] = torch.tensor(columns, device=self.default_qpos.device)
        return self.found[key]

    def joint_limits(self, patterns: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lower and upper ends of the ranges of slides and hinges, in m or rad, in the order of `select`.

        Patterns are regular expressions over joints, matched whole. Shape (num_joints,) each.
        """
        key = ("joint limits", tuple(patterns))
        if key not in self.found:
            names = self.qpos.match(patterns)
            endless = [name for name in names if name not in self.joint_range]
            if endless:
                raise RequestError(f"joint {', '.join(endless)} of the robot has no range")
            ends = torch.tensor([self.joint_range[name] for name in names], device=self.default_qpos.device)
            self.found[key] = (ends[:, 0].contiguous(), ends[:, 1].contiguous())
        return self.found[key]
