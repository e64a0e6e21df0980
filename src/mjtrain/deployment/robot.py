"""What a controller and a robot tell each other."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

Named = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What a robot measured at one moment, by the names in the metadata of the policy."""

    sequence: int = 0
    """Increases with each reading, so that lost and late ones are noticed."""

    time_s: float = 0.0
    """The robot's clock when it measured."""

    positions: Named = field(default_factory=dict)
    """By joint: m or rad, shape (1,); of a free joint position in m and quaternion (w, x, y, z), shape (7,)."""

    velocities: Named = field(default_factory=dict)
    """By joint: m/s or rad/s, shape (1,); of a free joint the linear velocity in the world's frame and the angular
    velocity in that of the body, shape (6,)."""

    sensors: Named = field(default_factory=dict)
    """By sensor, in its own unit and frame."""

    values: Named = field(default_factory=dict)
    """By observation term: what neither joints nor sensors give, such as a scan of the ground. Unscaled."""

    damped_by: str = ""
    """Why the robot has damped itself; empty if it has not."""

    truth: "Readings | None" = None
    """The same without noise and delay, which only a simulator knows; for reports."""


@dataclass(frozen=True, kw_only=True)
class Drive:
    """What one actuator must do until the next target: torque on the joint = kp * (position - q) - kd * dq + torque."""

    kp: float
    """In N m/rad; N/m for a slide."""

    kd: float
    """In N m s/rad; N s/m for a slide."""

    position: float = 0.0
    """In rad or m."""

    torque: float = 0.0
    """In N m or N."""

    max_torque: float | None = None
    """Bound of the sum, in N m or N; None: that of the motor. A motor may have a lower one at high speeds."""

    controls: tuple[float, ...] | None = None
    """Where no linear formula gives the torque: the controls of the actuator, in its own units. The rest is unused."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What a robot must do until the next targets."""

    state: str
    """State of the controller: damped, standing, policy or stop."""

    drives: dict[str, Drive] = field(default_factory=dict)
    """By actuator. In the states damped and stop it is empty: every motor only brakes."""


class Robot(Protocol):
    """A robot, or a simulation of one. `read` and `write` take at most a few ms: the control period waits for them."""

    def read(self) -> Readings | None:
        """Return the newest readings; None before the first."""
        ...

    def write(self, targets: Targets) -> None:
        """Send targets. The robot damps itself where none arrive for a while."""

    def close(self) -> None:
        """End the connection."""
