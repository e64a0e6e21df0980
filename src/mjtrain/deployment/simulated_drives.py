"""The motors of the simulated robot: MuJoCo's actuators with the gains of the targets, and its history of delays."""

import contextlib
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np

from mjtrain.deployment.robot import Drive
from mjtrain.runtime.errors import count

_KP, _KD = 4, 6
"""Columns of the gains in the parameters of MuJoCo's DC motor."""


class SimulatedDrives:
    """Sets gains and controls of a model's actuators.

    MuJoCo computes a linear drive inside its step, as in the training: with its integrator, and at the physics rate.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, metadata: dict[str, Any]) -> None:
        self._model, self._data = model, data
        self._rows = {row["actuator"]: row for row in metadata["actions"]}
        self._gain = model.actuator_gainprm.copy()
        self._own_gain, self._own_bias = model.actuator_gainprm.copy(), model.actuator_biasprm.copy()  # of this robot
        self.bias = model.actuator_biasprm.copy()
        """As the model had it. Shape (num_actuators, mjNBIAS)."""
        self._strength, self._damping = np.ones(model.nactuator), np.ones(model.nactuator)
        self._force_range = model.actuator_forcerange.copy()
        self._is_limited = model.actuator_forcelimited.astype(bool)
        self._past, self._sources = find_history(model)[0]
        self._owners = np.repeat(np.arange(model.nactuator), model.actuator_ctrlnum)  # of controls
        self._servos: list[int] = []
        for name, row in self._rows.items():
            index = model.actuator(name).id
            outputs = [other["actuator"] for other in metadata["actions"]].count(name)
            asked, controls = len(row.get("held_controls", range(outputs))), int(model.actuator_ctrlnum[index])
            if row["formula"] == "none" and asked != controls:
                raise ValueError(
                    f"the policy gives {count(asked, 'control')} to {name}, which has {controls}; export the run again"
                )
            if row["formula"] == "limited":
                self._servos.append(index)
            elif row["formula"] == "linear":
                model.actuator_biastype[index] = mujoco.mjtBias.mjBIAS_AFFINE
            if row["formula"] != "none":
                model.actuator_ctrllimited[self._columns(index)] = 0  # the controller keeps to it
        self.damp()

    def weaken(self, gainprm: np.ndarray, biasprm: np.ndarray) -> None:
        """Let motors give another torque than their targets ask for: each by the factors of its gain and its damping.

        The parameters are as in `mujoco.MjModel`, of the other motors. Shapes (num_actuators, mjNGAIN or mjNBIAS).
        """
        self._own_gain, self._own_bias = gainprm.copy(), biasprm.copy()
        of_bias = _divide(biasprm[:, 1], self.bias[:, 1], np.ones(len(gainprm)))  # a PID has no gain beside it
        self._strength = _divide(gainprm[:, 0], self._gain[:, 0], of_bias)
        self._damping = _divide(biasprm[:, 2], self.bias[:, 2], self._strength)
        ratios = _divide(gainprm[self._servos], self._gain[self._servos], np.ones_like(gainprm[self._servos]))
        self._strength[self._servos], self._damping[self._servos] = ratios[:, _KP], ratios[:, _KD]

    def limit(self, force_range: np.ndarray) -> None:
        """Let motors have other force ranges. Shape (num_actuators, 2)."""
        self._force_range[:] = self._model.actuator_forcerange[:] = force_range

    def damp(self) -> None:
        """Let every motor only brake."""
        with self._changing_gains():
            for name, row in self._rows.items():
                index = self._model.actuator(name).id
                self._data.ctrl[self._columns(index)] = 0.0
                if row["formula"] != "none":
                    self._set(index, row["gear"], Drive(kp=0.0, kd=row["kd"]))
                    continue
                is_motor = self._model.actuator_gaintype[index] == mujoco.mjtGain.mjGAIN_DCMOTOR
                # The gains of a DC motor's controller decide how many states it has: they must not become 0.
                self._model.actuator_gainprm[index] = self._own_gain[index] * is_motor
                self._model.actuator_gainprm[index, _KP : _KD + 1] *= 1e-9
                self._model.actuator_biasprm[index, :2] = 0.0

    def obey(self, drives: dict[str, Drive]) -> None:
        """Set targets.

        Raises:
            KeyError: The model has no such actuator.
            ValueError: An actuator has another number of controls. Then no target is set.
        """
        for name, drive in drives.items():
            controls = int(self._model.actuator_ctrlnum[self._model.actuator(name).id])
            if drive.controls is not None and len(drive.controls) != controls:
                raise ValueError(f"{name} has {count(controls, 'control')}, not {len(drive.controls)}")
        with self._changing_gains():
            for name, drive in drives.items():
                index, row = self._model.actuator(name).id, self._rows[name]
                if drive.controls is None:
                    self._set(index, row["gear"], drive)
                    continue
                self._model.actuator_gainprm[index] = self._own_gain[index]
                self._model.actuator_biasprm[index] = self._own_bias[index]
                self._data.ctrl[self._columns(index)] = drive.controls

    @contextlib.contextmanager
    def _changing_gains(self) -> Iterator[None]:
        """Have controls act at once, in spite of a delay, where the gains change: others belong to the earlier ones."""
        model, data = self._model, self._data
        before = np.hstack([model.actuator_gainprm, model.actuator_biasprm])
        yield
        changed = (before != np.hstack([model.actuator_gainprm, model.actuator_biasprm])).any(axis=1)
        late = changed[self._owners[self._sources]]
        data.history[self._past[late]] = data.ctrl[self._sources[late]]

    def _set(self, index: int, gear: float, drive: Drive) -> None:
        model, strength, damping = self._model, self._strength[index], self._damping[index]
        kp, kd, force = drive.kp / gear**2, drive.kd / gear**2, (drive.kp * drive.position + drive.torque) / gear
        if index in self._servos:  # MuJoCo keeps its gains elsewhere, and its limit at each speed beside them
            model.actuator_gainprm[index, [_KP, _KD]] = strength * kp, damping * kd
        else:
            model.actuator_gainprm[index] = 0.0
            model.actuator_gainprm[index, 0] = strength
            model.actuator_biasprm[index] = 0.0
            model.actuator_biasprm[index, 1:3] = (-strength * kp, -damping * kd)
        has_inputs = index in self._servos or model.actuator_gaintype[index] == mujoco.mjtGain.mjGAIN_PID
        spec = int(model.actuator_ctrlspec[index])
        self._data.ctrl[self._columns(index)] = _share(spec, kp, kd, force) if has_inputs else force
        if drive.max_torque is not None:
            limit = drive.max_torque / abs(gear)
            own = self._force_range[index] if self._is_limited[index] else (-np.inf, np.inf)
            model.actuator_forcelimited[index] = 1
            model.actuator_forcerange[index] = np.clip(own, -limit, limit)

    def _columns(self, index: int) -> slice:
        begin = int(self._model.actuator_ctrladr[index])
        return slice(begin, begin + int(self._model.actuator_ctrlnum[index]))


def forward_at_rest(model: mujoco.MjModel, data: mujoco.MjData, controls: np.ndarray) -> None:
    """Compute the state, as if the robot had been in it before, and had these controls. Shape (nu,)."""
    if not model.nhistory:
        mujoco.mj_forward(model, data)
        return
    of_controls, of_readings = find_history(model)
    data.history[of_controls[0]] = controls[of_controls[1]]
    delays, intervals = model.sensor_delay.copy(), model.sensor_interval.copy()
    model.sensor_delay[:], model.sensor_interval[:] = 0.0, 0.0  # else sensordata would be of the past
    mujoco.mj_forward(model, data)
    model.sensor_delay[:], model.sensor_interval[:] = delays, intervals
    data.history[of_readings[0]] = data.sensordata[of_readings[1]]


def find_history(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """Return where MuJoCo stores past controls and readings of parts with a delay or an interval.

    Returns:
        For controls, then for readings: columns in history, and those in ctrl or sensordata of which they are the past.
        Shape (2, num_values) each.
    """
    actuators = (model.actuator_history, model.actuator_historyadr, model.actuator_ctrladr, model.actuator_ctrlnum)
    sensors = (model.sensor_history, model.sensor_historyadr, model.sensor_adr, model.sensor_dim)
    return _find_values(*actuators), _find_values(*sensors)


def _find_values(history: np.ndarray, begins: np.ndarray, sources: np.ndarray, widths: np.ndarray) -> np.ndarray:
    pairs = [
        (begin + 2 + samples + index, source + index % width)  # two numbers and the times precede the values
        for samples, begin, source, width in zip(history[:, 0], begins, sources, widths, strict=True)
        for index in range(samples * width)
    ]
    return np.array(pairs, dtype=int).reshape(-1, 2).T


def _share(spec: int, kp: float, kd: float, force: float) -> list[float]:
    """Return the controls that ask for a force where the joint is at rest at 0: one of them is not 0."""
    inputs = mujoco.mjtCtrlInput
    gains = [(inputs.mjINPUT_POS, kp), (inputs.mjINPUT_VEL, kd), (inputs.mjINPUT_FF, 1.0)]
    gains = [gain for bit, gain in gains if spec & int(bit)]
    first = next((place for place, gain in enumerate(gains) if gain), None)
    return [force / gain if place == first else 0.0 for place, gain in enumerate(gains)]


def _divide(values: np.ndarray, by: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Return quotients, and the other values where the divisor is 0."""
    return np.divide(values, by, out=otherwise.copy(), where=by != 0)
