"""What ends a deployment, beside the operator."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mjtrain.deployment.robot import Readings
from mjtrain.deployment.rotations import matrix


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds; where one is exceeded, the robot is damped.

    See the flags of `deploy`: --max-torque, --position-margin, --max-tilt, --stale-s and --late-ticks.
    """

    torque: float = 1.0
    """Fraction of the bound of each actuator or joint; the only limit that stops nothing: the motors keep within it."""

    position: float = 0.1
    tilt: float = 1.0
    stale_s: float = 0.07
    late_ticks: int = 5


class Guard:
    """Looks for exceeded limits in readings."""

    def __init__(self, metadata: dict[str, Any], limits: Limits) -> None:
        self._limits = limits
        driven = {row["joint"] for row in metadata["actions"]}
        self._ranges = {
            name: entry["range"]
            for name, entry in metadata.get("joints", {}).items()
            if name in driven and entry.get("range") is not None
        }
        self._up = _find_up(metadata)
        self._base = None if self._up else find_base(metadata)

    def find_exceeded(self, readings: Readings, age_s: float, missed: int) -> str | None:
        """Name the limit that the newest readings, their age or the missed periods exceed; None if all is well."""
        limits = self._limits
        if readings.damped_by:
            return f"the robot damped itself: {readings.damped_by}"
        if age_s > limits.stale_s:
            return f"readings are stale: the newest is {age_s:.3g} s old (--stale-s {limits.stale_s:g})"
        if missed > limits.late_ticks:
            return f"ticks are late: {missed} control periods were missed in a row (--late-ticks {limits.late_ticks})"
        tilt = self.tilt(readings)
        if tilt is not None and tilt > limits.tilt:
            return f"the base is tilted by {tilt:.3g} rad (--max-tilt {limits.tilt:g})"
        for name, (low, high) in self._ranges.items():
            position = float(readings.positions[name][0]) if name in readings.positions else low
            if not low - limits.position <= position <= high + limits.position:
                margin = f"--position-margin {limits.position:g}"
                return f"joint {name} is at {position:.4g}, outside of {low:g} to {high:g} ({margin})"
        return None

    def tilt(self, readings: Readings) -> float | None:
        """Return the angle between the up of the base and the world's, in rad; None where no reading shows it."""
        if self._up is not None and self._up in readings.sensors:
            cosine = readings.sensors[self._up][2]
        elif self._base is not None and self._base in readings.positions:
            cosine = matrix(readings.positions[self._base][3:])[2, 2]
        else:
            return None
        return float(np.arccos(np.clip(cosine, -1.0, 1.0)))


def _find_up(metadata: dict[str, Any]) -> str | None:
    """Return the sensor that gives the world's up in the frame of the base."""
    for name, sensor in metadata.get("sensors", {}).items():
        if sensor["type"] == "framezaxis" and sensor["object"] == "world" and sensor["reference"] is not None:
            return name
    return None


def find_base(metadata: dict[str, Any]) -> str | None:
    """Return the free joint of the robot: one that a term of the root of a robot reads."""
    for term in metadata["observations"]:
        if term.get("func", "").startswith("mjtrain.mdp.root:") and "joint" in term["params"]:
            joint = term["params"]["joint"]
            if len(metadata["default_pose"].get(joint, ())) == 7:
                return joint
    return None
