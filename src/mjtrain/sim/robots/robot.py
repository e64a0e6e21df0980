"""Facts of the model that a controller of the real robot needs."""

from pathlib import Path
from typing import Any

import mujoco

from mjtrain.config import EnvConfig
from mjtrain.sim.robots.model import load_model


def describe_actuators(config: EnvConfig) -> dict[str, dict[str, Any]]:
    """Describe the actuators of the robot, in plain values, by name in the order of the model.

    Returns:
        For each actuator its joint (None where it drives none), kp and kd in N m/rad and N m s/rad (or N/m and N s/m),
        such that force = kp * (ctrl - position) - kd * velocity; kp 0 and gear > 0 where ctrl * gear is the effort; and
        control_range and force_range, None where there is none.

    Raises:
        RequestError: The MJCF file is missing or is not a valid model.
    """
    model, _ = load_model(config)
    found = {}
    for index in range(model.nu):
        servo = model.actuator_biastype[index] == mujoco.mjtBias.mjBIAS_AFFINE
        gear = float(model.actuator_gear[index, 0])
        on_joint = model.actuator_trntype[index] == mujoco.mjtTrn.mjTRN_JOINT
        found[model.actuator(index).name] = {
            "joint": model.joint(model.actuator_trnid[index, 0]).name if on_joint else None,
            "kp": -float(model.actuator_biasprm[index, 1]) * gear if servo else 0.0,
            "kd": -float(model.actuator_biasprm[index, 2]) * gear if servo else 0.0,
            "gear": float(model.actuator_gainprm[index, 0]) * gear if not servo else gear,
            "control_range": _range(model.actuator_ctrllimited[index], model.actuator_ctrlrange[index]),
            "force_range": _range(model.actuator_forcelimited[index], model.actuator_forcerange[index]),
        }
    return found


def _range(limited: Any, bounds: Any) -> list[float] | None:
    return [float(bound) for bound in bounds] if limited else None


def save_model(config: EnvConfig, path: Path) -> None:
    """Write robot and ground as a compiled model, which the same version of MuJoCo loads without other files."""
    model, _ = load_model(config)
    mujoco.mj_saveModel(model, str(path), None)
