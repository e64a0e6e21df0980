"""Poses and velocities of bodies from the state: for whole batches on any device, and for viewers.

A sensor describes the state before the last physics step, and each body would need four. `ForwardKinematics` computes
all bodies of the current state at once, with either engine.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import mujoco
import numpy as np
import torch

from mjtrain.config import EnvConfig
from mjtrain.sim import rotations
from mjtrain.sim.robots.model import load_model
from mjtrain.sim.robots.start import find_base, make_start


@dataclass(frozen=True, kw_only=True, eq=False)
class BodyStates:
    """Bodies in the world's frame, in the order of the model, the world itself first."""

    positions: torch.Tensor
    """Origins of the frames, in m. Shape (..., nbody, 3)."""

    quaternions: torch.Tensor
    """(w, x, y, z). Shape (..., nbody, 4)."""

    linear_velocities: torch.Tensor
    """Of the origins, in m/s. Shape (..., nbody, 3)."""

    angular_velocities: torch.Tensor
    """In rad/s. Shape (..., nbody, 3)."""

    def select(self, rows: slice | torch.Tensor | int) -> BodyStates:
        """Return some of the bodies, in the order of their rows, or one of them without its axis."""
        return BodyStates(**{name: values[..., rows, :] for name, values in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class _Joints:
    """Joints of one type that come at the same place among those of their bodies."""

    kind: int
    members: torch.Tensor
    """Which bodies of the level."""
    columns: torch.Tensor
    """First column in qpos."""
    dofs: torch.Tensor
    """First column in qvel."""
    axes: torch.Tensor
    anchors: torch.Tensor
    zeros: torch.Tensor
    """qpos0 of hinges and slides."""
    is_anchored_at_origin: bool


@dataclass(frozen=True, kw_only=True)
class _Level:
    """Bodies of equal depth in the tree."""

    parents: torch.Tensor
    """Which bodies of the level above."""
    positions: torch.Tensor
    quaternions: torch.Tensor
    joints: list[_Joints]


class ForwardKinematics:
    """Computes the states of all bodies, level by level of the tree."""

    def __init__(self, model: mujoco.MjModel, device: torch.device | str, dtype: torch.dtype) -> None:
        """Read a compiled model, whose offsets of bodies and joints must be the same in all worlds."""
        self._device, self._dtype = torch.device(device), dtype
        self._num_dofs = int(model.nv)
        depth = [0] * model.nbody
        for body in range(1, model.nbody):
            depth[body] = depth[model.body_parentid[body]] + 1
        start, is_mocap = make_start(model), model.body_mocapid >= 0
        mujoco.mj_kinematics(model, start)
        self._places = np.where(is_mocap[:, None], start.xpos, model.body_pos)
        self._turns = np.where(is_mocap[:, None], start.xquat, model.body_quat)
        by_depth = [[body for body in range(model.nbody) if depth[body] == level] for level in range(max(depth) + 1)]
        self._levels = [self._make_level(model, *pair) for pair in itertools.pairwise(by_depth)]
        order = [body for bodies in by_depth for body in bodies]
        self._order = torch.tensor([order.index(body) for body in range(model.nbody)], device=self._device)

    def compute(self, qpos: torch.Tensor, qvel: torch.Tensor) -> BodyStates:
        """Return the states of all bodies. Shapes (num, nq) and (num, nv) to (num, nbody, …)."""
        num = len(qpos)
        zeros = qpos.new_zeros(num, 1, 3)
        identity = torch.cat([torch.ones_like(zeros[..., :1]), zeros], dim=-1)
        found = [(zeros, identity, zeros, zeros)]
        for level in self._levels:
            found.append(_advance(level, *found[-1], qpos, qvel))
        parts = [torch.cat(tensors, dim=1).index_select(1, self._order) for tensors in zip(*found, strict=True)]
        return BodyStates(
            positions=parts[0], quaternions=parts[1], linear_velocities=parts[2], angular_velocities=parts[3]
        )

    def find_jacobian(self, qpos: torch.Tensor, body: int, dofs: list[int]) -> torch.Tensor:
        """Return how the origin of a body moves and turns per unit of velocity of each dof, in the world's frame.

        Linear velocity is above angular velocity. Shape (num, nq) to (num, 6, len(dofs)).
        """
        alone = torch.zeros(len(dofs), self._num_dofs, dtype=self._dtype, device=self._device)
        alone[range(len(dofs)), dofs] = 1
        moved = self.compute(qpos.repeat(len(dofs), 1), alone.repeat_interleave(len(qpos), dim=0)).select(body)
        velocities = torch.cat([moved.linear_velocities, moved.angular_velocities], dim=1)
        return velocities.view(len(dofs), len(qpos), 6).permute(1, 2, 0)

    def _make_level(self, model: mujoco.MjModel, above: list[int], bodies: list[int]) -> _Level:
        slots: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for place, body in enumerate(bodies):
            for number in range(model.body_jntnum[body]):
                joint = int(model.body_jntadr[body]) + number
                slots.setdefault((number, int(model.jnt_type[joint])), []).append((place, joint))
        joints = [self._make_joints(model, kind, slots[number, kind]) for number, kind in sorted(slots)]
        return _Level(
            parents=self._index([above.index(model.body_parentid[body]) for body in bodies]),
            positions=self._values(self._places[bodies]),
            quaternions=self._values(self._turns[bodies]),
            joints=joints,
        )

    def _make_joints(self, model: mujoco.MjModel, kind: int, found: list[tuple[int, int]]) -> _Joints:
        joints = [joint for _, joint in found]
        return _Joints(
            kind=kind,
            members=self._index([place for place, _ in found]),
            columns=self._index(model.jnt_qposadr[joints].tolist()),
            dofs=self._index(model.jnt_dofadr[joints].tolist()),
            axes=self._values(model.jnt_axis[joints]),
            anchors=self._values(model.jnt_pos[joints]),
            zeros=self._values(model.qpos0[model.jnt_qposadr[joints]]),
            is_anchored_at_origin=not model.jnt_pos[joints].any(),
        )

    def _index(self, rows: list[int]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self._device)

    def _values(self, values: object) -> torch.Tensor:
        return torch.as_tensor(values, dtype=self._dtype, device=self._device)


def _advance(
    level: _Level,
    parent_positions: torch.Tensor,
    parent_quaternions: torch.Tensor,
    parent_linear: torch.Tensor,
    parent_angular: torch.Tensor,
    qpos: torch.Tensor,
    qvel: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return positions, quaternions and velocities of the bodies of a level from those of the level above."""
    turned = parent_quaternions.index_select(1, level.parents)
    parent_at = parent_positions.index_select(1, level.parents)
    positions = parent_at + rotations.rotate(turned, level.positions.expand(len(qpos), -1, -1))
    quaternions = rotations.multiply(turned, level.quaternions.expand(len(qpos), -1, -1))
    axes: list[tuple[_Joints, torch.Tensor, torch.Tensor]] = []
    for joints in level.joints:
        positions, quaternions = _move(joints, positions, quaternions, qpos, axes)
    angular = parent_angular.index_select(1, level.parents)
    linear = parent_linear.index_select(1, level.parents)
    linear = linear + rotations.cross(angular, positions - parent_at)
    for joints, axis, anchor in axes:
        rates = qvel.index_select(1, joints.dofs)
        if joints.kind == mujoco.mjtJoint.mjJNT_SLIDE:
            linear = linear.index_add(1, joints.members, axis * rates[..., None])
            continue
        if joints.kind in (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL):
            is_free = joints.kind == mujoco.mjtJoint.mjJNT_FREE
            if is_free:
                linear = linear.index_add(1, joints.members, _gather(qvel, joints.dofs, 3))
            local = _gather(qvel, joints.dofs + 3 * is_free, 3)
            turning = rotations.rotate(quaternions.index_select(1, joints.members), local)
        else:
            turning = axis * rates[..., None]
        angular = angular.index_add(1, joints.members, turning)
        if not joints.is_anchored_at_origin or len(level.joints) > 1:
            swept = rotations.cross(turning, positions.index_select(1, joints.members) - anchor)
            linear = linear.index_add(1, joints.members, swept)
    return positions, quaternions, linear, angular


def _move(
    joints: _Joints,
    positions: torch.Tensor,
    quaternions: torch.Tensor,
    qpos: torch.Tensor,
    axes: list[tuple[_Joints, torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    at, turned = positions.index_select(1, joints.members), quaternions.index_select(1, joints.members)
    if joints.kind == mujoco.mjtJoint.mjJNT_FREE:
        new_at = _gather(qpos, joints.columns, 3)
        new_turned = torch.nn.functional.normalize(_gather(qpos, joints.columns + 3, 4), dim=-1)
        axes.append((joints, new_at, new_at))
    elif joints.kind == mujoco.mjtJoint.mjJNT_SLIDE:
        axis = rotations.rotate(turned, joints.axes.expand_as(at))
        new_at, new_turned = at + axis * (qpos.index_select(1, joints.columns) - joints.zeros)[..., None], turned
        axes.append((joints, axis, at))
    else:
        anchor = at + rotations.rotate(turned, joints.anchors.expand_as(at))
        if joints.kind == mujoco.mjtJoint.mjJNT_BALL:
            by, axis = torch.nn.functional.normalize(_gather(qpos, joints.columns, 4), dim=-1), at
        else:
            half = ((qpos.index_select(1, joints.columns) - joints.zeros) / 2)[..., None]
            by = torch.cat([half.cos(), joints.axes * half.sin()], dim=-1)
            axis = rotations.rotate(turned, joints.axes.expand_as(at))
        new_turned = rotations.multiply(turned, by)
        new_at = at
        if not joints.is_anchored_at_origin:
            new_at = anchor - rotations.rotate(new_turned, joints.anchors.expand_as(at))
        axes.append((joints, axis, anchor))
    if len(joints.members) == positions.shape[1]:
        return new_at, new_turned
    return positions.index_copy(1, joints.members, new_at), quaternions.index_copy(1, joints.members, new_turned)


def _gather(values: torch.Tensor, starts: torch.Tensor, width: int) -> torch.Tensor:
    """Return width adjacent columns from each start. Shape (num, num_starts, width)."""
    columns = starts[:, None] + torch.arange(width, device=values.device)
    return values.index_select(1, columns.flatten()).unflatten(1, (-1, width))


class Kinematics:
    """Computes poses of bodies from positions of joints, for the compiled model."""

    def __init__(self, config: EnvConfig) -> None:
        self.model = load_model(config)
        """The model, with the ground."""
        self.touch_sensors = {
            self.model.sensor(index).name: int(self.model.sensor_adr[index])
            for index in range(self.model.nsensor)
            if self.model.sensor_type[index] == mujoco.mjtSensor.mjSENS_TOUCH and self.model.sensor(index).name
        }
        """Column of each touch sensor in sensordata; they read contact forces in N."""
        names = [self.model.joint(index).name or f"joint {index}" for index in range(self.model.njnt)]
        self.joint_of_column: list[str] = np.repeat(names, np.diff([*self.model.jnt_qposadr, self.model.nq])).tolist()
        """Name of the joint that each column of qpos belongs to."""
        self._data = make_start(self.model)
        base = find_base(self.model)
        self.base_body = int(self.model.jnt_bodyid[base]) if base >= 0 else None
        """Body of the free joint of a robot that moves freely, which a camera has to follow; None without it."""
        self.size_m = self._measure()
        """Approximate size of the moving parts, in m."""

    def body_poses(self, qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions (m) and rotation matrices of all bodies in the world's frame, for finite qpos.

        Shape (num_worlds, nq) to (num_worlds, nbody, 3) and (num_worlds, nbody, 3, 3).
        """
        positions = np.empty((len(qpos), self.model.nbody, 3))
        rotations = np.empty((len(qpos), self.model.nbody, 3, 3))
        for world, row in enumerate(qpos):
            self._data.qpos[:] = row
            mujoco.mj_kinematics(self.model, self._data)
            positions[world] = self._data.xpos
            rotations[world] = self._data.xmat.reshape(-1, 3, 3)
        return positions, rotations

    def radius_m(self, free_joint: str) -> float:
        """Return the radius of a sphere around the origin of the body with this joint that holds its geoms, in m."""
        body = int(self.model.joint(free_joint).bodyid[0])
        own = self.model.geom_bodyid == body
        return float((np.linalg.norm(self.model.geom_pos[own], axis=1) + self.model.geom_rbound[own]).max(initial=0.0))

    def _measure(self) -> float:
        mujoco.mj_kinematics(self.model, self._data)
        moving = self.model.body_weldid[self.model.geom_bodyid] != 0
        if not moving.any():
            return 1.0
        reach = self.model.geom_rbound[moving, None]
        low, high = self._data.geom_xpos[moving] - reach, self._data.geom_xpos[moving] + reach
        return float(np.linalg.norm(high.max(axis=0) - low.min(axis=0)))
