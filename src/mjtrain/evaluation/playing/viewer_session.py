"""A session of a viewer, and what runs between two frames: the env steps that are due, and what visitors ask for."""

import queue
import time
from collections.abc import Callable
from typing import Literal

import numpy as np

from mjtrain.evaluation.followed import Ghost
from mjtrain.sim.robots.kinematics import Kinematics

StateField = Literal["qpos", "qvel", "ctrl"]

_LONGEST_TICK_S = 0.05


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
