"""What a mirror makes of a robot: matrices for its state, controls and sensors, found from the compiled model.

A mirror reverses one axis of the world. The mirror image of a body is the body of the partner's name; how the axes of
the two frames correspond is read off in the default pose, which must be its own mirror image. Positions, velocities and
forces are reversed along that axis; angular velocities and torques, which are axial vectors, along the two others.
"""

import copy
import re
from dataclasses import dataclass

import mujoco
import numpy as np

from mjtrain.config import MirrorConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.layout import Layout
from mjtrain.sim.robots.measured import find_body
from mjtrain.sim.robots.read_layout import ON_JOINT, SCALAR_JOINTS, control_columns
from mjtrain.sim.robots.start import make_start

_SAME_M = 2e-3
"""How far from its mirror image a part of the robot may be, in m. Robots as they are measured are not quite even."""

_SAME = 1e-3
"""The same for unit vectors, and for angles in rad."""

_JOINT_SENSORS = ("JOINTPOS", "JOINTVEL", "JOINTACTFRC")
_ACTUATOR_SENSORS = ("ACTUATORPOS", "ACTUATORVEL", "ACTUATORFRC")
_SIZES = ("TOUCH", "RANGEFINDER", "CLOCK", "E_POTENTIAL", "E_KINETIC")
_POLAR = ("VELOCIMETER", "ACCELEROMETER", "FORCE", "FRAMEPOS", "FRAMELINVEL", "FRAMELINACC")
_AXIAL = ("GYRO", "TORQUE", "FRAMEANGVEL", "FRAMEANGACC")
_AXES = ("FRAMEXAXIS", "FRAMEYAXIS", "FRAMEZAXIS")
_WORLD_POLAR = ("SUBTREECOM", "SUBTREELINVEL")
_WORLD_AXIAL = ("SUBTREEANGMOM",)
_CONTACT_FOUND = 1
"""`mjModel.sensor_intprm` of a contact sensor that reads nothing but whether there is contact."""


@dataclass(frozen=True, kw_only=True)
class RobotMirror:
    """Matrices A by which a column vector x of the state becomes its mirror image A x. float64."""

    reflection: np.ndarray
    """For vectors in the world's frame. Shape (3, 3)."""

    qpos: np.ndarray
    """Shape (nq, nq)."""

    qvel: np.ndarray
    """Shape (nv, nv)."""

    ctrl: np.ndarray
    """Shape (nu, nu)."""

    sensordata: np.ndarray
    """Rows of sensors in `unknown` are zero. Shape (nsensordata, nsensordata)."""

    frames: dict[str, np.ndarray]
    """For vectors in the frame of the body of each free joint, by its name. Shape (3, 3) each."""

    bodies: dict[str, str]
    """Image of each body that has a name."""

    body_frames: dict[str, np.ndarray]
    """P of each body, with which the frame of its image is M R P where that of the body is R. Shape (3, 3) each."""

    unknown: dict[str, str]
    """Sensors that have no mirror image, by name, and why."""


def find_mirror(model: mujoco.MjModel, layout: Layout, config: MirrorConfig) -> RobotMirror:
    """Find out how a mirror maps a robot, and check that the robot moves as its mirror image does."""
    return _Finder(model, layout, config).find()


class _Finder:
    """Reads a model in its default pose."""

    def __init__(self, model: mujoco.MjModel, layout: Layout, config: MirrorConfig) -> None:
        self._model, self._config = model, config
        self._reflection = np.diag([-1.0, 1.0, 1.0] if config.plane == "x" else [1.0, -1.0, 1.0])
        self._data = make_start(model)
        self._home = layout.default_qpos.double().cpu().numpy()
        self._inputs = layout.inputs
        self._home_ctrl = layout.default_ctrl.double().cpu().numpy()
        self._data.qpos[:] = self._home
        mujoco.mj_normalizeQuat(model, self._data.qpos)
        mujoco.mj_forward(model, self._data)
        self._partners = {
            kind: self._pair(kind, number, name)
            for kind, number, name in (
                (mujoco.mjtObj.mjOBJ_JOINT, model.njnt, "joint"),
                (mujoco.mjtObj.mjOBJ_ACTUATOR, model.nactuator, "actuator"),
                (mujoco.mjtObj.mjOBJ_SENSOR, model.nsensor, "sensor"),
                (mujoco.mjtObj.mjOBJ_BODY, model.nbody, "body"),
                (mujoco.mjtObj.mjOBJ_SITE, model.nsite, "site"),
            )
        }

    def find(self) -> RobotMirror:
        model = self._model
        qpos, qvel = np.zeros((model.nq, model.nq)), np.zeros((model.nv, model.nv))
        frames: dict[str, np.ndarray] = {}
        for joint, partner in enumerate(self._partners[mujoco.mjtObj.mjOBJ_JOINT]):
            self._place_joint(joint, partner, qpos, qvel, frames)
        signs, ctrl = np.zeros((model.nactuator, model.nactuator)), np.zeros((model.nu, model.nu))
        for actuator, partner in enumerate(self._partners[mujoco.mjtObj.mjOBJ_ACTUATOR]):
            signs[partner, actuator] = sign = self._actuator_sign(actuator, partner, qvel)
            columns = control_columns(model, actuator)
            ctrl[control_columns(model, partner), columns] = sign * np.eye(columns.stop - columns.start)
        self._check_home(qpos, ctrl)
        sensordata, unknown = np.zeros((model.nsensordata, model.nsensordata)), {}
        for sensor, partner in enumerate(self._partners[mujoco.mjtObj.mjOBJ_SENSOR]):
            image = self._sensor_image(sensor, partner, qvel, signs)
            if isinstance(image, str):
                unknown[self._name(mujoco.mjtObj.mjOBJ_SENSOR, sensor)] = image
                continue
            adr, dim = model.sensor_adr, model.sensor_dim
            rows, columns = (slice(adr[index], adr[index] + dim[index]) for index in (partner, sensor))
            sensordata[rows, columns] = image
        pairs = enumerate(self._partners[mujoco.mjtObj.mjOBJ_BODY])
        bodies = {name: pair for pair in pairs if (name := self._name(mujoco.mjtObj.mjOBJ_BODY, pair[0]))}
        mirror = RobotMirror(
            reflection=self._reflection,
            qpos=qpos,
            qvel=qvel,
            ctrl=ctrl,
            sensordata=sensordata,
            frames=frames,
            bodies={name: self._name(mujoco.mjtObj.mjOBJ_BODY, image) for name, (_, image) in bodies.items()},
            body_frames={name: self._part_frame(mujoco.mjtObj.mjOBJ_XBODY, *pair) for name, pair in bodies.items()},
            unknown=unknown,
        )
        self._check_motion(mirror)
        return mirror

    def _pair(self, kind: mujoco.mjtObj, number: int, word: str) -> list[int]:
        """Return the index of the mirror image of each part of a kind."""
        names = [self._name(kind, index) for index in range(number)]
        partners = list(range(number))
        for index, name in enumerate(names):
            for pattern, image in self._config.names.items():
                try:
                    if not name or re.fullmatch(pattern, name) is None:
                        continue
                    wanted = re.sub(pattern, image, name, count=1)
                except (re.error, IndexError) as error:
                    raise RequestError(f"--env.robot.mirror.names {pattern} {image}: {error}") from error
                if wanted not in names:
                    raise RequestError(
                        f"--env.robot.mirror.names {pattern}: the image of {word} {name} would be {wanted}, and the "
                        "robot has none of that name"
                    )
                other = names.index(wanted)
                if {partners[index], partners[other]} != {index, other}:
                    raise RequestError(f"--env.robot.mirror.names {pattern}: {word} {name} has two images")
                partners[index], partners[other] = other, index
        return partners

    def _name(self, kind: mujoco.mjtObj, index: int) -> str:
        return mujoco.mj_id2name(self._model, kind, index) or ""

    def _place_joint(
        self, joint: int, partner: int, qpos: np.ndarray, qvel: np.ndarray, frames: dict[str, np.ndarray]
    ) -> None:
        """Write the block of a joint, whose rows are its partner's."""
        model, data, reflection = self._model, self._data, self._reflection
        name = self._name(mujoco.mjtObj.mjOBJ_JOINT, joint) or f"number {joint}"
        image = self._name(mujoco.mjtObj.mjOBJ_JOINT, partner) or f"number {partner}"
        kind = mujoco.mjtJoint(model.jnt_type[joint])
        if kind != mujoco.mjtJoint(model.jnt_type[partner]):
            raise self._uneven(f"joint {name} and its image {image} are of different types")
        if np.abs(reflection @ data.xanchor[joint] - data.xanchor[partner]).max() > _SAME_M:
            raise self._uneven(f"joint {image} is not where the image of joint {name} is in the default pose")
        to_q, from_q = (int(model.jnt_qposadr[index]) for index in (partner, joint))
        to_v, from_v = (int(model.jnt_dofadr[index]) for index in (partner, joint))
        bodies = (int(model.jnt_bodyid[joint]), int(model.jnt_bodyid[partner]))
        local = self._local(*(data.xmat[body] for body in bodies))
        if model.jnt_type[joint] in SCALAR_JOINTS:
            axis = reflection @ data.xaxis[joint] * (-1 if kind == mujoco.mjtJoint.mjJNT_HINGE else 1)
            sign = float(np.sign(axis @ data.xaxis[partner]))
            if np.abs(axis - sign * data.xaxis[partner]).max() > _SAME:
                raise self._uneven(f"the axis of joint {image} is not the image of that of joint {name}")
            qpos[to_q, from_q] = qvel[to_v, from_v] = sign
            self._check_range(f"range of joint {image}", model.jnt_range, model.jnt_limited, joint, partner, sign)
            return
        width = 3 if kind == mujoco.mjtJoint.mjJNT_FREE else 0
        if width:
            qpos[to_q : to_q + 3, from_q : from_q + 3] = reflection
            qvel[to_v : to_v + 3, from_v : from_v + 3] = reflection
            frames[name] = local.T
            reference = reflection
        else:
            parents = [data.xmat[model.body_parentid[body]] for body in bodies]
            reference = self._local(*parents)
        quaternion = _quaternion_map(reference, local)
        qpos[to_q + width : to_q + width + 4, from_q + width : from_q + width + 4] = quaternion
        qvel[to_v + width : to_v + width + 3, from_v + width : from_v + width + 3] = -local.T

    def _local(self, frame: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return P, with which the frame of the image is M R P where that of a part is R. Shape (3, 3)."""
        return np.round(frame.reshape(3, 3).T @ self._reflection @ image.reshape(3, 3), 9)

    def _actuator_sign(self, actuator: int, partner: int, qvel: np.ndarray) -> float:
        model = self._model
        name, image = (self._name(mujoco.mjtObj.mjOBJ_ACTUATOR, index) for index in (actuator, partner))
        if model.actuator_trntype[actuator] not in ON_JOINT:
            raise self._uneven(f"actuator {name} drives no joint; a mirror is known for those that do")
        joint, other = (int(model.actuator_trnid[index, 0]) for index in (actuator, partner))
        if self._partners[mujoco.mjtObj.mjOBJ_JOINT][joint] != other:
            raise self._uneven(f"actuators {name} and {image} do not drive joints that are images of each other")
        if model.jnt_type[joint] not in SCALAR_JOINTS:
            raise self._uneven(f"actuator {name} drives no hinge and no slide")
        if model.actuator_ctrlnum[actuator] != model.actuator_ctrlnum[partner]:
            raise self._uneven(f"actuators {name} and {image} have different numbers of controls")
        if model.actuator_delay[actuator] != model.actuator_delay[partner]:
            raise self._uneven(f"actuators {name} and {image} have different delays")
        gears = np.prod(model.actuator_gear[model.actuator_outadr[[partner, actuator]], 0])
        sign = float(qvel[model.jnt_dofadr[other], model.jnt_dofadr[joint]] * np.sign(gears))
        ranges = (model.actuator_ctrlrange, model.actuator_ctrllimited)
        columns, images = (range(model.nu)[control_columns(model, index)] for index in (actuator, partner))
        for column, other in zip(columns, images, strict=True):
            self._check_range(f"ctrlrange of actuator {image}", *ranges, column, other, sign)
        return sign

    def _check_range(
        self, what: str, ranges: np.ndarray, limited: np.ndarray, index: int, partner: int, sign: float
    ) -> None:
        if limited[index] != limited[partner] or (
            limited[index] and np.abs(np.sort(sign * ranges[index]) - ranges[partner]).max() > _SAME
        ):
            here, wanted = (
                " ".join(f"{end:.4g}" for end in ends) if limited[which] else "none"
                for which, ends in ((partner, ranges[partner]), (index, np.sort(sign * ranges[index])))
            )
            raise self._uneven(f"the {what} is not the image of its partner's: it is {here}, and the image is {wanted}")

    def _check_home(self, qpos: np.ndarray, ctrl: np.ndarray) -> None:
        """Check that the default pose is its own image; the sign of a quaternion does not matter."""
        model = self._model
        image = qpos @ self._home
        for joint in range(model.njnt):
            kind = mujoco.mjtJoint(model.jnt_type[joint])
            width = {mujoco.mjtJoint.mjJNT_FREE: 3, mujoco.mjtJoint.mjJNT_BALL: 0}.get(kind, 1)
            place = slice(int(model.jnt_qposadr[joint]), int(model.jnt_qposadr[joint]) + width)
            if np.abs(image[place] - self._home[place]).max(initial=0.0) > _SAME:
                name = self._name(mujoco.mjtObj.mjOBJ_JOINT, joint)
                raise self._uneven(f"the default pose is not its own image: joint {name} would be elsewhere")
        wrong = np.flatnonzero(np.abs(ctrl @ self._home_ctrl - self._home_ctrl) > _SAME)
        if len(wrong):
            name, _ = self._inputs[int(wrong[0])]
            raise self._uneven(f"the controls of the default pose are not their own image: actuator {name} differs")

    def _sensor_image(self, sensor: int, partner: int, qvel: np.ndarray, signs: np.ndarray) -> np.ndarray | str:
        """Return what becomes of the reading of a sensor, as its partner's; or why that is not known."""
        model = self._model
        if any(
            (getattr(model, field)[sensor] != getattr(model, field)[partner]).any()
            for field in ("sensor_type", "sensor_objtype", "sensor_reftype", "sensor_delay", "sensor_interval")
        ):
            return "its image is a sensor of another type, delay or interval"
        kind = mujoco.mjtSensor(model.sensor_type[sensor]).name.removeprefix("mjSENS_")
        part, image = (int(model.sensor_objid[index]) for index in (sensor, partner))
        if kind in _JOINT_SENSORS:
            return (
                qvel[model.jnt_dofadr[image], model.jnt_dofadr[part]].reshape(1, 1) or "its image is of another joint"
            )
        if kind in _ACTUATOR_SENSORS:
            return signs[image, part].reshape(1, 1) or "its image is of another actuator"
        if not self._is_on_image(sensor, partner):
            return "its image is on another part"
        if kind in _SIZES or (kind == "CONTACT" and model.sensor_intprm[sensor, 0] == _CONTACT_FOUND):
            return np.eye(int(model.sensor_dim[sensor]))
        if kind in _WORLD_POLAR:
            return self._reflection
        if kind in _WORLD_AXIAL:
            return -self._reflection
        if kind in ("VELOCIMETER", "ACCELEROMETER", "FORCE", "GYRO", "TORQUE"):
            frame = self._part_frame(mujoco.mjtObj.mjOBJ_SITE, part, image)
            return frame.T if kind in _POLAR else -frame.T
        reference = self._reflection
        if model.sensor_refid[sensor] >= 0:
            parts = [int(model.sensor_refid[index]) for index in (sensor, partner)]
            reference = self._part_frame(mujoco.mjtObj(model.sensor_reftype[sensor]), *parts)
        if kind in _POLAR:
            return reference.T
        if kind in _AXIAL:
            return -reference.T
        if kind in _AXES or kind == "FRAMEQUAT":
            frame = self._part_frame(mujoco.mjtObj(model.sensor_objtype[sensor]), part, image)
            if kind == "FRAMEQUAT":
                return _quaternion_map(reference, frame)
            axis = _AXES.index(kind)
            sign = frame[axis, axis]
            return sign * reference.T if abs(abs(sign) - 1.0) < _SAME else "the axes of its image are others"
        return f"the mirror image of a sensor of type {kind.lower()} is not known"

    def _is_on_image(self, sensor: int, partner: int) -> bool:
        """Whether the image of a sensor measures the images of its parts; those of a contact may change places."""
        model = self._model
        (one, two), (image, other) = (
            [
                (int(kind[index]), int(part[index]))
                for kind, part in (
                    (model.sensor_objtype, model.sensor_objid),
                    (model.sensor_reftype, model.sensor_refid),
                )
            ]
            for index in (sensor, partner)
        )
        if self._are_images(one, image) and self._are_images(two, other):
            return True
        is_contact = model.sensor_type[sensor] == mujoco.mjtSensor.mjSENS_CONTACT
        return bool(is_contact and self._are_images(one, other) and self._are_images(two, image))

    def _are_images(self, one: tuple[int, int], two: tuple[int, int]) -> bool:
        """Whether a part, as its type and number, is where the image of another one is, or on its body's image."""
        (kind, part), (other_kind, image) = one, two
        if kind != other_kind or (part < 0) != (image < 0):
            return False
        body, other = find_body(self._model, part, kind), find_body(self._model, image, kind)
        if part < 0 or body is None or other is None or self._partners[mujoco.mjtObj.mjOBJ_BODY][body] == other:
            return True
        data = self._data
        of_kind = {mujoco.mjtObj.mjOBJ_SITE: data.site_xpos, mujoco.mjtObj.mjOBJ_GEOM: data.geom_xpos}
        places = of_kind.get(mujoco.mjtObj(kind), data.xpos)
        return bool(np.abs(self._reflection @ places[part] - places[image]).max() < _SAME_M)

    def _part_frame(self, kind: mujoco.mjtObj, part: int, image: int) -> np.ndarray:
        """Return P of a part, see `_local`."""
        data = self._data
        frames = {
            mujoco.mjtObj.mjOBJ_XBODY: data.xmat,
            mujoco.mjtObj.mjOBJ_BODY: data.ximat,
            mujoco.mjtObj.mjOBJ_GEOM: data.geom_xmat,
            mujoco.mjtObj.mjOBJ_SITE: data.site_xmat,
            mujoco.mjtObj.mjOBJ_CAMERA: data.cam_xmat,
        }[kind]
        return self._local(frames[part], frames[image])

    def _check_motion(self, mirror: RobotMirror) -> None:
        """Compare accelerations in a few states near the default pose, without contacts, with those of their images."""
        model = copy.copy(self._model)
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
        model.actuator_delay[:] = 0.0  # else controls would have no effect yet
        rng = np.random.default_rng(0)
        for _ in range(4):
            qpos = self._home.copy()
            mujoco.mj_integratePos(model, qpos, rng.uniform(-0.3, 0.3, model.nv), 1.0)
            qvel = rng.uniform(-1.0, 1.0, model.nv)
            ctrl = self._home_ctrl + rng.uniform(-0.1, 0.1, model.nu)
            one = _accelerate(model, qpos, qvel, ctrl)
            other = _accelerate(model, mirror.qpos @ qpos, mirror.qvel @ qvel, mirror.ctrl @ ctrl)
            difference = np.abs(mirror.qvel @ one - other)
            worst = int(difference.argmax())
            if difference[worst] > self._config.tolerance * np.abs(one).max():
                name = self._name(mujoco.mjtObj.mjOBJ_JOINT, int(model.dof_jntid[worst]))
                raise self._uneven(
                    f"joint {name} accelerates otherwise than its image, by {difference[worst]:.3g} where the "
                    f"largest acceleration is {np.abs(one).max():.3g}: masses, inertias, damping or gains differ; "
                    "to accept that, raise --env.robot.mirror.tolerance"
                )

    def _uneven(self, problem: str) -> RequestError:
        return RequestError(
            f"--env.robot.mirror: the robot is not its own mirror image (plane {self._config.plane}): {problem}"
        )


def _accelerate(model: mujoco.MjModel, qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> np.ndarray:
    data = make_start(model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = qpos, qvel, ctrl
    data.act[:] = 0.0  # which is its own mirror image
    mujoco.mj_forward(model, data)
    return data.qacc.copy()


def _quaternion_map(reference: np.ndarray, local: np.ndarray) -> np.ndarray:
    """Return the matrix by which the quaternion of R becomes that of reference^T R local. Shape (4, 4)."""
    # Both are reflections, so the negatives are rotations, whose product is the same.
    left, right = np.empty(4), np.empty(4)
    mujoco.mju_mat2Quat(left, np.ascontiguousarray(-reference.T).ravel())
    mujoco.mju_mat2Quat(right, np.ascontiguousarray(-local).ravel())
    columns = []
    for unit in np.eye(4):
        product = np.empty(4)
        mujoco.mju_mulQuat(product, left, unit)
        mujoco.mju_mulQuat(product, product.copy(), right)
        columns.append(product)
    matrix = np.round(np.stack(columns, axis=1), 9)
    return matrix if matrix[0, 0] >= 0 else -matrix
