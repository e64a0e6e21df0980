"""The protocol of a physics engine, and the check that a state fits it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import mujoco
import torch

from mjtrain.sim.robots.layout import Layout

MAX_VALUE = 1e10
"""MuJoCo calls a position, velocity or acceleration bad if it is larger than this (mjMAXVAL), or NaN."""

FOLLOWED = ("qfrc_actuator", "qacc")
"""What `Engine.follow` shows."""

_HISTORY = "sensor_history"
"""Name in a state_dict of what `Engine.follow_sensors` shows."""


@dataclass(frozen=True, kw_only=True)
class State:
    """The worlds as torch tensors on the engine's device; the same storage for the engine's whole life.

    float32 unless the engine was made otherwise. Units are MuJoCo's: m, rad, s, N, N m. After a step, `sensordata`
    describes the state before the last physics step's integration, as it does after `mujoco.mj_step`; after a reset
    it describes the new state.
    """

    qpos: torch.Tensor
    """Generalised positions. Shape (num_envs, nq)."""

    qvel: torch.Tensor
    """Generalised velocities. Shape (num_envs, nv)."""

    act: torch.Tensor
    """Actuator activations. Shape (num_envs, na)."""

    ctrl: torch.Tensor
    """Controls of the last step, zero after a reset. Shape (num_envs, nu)."""

    sensordata: torch.Tensor
    """All sensors, in the order of the model. Shape (num_envs, nsensordata)."""

    time: torch.Tensor
    """Simulated time since the last reset, in seconds. Shape (num_envs,)."""


@dataclass(frozen=True)
class Buffer:
    """Room of a fixed size that a physics step fills; what does not fit is left out of the physics."""

    setting: str
    """The flag that sets its size."""

    size: int
    """Places per world."""

    missed: torch.Tensor
    """Not 0 in worlds for which there was no room in some step since the reader last cleared it. Shape (num_envs,)."""

    most: torch.Tensor
    """Most places that one step asked for, of each part of the buffer. Where some were left out, more may have been
    needed than was asked for. Shape (num_parts,)."""

    worlds_per_part: int
    """Worlds that share a part."""

    def find_need(self) -> int:
        """Return the places per world that all steps so far asked for. Asks the device."""
        return math.ceil(int(self.most.max()) / self.worlds_per_part)


class Engine(Protocol):
    """Steps a batch of worlds of one model."""

    num_envs: int
    device: torch.device
    """Where the state lives."""

    model: mujoco.MjModel
    """The compiled model that all worlds started from. Do not change it."""

    num_threads: int
    """CPU threads that the worlds of this rank may use."""

    layout: Layout
    """Where the named parts of the model lie in the state."""

    state: State
    """The worlds. Read it freely; only the engine writes it."""

    buffers: Mapping[str, Buffer]
    """Its buffers of a fixed size, by what they hold; empty for an engine without any."""

    failed: torch.Tensor
    """Worlds that the last step could not compute: an acceleration was bad, or MuJoCo raised an error, in which case
    the world did not move. Boolean, shape (num_envs,)."""

    failures: list[str]
    """What MuJoCo raised in the last world in which it did since the reader last cleared it, in one line; or empty."""

    warnings: Mapping[str, torch.Tensor]
    """Worlds in which MuJoCo warned since the reader last cleared it, by the name of the warning; on the CPU. Empty for
    an engine without such warnings. Boolean, shape (num_envs,)."""

    def step(self, ctrl: torch.Tensor, num_substeps: int) -> None:
        """Advance every world by some physics steps, with constant controls. Shape (num_envs, nu)."""

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Reset the masked worlds and leave the others untouched.

        Activations, poses of mocap bodies and the rest of the state become those of the default pose, as
        `mujoco.mj_resetDataKeyframe` sets them. Time and controls become zero, and the sensors are computed for the new
        state. Delays of actuators begin with the controls of the default pose, those of sensors with the new state.

        Args:
            mask: Which worlds. Boolean, shape (num_envs,).
            qpos: New positions; rows outside the mask are not read. Shape (num_envs, nq).
            qvel: New velocities, likewise. Shape (num_envs, nv).
        """

    def set_qvel(self, mask: torch.Tensor, qvel: torch.Tensor) -> None:
        """Overwrite the velocities of the masked worlds, as `reset` takes them; sensors follow with the next step."""

    def set_body_force(self, body: int, wrench: torch.Tensor) -> None:
        """Apply an external force and torque to a body, until they are set again or its world is reset.

        Args:
            body: Its row in the body_* fields of the model.
            wrench: Force in N at its centre of mass, then torque in N m, in the world's frame. Shape (num_envs, 6).
        """

    def follow(self, field: str) -> torch.Tensor:
        """Show a field of `mujoco.MjData` that is not in `State`, from now on and in the states that are saved.

        It describes the same moment as `sensordata`.

        Args:
            field: One of FOLLOWED.

        Returns:
            Live, as `state` is; only read it. Shape (num_envs, size).
        """
        ...

    def follow_sensors(self, num_substeps: int) -> torch.Tensor:
        """Keep the sensors of every physics step of a call of `step`, from now on and in the states that are saved.

        Args:
            num_substeps: Physics steps of every later call of `step`.

        Returns:
            Live; only read it. The first physics step comes first. After a reset, and until the next step, all have
            the present readings. Shape (num_envs, num_substeps, nsensordata).
        """
        ...

    def expand(self, field: str) -> torch.Tensor:
        """Let every world have its own values of a field of the model.

        Args:
            field: One of MODEL_FIELDS, named as in `mujoco.MjModel` ("gravity" as in `MjOption`).

        Returns:
            The values, live: write into them in place, and call `refresh_model` after those from which constants
            follow. float32 or float64; shape (num_envs, ...).
        """
        ...

    def refresh_model(self, mask: torch.Tensor) -> None:
        """Compute what follows from the model's fields, in the masked worlds at least, as `mujoco.mj_setConst` does."""

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all that the future of the worlds depends on, for `load_state_dict`; plain tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that an engine of the same kind, model and num_envs gave.

        Raises:
            ValueError: It is of another engine or of other sizes; then nothing has changed.
        """

    def close(self) -> None:
        """Give threads and buffers back."""


def check_engine_state(
    state: Mapping[str, Any], kind: str, tensors: Mapping[str, Any], layout: Layout, num_envs: int
) -> None:
    """Raise a ValueError unless a state fits the engine that is to take it, which has these tensors by name."""
    if state.get("engine") != kind:
        raise ValueError(f"the state is of engine {state.get('engine')}, not of {kind}")
    theirs = {name: tuple(values.shape) for name, values in state["rows"].items()}
    ours = {name: tuple(values.shape) for name, values in tensors.items()}
    for name, values in state["model"].items():
        theirs[name] = tuple(values.shape)
        if name in layout.nominal:
            ours[name] = (num_envs, *layout.nominal[name].shape)
    if "sensordata" in state:
        theirs["sensordata"] = tuple(state["sensordata"].shape)
    for name in sorted(ours.keys() | theirs.keys()):
        is_empty = 0 in ours.get(name, (0,)) and 0 in theirs.get(name, (0,))  # states differ in whether they name it
        if ours.get(name) != theirs.get(name) and not is_empty:
            raise ValueError(
                f"the state is of another model or number of worlds: {name} has shape {theirs.get(name)} in the state "
                f"and {ours.get(name)} here"
            )


def save_followed(followed: Mapping[str, torch.Tensor], history: torch.Tensor | None) -> dict[str, Any]:
    """Return what a state_dict has of the fields and sensors that an engine follows; nothing if it follows none."""
    tensors = {**followed, **({} if history is None else {_HISTORY: history})}
    return {"followed": {name: tensor.clone() for name, tensor in tensors.items()}} if tensors else {}


def load_followed(engine: Engine, state: Mapping[str, Any]) -> None:
    """Follow what the engine of the state followed, and continue from its values."""
    for name, values in state.get("followed", {}).items():
        target = engine.follow_sensors(values.shape[1]) if name == _HISTORY else engine.follow(name)
        target.copy_(values)
