"""The loop of a controller and its limits: in each control period it reads, checks limits, decides and writes."""

import contextlib
import gc
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mjtrain.deployment.actuation import Actuation
from mjtrain.deployment.observation import Observer, make_observer
from mjtrain.deployment.policy import DeployedPolicy
from mjtrain.deployment.robot import Drive, Readings, Robot, Targets
from mjtrain.deployment.rotations import matrix
from mjtrain.deployment.steering import Commands
from mjtrain.deployment.terms import ERRORS, Scene, compute, find_base
from mjtrain.runtime.errors import OutsideError, RequestError, count
from mjtrain.runtime.files import check_writable, saying_where, write_out

FIRST_READINGS_S = 10.0
"""Longest wait for the first readings, in seconds."""

REPEAT_S = 0.02
"""Longest time without a packet, in seconds: where a control period is longer, the last targets are sent again, so that
the watchdog of a robot need not know the period. Limits and signals are looked at as often."""

MAX_DRIFT = 1e-3
"""Largest drift between the clocks of the robot and of the controller, in s/s: NTP slews each by up to 5e-4.
A delay that grows faster is noticed."""

COMPLETED = "completed"
"""Cause of an end that nobody forced."""

STOPPED = "stopped by the operator"
"""Cause of an end by a key, by a button of the gamepad, or by its loss."""


@dataclass(frozen=True, kw_only=True)
class Phases:
    """How long the states last, in seconds."""

    damped_s: float = 0.5
    standing_s: float = 2.0
    policy_s: float = 60.0


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
        self._up, self._base = _find_up(metadata), find_base(metadata)

    def find_exceeded(self, readings: Readings, age_s: float, missed: int) -> str | None:
        """Name the limit that the newest readings, their age or the missed periods exceed; None if all is well."""
        limits = self._limits
        if readings.damped_by:
            return f"the robot damped itself: {readings.damped_by}"
        if age_s > limits.stale_s:
            return f"readings are stale: the newest is {age_s:.3g} s old (--stale-s {limits.stale_s:g})"
        if missed > limits.late_ticks:
            return f"ticks are late: {missed} control periods were missed in a row (--late-ticks {limits.late_ticks})"
        of_up, of_base = (readings.sensors, self._up, 3), (readings.positions, self._base, 7)
        measured, name, width = of_up if self._up is not None else of_base
        if name in measured and len(measured[name]) != width:
            return f"the robot reports {count(len(measured[name]), 'number')} of {name} instead of {width}"
        tilt = self.tilt(readings)
        if tilt is not None and tilt > limits.tilt:
            return f"the base is tilted by {tilt:.3g} rad (--max-tilt {limits.tilt:g})"
        for name, (low, high) in self._ranges.items():
            w, *xyz = readings.positions.get(name, (low,))
            position = 2 * np.arctan2(np.linalg.norm(xyz), abs(w)) if xyz else w  # the range of a ball is of its angle
            if not low - limits.position <= position <= high + limits.position:
                margin = f"--position-margin {limits.position:g}"
                return f"joint {name} is at {position:.4g}, outside of {low:g} to {high:g} ({margin})"
        return None

    def tilt(self, readings: Readings) -> float | None:
        """Return the angle between the up of the base and the world's, in rad; None where no reading shows it."""
        if len(up := readings.sensors.get(self._up or "", ())) == 3:
            cosine = up[2]
        elif len(pose := readings.positions.get(self._base or "", ())) == 7:  # a robot need not report a sensor of up
            cosine = matrix(pose[3:])[2, 2]
        else:
            return None
        return float(np.arccos(np.clip(cosine, -1.0, 1.0)))


def _find_up(metadata: dict[str, Any]) -> str | None:
    """Return the sensor that gives the world's up in the frame of the base."""
    for name, sensor in metadata.get("sensors", {}).items():
        is_up = (sensor["type"], sensor["object"]) == ("framezaxis", "world") and sensor["reference"] is not None
        if is_up and (sensor.get("on_base") or "base" not in metadata):  # not known in exports of earlier versions
            return name
    return None


class TickLog:
    """Rows of a deployment, in memory, and as JSON lines in a file when it ends.

    They are written at the end: a slow disk must not make a tick late.
    """

    def __init__(self, file: str | None) -> None:
        self._file = None if file is None else Path(file)
        self.rows: list[dict[str, Any]] = []
        if self._file is not None:
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RequestError(f"--log {file}: cannot be written ({error.strerror or error})") from error
            check_writable("--log", self._file)

    def add(self, **row: Any) -> None:
        """Remember a control period."""
        self.rows.append(row)

    def write(self) -> None:
        """Write the file, if one was named; an earlier deployment's file stays if nothing was logged."""
        if self._file is not None and self.rows:
            lines = (json.dumps(row, default=lambda array: array.round(6).tolist()) + "\n" for row in self.rows)
            with saying_where("--log", self._file):
                write_out(self._file, "".join(lines))


class Controller:
    """Drives a robot through its states: damped, standing up, policy, stop."""

    def __init__(
        self, policy: DeployedPolicy, robot: Robot, commands: Commands, phases: Phases, limits: Limits, log: TickLog
    ) -> None:
        self._policy, self._robot, self._commands, self._phases, self._log = policy, robot, commands, phases, log
        self._metadata = policy.metadata
        self._period_s: float = self._metadata["control_period_s"]
        self._guard = Guard(self._metadata, limits)
        self._actuation = Actuation(self._metadata, limits.torque)
        self._observer: Observer | None = None
        self._stop: str | None = None
        self._offset_s = float("inf")  # least difference of this clock and the robot's: no delay
        self._sequence, self._arrived_s, self._read_s = -1, 0.0, 0.0

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is logged of each control period."""
        return self._log.rows

    def stop(self, cause: str) -> None:
        """Stop at the next packet; for signals."""
        self._stop = cause

    def run(self) -> str:
        """Run all states and return the cause of the end. Whatever happens, the robot is damped then.

        Raises:
            RequestError: The first readings lack what the policy reads.
            OutsideError: No readings arrive, or the robot stays damped by itself.
        """
        gc.collect()
        gc.disable()  # a collection takes longer than some control periods
        try:
            return self._run()
        finally:
            gc.enable()
            for _ in range(3):  # one may be lost
                self._robot.write(Targets(state="stop"))

    def _run(self) -> str:
        first = self._wait_for_readings()
        if self._stop is not None or first is None:
            return self._stop or COMPLETED
        self._observer = make_observer(self._metadata, first, self._commands.current)
        phases = self._phases
        cause = self._hold("damped", phases.damped_s) or self._hold("standing", phases.standing_s)
        return cause or self._hold("policy", phases.policy_s) or COMPLETED

    def _wait_for_readings(self) -> Readings | None:
        begin, why = time.monotonic(), "no readings arrived from the robot"
        while time.monotonic() - begin < FIRST_READINGS_S and self._stop is None:
            self._robot.write(Targets(state="damped"))
            time.sleep(min(self._period_s, REPEAT_S))
            readings = self._robot.read()
            if readings is not None and not readings.damped_by:
                return readings
            why = why if readings is None else f"the robot did not obey ({readings.damped_by})"
        if self._stop is None:
            raise OutsideError(f"{why} within {FIRST_READINGS_S:g} s")
        return None

    def _hold(self, state: str, seconds: float) -> str | None:
        """Stay in a state and return why the run must end; None if the next state may begin."""
        begin = due = time.monotonic()
        start, tick, missed = self._robot.read(), 0, 0
        assert start is not None
        self._commands.reset()
        self._actuation.reset()
        action = np.zeros(len(self._metadata["actions"]))
        targets = Targets(state="damped")
        while due < begin + seconds:
            cause = self._wait(due, targets)
            now = time.monotonic()
            late_s = max(0.0, now - due)  # a cause is found earlier, too
            periods = 1 + int(late_s // self._period_s) if tick else 1
            missed = periods - 1
            due += (periods - 1) * self._period_s
            tick += periods
            readings, age_s = self._read(now)
            cause = cause or self._find_cause(readings, age_s, missed)
            row: dict[str, Any] = {}
            drives: dict[str, Drive] = {}
            if cause is None and state == "standing":
                drives = self._actuation.stand(start, min(1.0, (due - begin) / (0.75 * seconds)))
            elif cause is None and state == "policy":
                try:
                    action, row = self._act(readings, action, tick - 1, periods)
                except RequestError as error:  # a reading that the first ones had is missing
                    cause = str(error)
                if not np.isfinite(action).all():
                    cause, row = "the output of the policy is not finite", {}
                drives = self._actuation.drives()
            if cause is None:
                targets = Targets(state=state, drives=drives)
                self._robot.write(targets)
            self._log.add(
                state=state,
                time_s=round(now - begin, 6),
                late_ms=1000 * late_s,
                work_ms=1000 * (time.monotonic() - now),
                age_ms=1000 * age_s,
                missed=missed,
                tilt=self._guard.tilt(readings),
                **row,
            )
            if cause is not None:
                return cause
            due += self._period_s
        return None

    def _wait(self, due: float, targets: Targets) -> str | None:
        """Wait until a moment and repeat the targets meanwhile; return why the run must end before, or None."""
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, REPEAT_S))
            if left > REPEAT_S:
                if (cause := self._find_cause(*self._read(time.monotonic()))) is not None:
                    return cause
                self._robot.write(targets)
        return None

    def _find_cause(self, readings: Readings, age_s: float, missed: int = 0) -> str | None:
        """Return why the run must end: the operator, a signal or a limit. None: it continues."""
        if self._commands.is_stopped():
            return STOPPED
        return self._stop or self._guard.find_exceeded(readings, age_s, missed)

    def _read(self, now: float) -> tuple[Readings, float]:
        """Return the newest readings and their age in seconds, relative to the fastest that have arrived."""
        readings = self._robot.read()
        assert readings is not None
        if readings.sequence != self._sequence:
            self._sequence, self._arrived_s = readings.sequence, now
        self._offset_s += MAX_DRIFT * (now - self._read_s)  # else a slow clock of the robot would count as age
        self._offset_s, self._read_s = min(self._offset_s, now - readings.time_s), now
        return readings, max(now - self._arrived_s, now - readings.time_s - self._offset_s)

    def _act(
        self, readings: Readings, action: np.ndarray, step: int, periods: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Ask the policy, and return its action with what is logged."""
        assert self._observer is not None
        self._commands.advance(periods)
        scene = Scene(
            metadata=self._metadata,
            readings=readings,
            commands=self._commands.current,
            action=action,
            displacements=self._actuation.displacements,
            step=step,
            wanted=self._commands.wanted,
        )
        observation = self._observer.observe(scene)
        begin = time.monotonic()
        action = self._policy.act(observation)
        spent_ms = 1000 * (time.monotonic() - begin)
        self._actuation.apply(action)
        torques = self._actuation.torques(readings)
        beyond = [name for name, (torque, limit) in torques.items() if limit is not None and abs(torque) > limit]
        return action, {
            "network_ms": spent_ms,
            "observation": observation,
            "action": action,
            "commands": dict(self._commands.current),
            "at_torque_limit": beyond,
            "errors": self._errors(scene),
        }

    def _errors(self, scene: Scene) -> dict[str, float]:
        """Return the errors of the commands that are measured, of the truth if it is known."""
        found, lenient = {}, contextlib.suppress(RequestError)  # a robot need not measure more than the policy reads
        if scene.readings.truth is not None:
            scene.readings, lenient = scene.readings.truth, contextlib.nullcontext()  # a simulator knows all
        for command, entry in self._metadata.get("commands", {}).items():
            for name, term in entry.get("errors", {}).items():
                settled = self._commands.ages.get(command, 0) * self._period_s >= term["settling_s"]
                if command in scene.commands and settled and term["func"] in ERRORS:
                    with lenient:
                        found[f"{command}/{name}"] = float(np.linalg.norm(compute(ERRORS, term, scene)))
        return found
