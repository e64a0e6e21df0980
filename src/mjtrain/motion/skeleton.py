"""A robot as motions see it: names of its joints and bodies, and its own kinematics."""

import mujoco
import numpy as np
import torch

from mjtrain.config import RobotConfig
from mjtrain.motion.motion import Motion, make_motion
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations
from mjtrain.sim.robots.kinematics import BodyStates, ForwardKinematics
from mjtrain.sim.robots.mirror import find_mirror
from mjtrain.sim.robots.model import load_model, robot_only
from mjtrain.sim.robots.read_layout import make_layout
from mjtrain.sim.robots.start import find_root


class Skeleton:
    """Kinematics of a robot with a free joint, in double precision on the CPU."""

    def __init__(self, model: mujoco.MjModel, robot: RobotConfig) -> None:
        self.model = model
        """The robot, compiled."""
        self.robot = robot
        """Its config."""
        self.layout = make_layout(model, "cpu", torch.float64)
        free = [name for name in self.layout.qpos if self.layout.qpos.width(name) == 7]
        root = find_root(model)
        self.root: str = model.joint(root).name if root >= 0 else ""
        """Its free joint."""
        if not self.root:
            raise RequestError("the robot has no named free joint; a motion is of a robot that moves freely")
        self.root_body = int(model.jnt_bodyid[root])
        """The body of that joint. Objects may come before it."""
        self.joints = tuple(self.layout.qpos.match((".*",))) if len(self.layout.qpos) > len(free) else ()
        """Hinges and slides, in the order of the model."""
        self.bodies = tuple(model.body(index).name or f"body {index}" for index in range(1, model.nbody))
        """Bodies without the world, in the order of the model."""
        self._kinematics = ForwardKinematics(model, "cpu", torch.float64)

    def check_joints(self, motion: Motion) -> None:
        """Raise a RequestError unless a motion has exactly the joints of this robot."""
        missing = [name for name in self.joints if name not in motion.joints]
        foreign = [name for name in motion.joints if name not in self.joints]
        if missing or foreign:
            raise RequestError(
                f"is of another robot: this one has the joints {_list(missing)} that the motion lacks, and lacks "
                f"{_list(foreign)}"
            )

    def qpos(self, motion: Motion) -> torch.Tensor:
        """Return qpos of each frame, float64, shape (num_frames, nq); other free bodies are as in the default pose."""
        self.check_joints(motion)
        qpos = self.layout.default_qpos.repeat(motion.num_frames, 1)
        start = self.layout.qpos[self.root].start
        qpos[:, start : start + 3] = torch.from_numpy(motion.root_pos)
        qpos[:, start + 3 : start + 7] = torch.from_numpy(motion.root_quat)
        for column, name in enumerate(motion.joints):
            qpos[:, self.layout.qpos[name].start] = torch.from_numpy(motion.joint_pos[:, column])
        return qpos

    def qvel(self, motion: Motion) -> torch.Tensor:
        """Return qvel of each frame by central differences, one-sided at both ends. Float64, shape (num_frames, nv)."""
        qvel = torch.zeros(motion.num_frames, self.model.nv, dtype=torch.float64)
        place = self.layout.qvel[self.root].start
        root_pos, root_quat = torch.from_numpy(motion.root_pos), torch.from_numpy(motion.root_quat)
        qvel[:, place : place + 3] = torch.gradient(root_pos, dim=0)[0] * motion.fps
        qvel[:, place + 3 : place + 6] = _turning_rates(root_quat) * motion.fps
        rates = torch.gradient(torch.from_numpy(motion.joint_pos), dim=0)[0] * motion.fps
        for column, name in enumerate(motion.joints):
            qvel[:, self.layout.qvel[name].start] = rates[:, column]
        return qvel

    def body_states(self, motion: Motion) -> BodyStates:
        """Return poses and velocities of the bodies in each frame, without the world. Shapes (num_frames, nbody, …)."""
        states = self._kinematics.compute(self.qpos(motion), self.qvel(motion))
        return states.select(torch.arange(1, self.model.nbody))

    def from_qpos(self, qpos: np.ndarray, fps: float) -> Motion:
        """Return the motion with these generalised positions. Shape (num_frames, nq)."""
        start = self.layout.qpos[self.root].start
        columns = [self.layout.qpos[name].start for name in self.joints]
        return make_motion(
            fps, qpos[:, start : start + 3], qpos[:, start + 3 : start + 7], qpos[:, columns], self.joints
        )

    def mirror(self, motion: Motion) -> Motion:
        """Return the mirror image of a motion, by the mirror of the robot."""
        found = find_mirror(self.model, self.layout, self.robot.mirror)
        mirrored = self.from_qpos(self.qpos(motion).numpy() @ found.qpos.T, motion.fps)
        if motion.contacts is None:
            return mirrored
        if foreign := [name for name in motion.contact_bodies if name not in found.bodies]:
            raise RequestError(f"contact_bodies {', '.join(foreign)}: the robot has no such bodies")
        images = tuple(found.bodies[name] for name in motion.contact_bodies)
        return mirrored.replace(contacts=motion.contacts, contact_bodies=images)


def load_skeleton(robot: RobotConfig) -> Skeleton:
    """Compile a robot."""
    model = load_model(robot_only(robot))
    try:
        return Skeleton(model, robot)
    except RequestError as error:
        raise RequestError(f"{robot.label}: {error}") from error


def _turning_rates(quaternions: torch.Tensor) -> torch.Tensor:
    """Return rotations per frame as vectors in the frame of the body. Shape (num_frames, 3)."""

    def between(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return rotations.rotation_vector(rotations.multiply(rotations.conjugate(first), second))

    middle = between(quaternions[:-2], quaternions[2:]) / 2
    return torch.cat(
        [between(quaternions[:1], quaternions[1:2]), middle, between(quaternions[-2:-1], quaternions[-1:])]
    )


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown} and {len(names) - 6} more" if len(names) > 6 else shown or "none"
