"""What sessions of viewers share, such as the env steps that are due; and the session that replays a dump or motion."""

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mjtrain.config import EnvConfig
from mjtrain.evaluation.followed import Ghost
from mjtrain.motion.files import DAMAGES
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import RequestError, count
from mjtrain.sim.engines.base import MAX_VALUE
from mjtrain.sim.robots.kinematics import Kinematics

StateField = Literal["qpos", "qvel", "ctrl"]

_LONGEST_TICK_S = 0.05
_FIELDS = ("qpos", "qvel", "act", "ctrl")


class Clock:
    """Converts elapsed time to env steps."""

    def __init__(self, step_dt: float) -> None:
        self.step_dt = step_dt
        self._due_s = 0.0

    def run(self, elapsed_s: float, step: Callable[[], None]) -> bool:
        """Do the steps that are due and return whether there were any; steps that take too long slow time down."""
        if not np.isfinite(elapsed_s):
            return False
        self._due_s += elapsed_s
        deadline = time.monotonic() + _LONGEST_TICK_S
        stepped = False
        while self._due_s >= self.step_dt:
            step()
            stepped = True
            self._due_s -= self.step_dt
            if time.monotonic() > deadline:
                self._due_s = 0.0
        return stepped


class ViewerSession:
    """Worlds that a viewer shows and controls."""

    ghost: Ghost | None = None
    """What the worlds should do; None if nothing says it."""

    def __init__(self, kinematics: Kinematics, step_dt: float) -> None:
        self.kinematics = kinematics
        self.paused = False
        self.speed = 1.0
        self.selected = 0
        self._clock = Clock(step_dt)
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def post(self, action: Callable[[], None]) -> None:
        """Queue an action that runs between two steps; any thread may call this."""
        self._posted.put(action)

    def tick(self, elapsed_s: float) -> bool:
        """Run queued actions and advance time; return whether the picture changed."""
        heartbeat.beat("run", warming_up=True)  # while paused too; a step may compile kernels for minutes
        acted = False
        while not self._posted.empty():
            self._posted.get()()
            acted = True
        self._before_steps()
        if self.paused:
            return acted
        return self._clock.run(elapsed_s * self.speed, self.step) or acted

    def _before_steps(self) -> None:
        """Do what a session needs in each tick, paused or not, after queued actions and before env steps."""

    def step(self) -> None:
        """Advance by one env step."""
        raise NotImplementedError

    def step_once(self) -> None:
        """Pause, and advance by one env step."""
        self.paused = True
        self.step()

    def toggle(self) -> None:
        """Pause, or continue."""
        self.paused = not self.paused

    def reset(self) -> None:
        """Start again."""
        raise NotImplementedError

    def select(self, world: int) -> None:
        """Select another world, if there are several."""

    def state(self, field: StateField) -> np.ndarray:
        """Return positions, velocities or controls, finite. Shape (num_worlds, nq, nv or nu)."""
        raise NotImplementedError

    def commanded_poses(self) -> dict[str, np.ndarray]:
        """Return the commanded poses of the selected world, by command term, shape (7,) each; a dump has none."""
        return {}

    def status(self) -> list[str]:
        """Describe in a few lines what is shown."""
        raise NotImplementedError


def to_poses(command: np.ndarray, free_joint: str, qpos: np.ndarray, kinematics: Kinematics) -> np.ndarray:
    """Complete commands that are positions or quaternions to poses. Shape (rows, 7).

    An orientation is shown above its object, where neither the object nor a hand around it hides the mark.

    Args:
        command: Positions in m, quaternions, or both and more. Shape (rows, size).
        free_joint: Joint of the object that a quaternion is for.
        qpos: State of the worlds. Shape (rows, nq).
    """
    if command.shape[1] == 3:
        return np.hstack([command, np.tile([1.0, 0.0, 0.0, 0.0], (len(command), 1))])
    if command.shape[1] == 4:
        begin = int(kinematics.model.joint(free_joint).qposadr[0])
        place = qpos[:, begin : begin + 3].copy()
        place[:, 2] += 1.5 * kinematics.radius_m(free_joint)
        return np.hstack([place, command])
    return command[:, :7]


@dataclass(frozen=True, kw_only=True)
class Dump:
    """A file of `env.nan_guard`: one row per env step; the last one is that in which the world broke."""

    path: Path
    qpos: np.ndarray
    """Shape (steps, nq)."""
    qvel: np.ndarray
    """Shape (steps, nv)."""
    act: np.ndarray
    """Shape (steps, na)."""
    ctrl: np.ndarray
    """Shape (steps, nu)."""
    step_dt: float
    """Env step, in seconds."""
    world: int
    """Index of the world in its batch."""
    robot: str = ""
    """MJCF file."""

    @property
    def num_finite(self) -> int:
        """Number of env steps before the first that is not finite."""
        rows = np.concatenate([self.qpos, self.qvel, self.act, self.ctrl], axis=1)
        broken = np.flatnonzero(_is_bad(rows).any(axis=1))
        return int(broken[0]) if broken.size else len(rows)


def _is_bad(values: np.ndarray) -> np.ndarray:
    return ~(np.abs(values) <= MAX_VALUE)


def load_dump(path: Path) -> Dump:
    """Read a file of {run}/nan."""
    try:
        with np.load(path, allow_pickle=False) as file:
            fields = {name: np.asarray(file[name], dtype=np.float64) for name in _FIELDS}
            np.concatenate([*fields.values()], axis=1)  # raises unless each has a row for every env step
            step_dt, world, robot = float(file["step_dt"]), int(file["world"]), str(file["robot"])
    except FileNotFoundError:
        raise RequestError(f"--replay {path}: no such file") from None
    except (OSError, ValueError, TypeError, KeyError, *DAMAGES) as error:
        raise RequestError(
            f"--replay {path}: not a NaN dump, such as a file in the folder nan of a run ({error})"
        ) from error
    return Dump(path=path, **fields, step_dt=step_dt, world=world, robot=robot)


def check_dump(dump: Dump, kinematics: Kinematics) -> None:
    """Raise a RequestError unless the dump fits the model."""
    theirs, ours = dump.qpos.shape[1], kinematics.model.nq
    if theirs != ours or not dump.num_finite:
        why = f"has {theirs} positions and the robot {ours}" if theirs != ours else "has no env step that is finite"
        raise RequestError(f"--replay {dump.path}: {why}; give the task that it was written for")


def describe_dump(dump: Dump, kinematics: Kinematics) -> list[str]:
    """Describe in lines what stopped being finite, when, and the largest values before."""
    last = dump.num_finite - 1
    lines = [
        f"{dump.path}: world {dump.world} of robot {dump.robot}",
        f"{count(len(dump.qpos), 'env step')} of {dump.step_dt:g} s, finite until {last * dump.step_dt:.2f} s",
    ]
    model = kinematics.model
    velocity_joints = [model.joint(int(joint)).name or f"joint {joint}" for joint in model.dof_jntid]
    if dump.num_finite < len(dump.qpos):
        broken = dump.num_finite
        for name in _FIELDS:
            row = getattr(dump, name)[broken]
            columns = np.flatnonzero(_is_bad(row))
            if columns.size:
                joints = {"qpos": kinematics.joint_of_column, "qvel": velocity_joints}.get(name)
                what = dict.fromkeys(joints[column] for column in columns) if joints else map(str, columns)
                lines.append(f"not finite then: {name} of {', '.join(what)}")
    speeds = np.abs(dump.qvel[: dump.num_finite])
    if speeds.size:
        step, column = np.unravel_index(int(speeds.argmax()), speeds.shape)
        lines.append(
            f"fastest before: {velocity_joints[column]}, {speeds[step, column]:.4g} at {step * dump.step_dt:.2f} s, "
            f"in the last finite env step {speeds[last].max():.4g}"
        )
    controls = np.abs(dump.ctrl[: dump.num_finite])
    if controls.size:
        lines.append(
            f"largest control before: {controls.max():.4g}; in the last finite step {controls[last].max():.4g}"
        )
    return lines


class ReplaySession(ViewerSession):
    """Plays the finite env steps of a dump in a loop."""

    def __init__(self, dump: Dump, config: EnvConfig, lines: Sequence[str] | None = None) -> None:
        """Compile the model; lines are what the viewer says about it, None for a description of the dump."""
        super().__init__(Kinematics(config), dump.step_dt)
        check_dump(dump, self.kinematics)
        self.frame = 0
        """Index of the env step that is shown."""
        self.num_frames = dump.num_finite
        """Number of env steps that can be shown."""
        self._dump = dump
        self._lines = describe_dump(dump, self.kinematics) if lines is None else lines

    def step(self) -> None:
        """Advance by one env step; the first follows the last."""
        self.frame = (self.frame + 1) % self.num_frames

    def reset(self) -> None:
        """Go back to the first env step."""
        self.frame = 0

    def go_to(self, frame: int) -> None:
        """Show an env step, and pause there."""
        self.frame, self.paused = frame, True

    def state(self, field: StateField) -> np.ndarray:
        """Return positions, velocities or controls. Shape (1, nq, nv or nu)."""
        return getattr(self._dump, field)[self.frame : self.frame + 1]

    def status(self) -> list[str]:
        """Describe in a few lines what is shown."""
        return [f"env step {self.frame + 1} of {self.num_frames}", *self._lines]
