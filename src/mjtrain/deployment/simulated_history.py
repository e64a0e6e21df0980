"""What MuJoCo remembers for actuators and sensors with a delay or an interval, where an episode begins."""

import mujoco
import numpy as np


def find_history(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """Return where the past controls and the past readings are.

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
