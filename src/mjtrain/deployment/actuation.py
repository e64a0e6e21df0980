"""From the output of a policy to what the actuators must do."""

from typing import Any

import numpy as np

from mjtrain.deployment.robot import Drive, Readings


class Actuation:
    """Turns actions into drives by the table `actions` of the metadata."""

    def __init__(
        self, metadata: dict[str, Any], max_torque_fraction: float = 1.0, *, robot_bounds: bool = False
    ) -> None:
        """Read the table; each torque is bounded by a fraction of the actuator's or the joint's own bound.

        Drives have no bound where the robot itself bounds torques, and their sum on a joint, as MuJoCo does.
        """
        self._rows = metadata["actions"]
        self._fraction = max_torque_fraction
        self._scale = np.array([row["scale"] for row in self._rows], dtype=float)
        self._offset = np.array([row["offset"] for row in self._rows], dtype=float)
        self._relative = np.array([bool(row.get("relative")) for row in self._rows])
        self._clip = np.array([row["clip"] for row in self._rows], dtype=float).T
        bounds = [row["control_range"] or (-np.inf, np.inf) for row in self._rows]
        self._bounds = np.array(bounds, dtype=float).T
        self._home = metadata["default_pose"]
        self._robot_bounds = robot_bounds
        self.reset()

    def reset(self) -> None:
        """Begin at the offsets."""
        self.controls = self._offset.copy()
        """What was last asked of each output's actuator, in its unit. Shape (num_actions,)."""

    @property
    def displacements(self) -> np.ndarray:
        """Controls minus their offsets, which the term ctrl_rel shows. Shape (num_actions,)."""
        return self.controls - self._offset

    def apply(self, action: np.ndarray) -> np.ndarray:
        """Take an action and return the controls. Shape (num_actions,) each."""
        change = self._scale * np.clip(action, *self._clip)
        added = np.clip(self.controls + change, *self._bounds)
        self.controls = np.where(self._relative, added, self._offset + change)
        return self.controls

    def drives(self) -> dict[str, Drive]:
        """Return what the actuators must do for the current controls."""
        rows: dict[str, list[int]] = {}
        for index, row in enumerate(self._rows):
            rows.setdefault(row["actuator"], []).append(index)
        return {name: self._drive(indices) for name, indices in rows.items()}

    def _drive(self, indices: list[int]) -> Drive:
        """Return the drive of an actuator from the outputs for it: see "The torque on a joint" in the guide."""
        row, controls = self._rows[indices[0]], np.clip(self.controls, *self._bounds)
        if row["formula"] == "none":
            in_order = sorted(indices, key=lambda index: self._rows[index].get("ctrl_index", index))
            asked = iter(controls[in_order].tolist())
            held = row.get("held_controls", [None] * len(in_order))
            return Drive(kp=0.0, kd=0.0, controls=tuple(next(asked) if own is None else own for own in held))
        constant = sum(self._rows[index]["gain"] * controls[index] for index in indices) + row["bias"]
        kp, limit = row["kp"], None if self._robot_bounds else self.max_torque(row)
        return Drive(
            kp=kp,
            kd=row["kd"],
            position=float(constant / kp) if kp else 0.0,
            torque=0.0 if kp else float(constant),
            max_torque=limit,
        )

    def max_torque(self, row: dict[str, Any]) -> float | None:
        """Return the larger bound of an actuator's torque, for both directions; None without one."""
        bounds = [max(-low, high) for low, high in find_torque_ranges(row)]
        if self._fraction < 1 and row["formula"] == "limited":  # without a fraction, it may be beyond it to brake
            bounds.append(row["stall_torque"])
        return self._fraction * min(bounds) if bounds else None

    def stand(self, begin: Readings, progress: float) -> dict[str, Drive]:
        """Return drives on the straight way from where the joints were to the home pose.

        Actuators without a stiffness brake: they have no position to go to. Actuators without a formula get the
        controls of action 0. Progress is from 0 to 1.
        """
        self.reset()
        drives = self.drives()
        for row in self._rows:
            name, joint = row["actuator"], row["joint"]
            if row["formula"] == "none":
                continue
            home = self._home[joint][0]
            start = float(begin.positions[joint][0]) if joint in begin.positions else home
            position = start + progress * (home - start)
            drives[name] = Drive(kp=row["kp"], kd=row["kd"], position=position, max_torque=drives[name].max_torque)
        return drives

    def torques(self, readings: Readings) -> dict[str, tuple[float, float | None]]:
        """Return the torque that each actuator with gains would give without a bound, and the bound, by actuator.

        Actuators of joints whose position or velocity the robot does not report are left out.
        """
        found: dict[str, tuple[float, float | None]] = {}
        for name, drive in self.drives().items():
            joint = next(row["joint"] for row in self._rows if row["actuator"] == name)
            if drive.controls is None and joint in readings.positions and joint in readings.velocities:
                q, dq = float(readings.positions[joint][0]), float(readings.velocities[joint][0])
                found[name] = (drive.kp * (drive.position - q) - drive.kd * dq + drive.torque, drive.max_torque)
        return found


def find_torque_ranges(row: dict[str, Any]) -> list[list[float]]:
    """Return the ranges of the torque that a row of the actions gives: of the actuator and of its joint."""
    return [row[key] for key in ("torque_range", "joint_torque_range") if row.get(key) is not None]
