"""Whether episodes begin, and a robot can move, as a task needs: what its model says of poses and actuators."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np

from mjtrain.config import EnvConfig
from mjtrain.sim.robots.layout import match_names
from mjtrain.sim.robots.read_layout import ON_JOINT, SCALAR_JOINTS, place_controls, read_gains
from mjtrain.sim.robots.start import find_home, make_start

NUM_STARTS = 8
"""Starts of every world that are looked at before all of them are said to be wrong; starts are random."""

_DEEP_M, _VERY_DEEP_M = 0.03, 0.1
"""Depth in the ground that is reported: of a free body in the default pose, and after events or of what is mounted."""

_HIGH_M, _VERY_HIGH_M = 0.2, 0.5
"""Height above the ground that is reported: in a keyframe, and in the reference pose of a file."""

_MOST_GRAVITY = 100.0
"""Gravity that no planet has, in m/s^2."""

_NUMBERS = (mujoco.mjtGain.mjGAIN_FIXED.value, mujoco.mjtGain.mjGAIN_AFFINE.value)
"""Types of gains that are 0 where all their parameters are."""

_TIES = (mujoco.mjtEq.mjEQ_CONNECT.value, mujoco.mjtEq.mjEQ_WELD.value)


@dataclass(frozen=True, kw_only=True)
class Starts:
    """Poses in which episodes begin."""

    default: np.ndarray
    """The default pose of the robot. Shape (nq,)."""

    after: dict[str, np.ndarray] = field(default_factory=dict)
    """Poses of all worlds after each reset event of the last reset, by its name, in order. Shape (num_envs, nq)."""

    @property
    def last(self) -> np.ndarray:
        """Poses in which episodes began at the last reset. Shape (num_envs, nq), or (1, nq) without reset events."""
        return list(self.after.values())[-1] if self.after else self.default[None]


@dataclass
class Plausibility:
    """What is possible and yet probably not meant."""

    config: EnvConfig
    model: mujoco.MjModel
    action_table: list[dict[str, Any]]
    starts: Starts
    restart: Callable[[], None]
    """Begins an episode in every world, and puts the poses into starts."""

    def __post_init__(self) -> None:
        self._data = make_start(self.model)
        self._root = self.model.body_rootid
        self._static = self.model.body_weldid == 0
        self._collides = not self.model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_CONTACT
        self._pulls = not self.model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_GRAVITY
        self._has_home = find_home(self.model) >= 0  # else the reference pose, which is often none to begin in

    def find_doubtful_starts(self) -> Iterator[str]:
        """Yield a line for each thing in the poses in which episodes begin that is probably not meant."""
        if self._has_home:
            yield from self._describe_outside(lambda beyond, width: beyond > 0.01 * (1 + width))
        gravity = self.model.opt.gravity
        if self._pulls and (gravity[2] > 0 or np.abs(gravity).max() > _MOST_GRAVITY):
            shown = " ".join(f"{value:g}" for value in gravity)
            yield f"--env.robot.options.gravity {shown}: 0 0 -9.81 is usual, in m/s^2, with z upwards"
        if self._collides:
            yield from self._find_doubtful_heights()

    def find_doubtful_motors(self) -> Iterator[str]:
        """Yield a line for each thing in actuators, actions and touch sensors that is probably not meant."""
        if self._collides:
            yield from self._find_small_touch_sites()
        yield from self._find_idle_actions()
        yield from self._find_mixed_actions()
        yield from self._find_doubtful_gains()

    def _pose(self, qpos: np.ndarray) -> None:
        self._data.qpos[:] = qpos
        mujoco.mj_fwdPosition(self.model, self._data)

    def _name_pose(self) -> str:
        robot = self.config.robot
        name = robot.keyframe or "home"
        if name in robot.keyframes:
            return f"--env.robot.keyframes.{name}"
        return f"--env.robot, keyframe {name}" if self._has_home else "--env.robot, reference pose"

    def find_wrong_positions(self) -> Iterator[str]:
        """Yield a line for a joint that begins so far outside its range that the simulation cannot recover."""
        yield from self._describe_outside(lambda beyond, width: beyond > max(width, 1.0))

    def _describe_outside(self, is_far: Callable[[float, float], bool]) -> Iterator[str]:
        """Name joints whose default position is far outside the range, unless episodes begin elsewhere."""
        model, starts = self.model, np.vstack([self.starts.last, self.starts.default])
        outside: list[tuple[int, float]] = []
        for joint in range(model.njnt):
            if model.jnt_type[joint] not in SCALAR_JOINTS or not model.jnt_limited[joint]:
                continue
            positions = starts[:, model.jnt_qposadr[joint]]
            low, high = model.jnt_range[joint].tolist()
            if is_far(float(np.maximum(low - positions, positions - high).min()), high - low):
                outside.append((joint, float(positions[-1])))
        if outside:
            joint, position = outside[0]
            low, high = model.jnt_range[joint]
            others = ", ".join(model.joint(other).name for other, _ in outside[1:])
            unit = "rad" if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE else "m"
            yield (
                f"{self._name_pose()}: joint {model.joint(joint).name} is at {position:g} {unit}, outside its range "
                f"{low:.4g} to {high:.4g}{f'; so is {others}' if others else ''}"
            )

    def _find_doubtful_heights(self) -> Iterator[str]:
        """Find what begins in the ground or in the air, and what has no ground."""
        model = self.model
        for body in range(1, model.nbody):
            if self._root[body] != body or self._static[body]:
                continue
            joint = int(model.body_jntadr[body])
            is_free = joint >= 0 and model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE
            name = model.body(body).name or f"body {body}"
            if is_free and self._falls(body):
                if not self._has_ground(body):
                    yield (
                        f"--env.terrain.kind {self.config.terrain.kind}: no geom is a ground for {name}, which has a "
                        "free joint; give flat or generated, or a ground in the robot's file"
                    )
                    continue
                yield from self._find_flight(body, name)
            yield from self._find_burial(body, name, _DEEP_M if is_free and self._has_home else _VERY_DEEP_M)

    def _falls(self, body: int) -> bool:
        """Whether a tree is a robot that gravity pulls down: one with motors at joints, that does not fly or swim."""
        model = self.model
        if not (self._pulls and model.opt.gravity[2] < 0) or model.body_gravcomp[body] or self._is_tied(body):
            return False
        if model.opt.density or model.opt.viscosity:
            return False
        on_joint = np.isin(model.actuator_trntype, ON_JOINT)
        joints = model.actuator_trnid[on_joint, 0]
        return bool(on_joint.all() and (self._root[model.jnt_bodyid[joints]] == body).any())

    def _is_tied(self, body: int) -> bool:
        """Whether an equality constraint holds the tree to something else."""
        model = self.model
        for row in range(model.neq):
            if model.eq_type[row] not in _TIES:
                continue
            ends = [model.eq_obj1id[row], model.eq_obj2id[row]]
            if model.eq_objtype[row] == mujoco.mjtObj.mjOBJ_SITE:
                ends = [model.site_bodyid[end] for end in ends]
            if [self._root[end] == body for end in ends].count(True) == 1:
                return True
        return False

    def _has_ground(self, body: int) -> bool:
        """Whether some geom of the tree can touch one that is fixed to the world or mounted on it."""
        model = self.model
        own = self._root[model.geom_bodyid] == body
        free = np.zeros(model.nbody, dtype=bool)
        free[model.jnt_bodyid[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]] = True
        other = ~own & ~free[self._root[model.geom_bodyid]]
        touches = (model.geom_contype[own, None] & model.geom_conaffinity[None, other]) | (
            model.geom_conaffinity[own, None] & model.geom_contype[None, other]
        )
        return bool(touches.any() or model.npair)

    def _depth(self, body: int, qpos: np.ndarray) -> float:
        """Return how deep a tree is in what is fixed to the world, in m; 0 where it touches, less where it does not."""
        self._pose(qpos)
        contact, geom_body = self._data.contact, self.model.geom_bodyid
        if not self._data.ncon:
            return -math.inf
        pairs = geom_body[contact.geom.clip(min=0)]
        with_world = self._static[pairs].any(axis=1) & (self._root[pairs] == body).any(axis=1)
        return float(-contact.dist[with_world].min()) if with_world.any() else -math.inf

    def _find_burial(self, body: int, name: str, limit: float) -> Iterator[str]:
        """Find a tree that begins deep in the ground every time, by the default pose or deeper by a reset event."""
        starts = self.starts
        from_default = self._depth(body, starts.default) > limit
        if not from_default:
            limit = _VERY_DEEP_M
        if not self._always(lambda qpos: self._depth(body, qpos) > limit):
            return
        depth = self._depth(body, starts.last[0])
        if from_default:
            yield f"{self._name_pose()}: {name} begins {depth:.2g} m in the ground; give another height"
            return
        for event, poses in starts.after.items():
            if self._depth(body, poses[0]) > limit:
                yield f"--env.events.{event}: leaves {name} {depth:.2g} m in the ground"
                return

    def _find_flight(self, body: int, name: str) -> Iterator[str]:
        column = int(self.model.jnt_qposadr[self.model.body_jntadr[body]]) + 2
        high = _HIGH_M if self._has_home else _VERY_HIGH_M

        def lower(qpos: np.ndarray, height_m: float) -> np.ndarray:
            lowered = qpos.copy()
            lowered[column] -= height_m
            return lowered

        def flies(qpos: np.ndarray) -> bool:
            return all(self._depth(body, lower(qpos, part * high)) < 0 for part in (0.0, 0.5, 1.0))

        if not self._always(flies):
            return
        default, start = self.starts.default, self.starts.last[0]
        raised = [event for event, poses in self.starts.after.items() if flies(poses[0])]
        flag = self._name_pose() if flies(default) or not raised else f"--env.events.{raised[0]}"
        yield (
            f"{flag}: {name} begins more than {high:g} m above the ground, at a height of {start[column]:.3g} m; "
            "give a smaller height"
        )

    def _always(self, is_wrong: Callable[[np.ndarray], bool]) -> bool:
        """Whether something is wrong in every world of this start, and of those that follow."""
        for _ in range(NUM_STARTS):
            if not all(is_wrong(qpos) for qpos in self.starts.last):
                return False
            if not self.starts.after:
                break
            self.restart()
        return True

    def _find_small_touch_sites(self) -> Iterator[str]:
        """Find touch sensors whose site is a speck on the body: they read only what presses there."""
        model = self.model
        for row in np.flatnonzero(model.sensor_type == mujoco.mjtSensor.mjSENS_TOUCH):
            site = int(model.sensor_objid[row])
            collides = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
            geoms = np.flatnonzero((model.geom_bodyid == model.site_bodyid[site]) & collides)
            sizes = model.geom_rbound[geoms]
            reach = float(np.linalg.norm(model.site_size[site]))
            if len(geoms) and sizes.min() > 0 and reach < 0.1 * sizes.min():
                yield (
                    f"--env.robot, touch sensor {model.sensor(row).name}: its site {model.site(site).name} is "
                    f"{2000 * reach:.2g} mm wide and reads only contacts there; let it surround the part that touches"
                )
                return

    def _find_idle_actions(self) -> Iterator[str]:
        """Find actions that change no control, or hardly, and actuators without a force."""
        model = self.model
        if model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_ACTUATION:
            yield "--env.robot.options.disable actuation: no action moves anything"
            return
        for row in self.action_table:
            index = model.actuator(row["actuator"]).id
            if model.actuator_gaintype[index] in _NUMBERS and not model.actuator_gainprm[index].any():
                yield f"--env.robot: actuator {row['actuator']} has a gain of 0, and moves nothing"
            elif not model.actuator_gear[model.actuator_outadr[index]].any():
                yield f"--env.robot: actuator {row['actuator']} has a gear of 0, and moves nothing"
            elif model.actuator_forcelimited[index] and not model.actuator_forcerange[index].any():
                yield f"--env.robot: the force range of actuator {row['actuator']} is 0, and it moves nothing"
        for name in self.config.actions:
            yield from self._find_doubtful_scale(name)

    def _find_doubtful_scale(self, name: str) -> Iterator[str]:
        """Compare what the actions of a term ask for with the control ranges of its actuators."""
        model, term = self.model, self.config.actions[name]
        columns = place_controls(model)
        for row in self._driven(name):
            column = columns[_control_of(row)].start
            if not model.actuator_ctrllimited[column] or "base" in row:
                continue
            low, high = model.actuator_ctrlrange[column]
            scale = row["scale"]
            ends = [row["offset"] + scale * bound for bound in term.clip]
            asked = f"actions ask {row['actuator']} for {min(ends):.4g} to {max(ends):.4g}"
            allowed = f"its control range is {low:.4g} to {high:.4g}"
            if not term.relative and (min(ends) >= high or max(ends) <= low):
                yield f"--env.actions.{name}: {asked}; {allowed}, so that no action changes anything"
                return
            if not term.relative and max(ends) - min(ends) < 0.002 * (high - low):
                yield f"--env.actions.{name}.scale {scale:g}: {asked}; {allowed}, so that they move nearly nothing"
                return
            if abs(scale) > 10 * (high - low):
                yield f"--env.actions.{name}.scale {scale:g}: {allowed}, so that nearly every action is at its end"
                return

    def _driven(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of the action table that are of an action term."""
        blocks = place_controls(self.model)
        hits = match_names(self.config.actions[name].actuators, blocks, "actuator with a control")
        columns = {column for hit in hits for column in range(blocks[hit].start, blocks[hit].stop)}
        return [row for row in self.action_table if blocks[_control_of(row)].start in columns]

    def _find_mixed_actions(self) -> Iterator[str]:
        """Find action terms that drive new servos, and with the same scale motors of the file that were left."""
        model = self.model
        for name in self.config.actions:
            kinds: dict[bool, list[str]] = {}
            for actuator in dict.fromkeys(row["actuator"] for row in self._driven(name)):
                is_servo = model.actuator_biastype[model.actuator(actuator).id] != mujoco.mjtBias.mjBIAS_NONE
                kinds.setdefault(bool(is_servo), []).append(actuator)
            if len(kinds) > 1 and self.config.robot.actuators:  # a file may have set the control ranges accordingly
                servos, motors = kinds[True], kinds[False]
                yield (
                    f"--env.actions.{name}: has one scale for {len(servos)} position or velocity actuators and "
                    f"{len(motors)} motors ({', '.join(motors[:3])}{', …' if len(motors) > 3 else ''}); give each kind "
                    "a separate term, or all joints the same kind of actuator"
                )

    def _find_doubtful_gains(self) -> Iterator[str]:
        """Find gains of another order of magnitude than the inertia of the joint asks for, as those in degrees are."""
        model, data = self.model, self._data
        self._pose(self.starts.default)
        data.qvel[:] = 0
        mujoco.mj_fwdVelocity(model, data)
        inverse = np.zeros((model.nv, model.nv))
        mujoco.mj_solveM(model, data, inverse, np.eye(model.nv))
        found: dict[str, list[str]] = {}
        driven = {row["actuator"] for row in self.action_table}
        for index in range(model.nactuator):
            joint = int(model.actuator_trnid[index, 0])
            on_joint = model.actuator_trntype[index] in ON_JOINT and model.jnt_type[joint] in SCALAR_JOINTS
            gear = model.actuator_gear[model.actuator_outadr[index], 0] ** 2
            kp, kv = (gear * value + 0.0 for value in read_gains(model, index)[1:])  # not -0.0 where one is 0
            if not on_joint or kp <= 0 or model.actuator(index).name not in driven:
                continue
            dof = int(model.jnt_dofadr[joint])
            inertia = 1 / inverse[dof, dof]
            damping = kv + model.dof_damping[dof]
            frequency = math.sqrt(kp / inertia)
            is_hinge = model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE
            if frequency * model.opt.timestep > 2:
                doubt = f"kp {kp:.4g} is too stiff for physics steps of {model.opt.timestep:g} s"
            elif is_hinge and (frequency < 3 or abs(data.qfrc_bias[dof]) > kp):
                doubt = f"kp {kp:.4g} is too weak for the joint's inertia and weight"
            elif (limit := self._max_force(index)) < 0.5 * max(abs(data.qfrc_bias[dof]), inertia):
                doubt = f"a force of at most {limit:.4g} is too weak for the joint's inertia and weight"
            elif damping > 1.2 * kp and damping > 4 * math.sqrt(kp * inertia):
                cause = f"kv {kv:.4g}" if 2 * kv > damping else f"the joint's damping {damping - kv:.4g}"
                doubt = f"{cause} is so large beside kp {kp:.4g} that a joint needs {damping / kp:.2g} s to move"
            elif damping < 0.1 * math.sqrt(kp * inertia) and not model.dof_frictionloss[dof]:
                doubt = f"kv {kv:.4g} hardly damps kp {kp:.4g}"
            else:
                continue
            found.setdefault(doubt, []).append(model.actuator(index).name)
        for doubt, actuators in list(found.items())[:3]:
            yield (
                f"--env.robot, gains of {', '.join(actuators[:3])}{', …' if len(actuators) > 3 else ''}: {doubt}; "
                "gains are in N m/rad and N m s/rad (or N/m and N s/m)"
            )

    def _max_force(self, actuator: int) -> float:
        """Return what an actuator on a joint exerts on it at most, in N m or N."""
        model, joint = self.model, int(self.model.actuator_trnid[actuator, 0])
        limits = [math.inf]
        if model.actuator_forcelimited[actuator]:
            gear = abs(model.actuator_gear[model.actuator_outadr[actuator], 0])
            limits.append(gear * abs(model.actuator_forcerange[actuator]).max())
        if model.jnt_actfrclimited[joint]:
            limits.append(abs(model.jnt_actfrcrange[joint]).max())
        return float(min(limits))


def is_hinge(model: mujoco.MjModel, joint: str) -> bool:
    """Whether a joint turns about one axis."""
    return bool(model.joint(joint).type == mujoco.mjtJoint.mjJNT_HINGE)


def find_axis(model: mujoco.MjModel, joint: str) -> tuple[float, ...] | None:
    """Return the axis of a slide or hinge in the default pose, in the world's frame; None for another joint."""
    index = model.joint(joint).id
    if model.jnt_type[index] not in SCALAR_JOINTS:
        return None
    data = make_start(model)
    mujoco.mj_kinematics(model, data)
    return tuple(round(float(value), 6) + 0.0 for value in data.xaxis[index])  # + 0.0: no negative zeros


def _control_of(row: dict[str, Any]) -> str:
    """Return the name in `Layout.controls` of the control that a row of the action table sets."""
    return f"{row['actuator']}:{row['input']}" if "input" in row else row["actuator"]
