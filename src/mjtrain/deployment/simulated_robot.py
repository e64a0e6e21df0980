"""A robot in plain MuJoCo: in real time in a separate process (over `packets`), or stepped without a clock in this one.

`mjtrain deploy` starts the process, writes its settings to its standard input, and reads the port from its output.
"""

import collections
import contextlib
import copy
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from mjtrain.deployment.actuation import Actuation
from mjtrain.deployment.observation import Observer
from mjtrain.deployment.packets import MAX_BYTES, decode_targets, encode_readings
from mjtrain.deployment.policy import DeployedPolicy
from mjtrain.deployment.robot import Named, Readings, Targets
from mjtrain.deployment.simulated_drives import SimulatedDrives, forward_at_rest
from mjtrain.deployment.simulated_readings import SimulatedReadings, take_default_pose
from mjtrain.deployment.terms import Scene
from mjtrain.runtime.standard_streams import write_to_stderr


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What differs from the model of the training, and the way to the robot; see the flags of `deploy`."""

    model: str
    delay_s: float = 0.0
    noise: float = 0.0
    loss: float = 0.0
    mass: float = 1.0
    friction: float = 1.0
    held: bool = True
    watchdog_s: float = 0.08
    seed: int = 0


class SimulatedRobot:
    """Steps the model in real time, obeys targets, and sends readings after each physics step."""

    def __init__(self, simulation: Simulation, metadata: dict[str, Any]) -> None:
        self._settings = simulation
        self._model = load_model(simulation)
        self._data = mujoco.MjData(self._model)
        _reset(self._model, self._data)  # the keyframe also has activations, and controls that the policy does not give
        take_default_pose(self._model, self._data, metadata)
        mujoco.mj_forward(self._model, self._data)
        self._drives = SimulatedDrives(self._model, self._data, metadata)
        if self._model.nhistory:
            self._data.time = 0.0  # from which MuJoCo dates the past
            forward_at_rest(self._model, self._data, self._data.ctrl)
        self._rng = np.random.default_rng(simulation.seed)
        self._readings = SimulatedReadings(self._model, self._data, metadata, simulation.noise, self._rng)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._controller: Any = None
        self._last_s, self._sequence, self._sent = time.monotonic(), -1, 0
        self._driven, self._damped_by, self._held = "", "", simulation.held  # by which state it is driven
        self._waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self._passive = _find_passive(self._model)
        self._rest = (self._data.qpos.copy(), self._data.qvel.copy())

    def serve(self, parent: int) -> None:
        """Run until the parent has ended and the watchdog has damped the robot; then a second longer."""
        step_s, orphaned_s = self._model.opt.timestep, None
        due = time.monotonic()
        while orphaned_s is None or time.monotonic() < orphaned_s + self._settings.watchdog_s + 1.0:
            self._receive(due)
            now = time.monotonic()
            self._watch(now)
            mujoco.mj_step(self._model, self._data)
            if self._held:
                for columns, velocities in self._passive:
                    self._data.qpos[columns] = self._rest[0][columns]
                    self._data.qvel[velocities] = self._rest[1][velocities]
            self._send(now)
            due = max(due + step_s, now - 0.1)  # what is further behind is not caught up
            if orphaned_s is None and os.getppid() != parent:
                orphaned_s = now

    def _receive(self, until: float) -> None:
        while True:
            left = until - time.monotonic()
            self._socket.settimeout(max(left, 1e-6))
            try:
                data, address = self._socket.recvfrom(MAX_BYTES)
            except (TimeoutError, BlockingIOError):
                return
            if self._rng.random() >= self._settings.loss:
                self._take(data, address, time.monotonic())

    def _take(self, data: bytes, address: Any, now: float) -> None:
        is_other = self._controller is not None and address != self._controller
        if is_other and now - self._last_s < self._settings.watchdog_s:
            return  # one controller at a time
        try:
            targets, sequence = decode_targets(data)
            if not is_other and sequence <= self._sequence:
                return
            self._obey(targets)
        except (ValueError, KeyError):  # it is not a packet, or its drives do not fit the model
            return
        self._controller, self._sequence, self._last_s = address, sequence, now

    def _obey(self, targets: Targets) -> None:
        if targets.state in ("damped", "stop"):
            if self._driven:
                write_to_stderr(f"robot: damped by the controller ({targets.state})")
            self._driven, self._damped_by = "", ""
            self._drives.damp()
        elif not self._damped_by:  # else it stays damped until the controller has been there, too
            self._drives.obey(targets.drives)
            if targets.state != self._driven:
                write_to_stderr(f"robot: driven ({targets.state})")
            self._driven = targets.state
            self._held = self._held and targets.state != "policy"

    def _watch(self, now: float) -> None:
        """Damp the robot where no targets have arrived for too long."""
        silent_s = now - self._last_s
        if self._driven and silent_s > self._settings.watchdog_s:
            self._driven, self._damped_by = "", f"no targets for {self._settings.watchdog_s:g} s"
            self._drives.damp()
            write_to_stderr(f"robot: damped by its watchdog {1000 * silent_s:.0f} ms after the last targets")

    def _send(self, now: float) -> None:
        if self._controller is None:
            return
        self._sent += 1
        if self._rng.random() >= self._settings.loss:
            measured, truth = self._readings.measure()
            readings = Readings(
                sequence=self._sent, time_s=now, damped_by=self._damped_by, **measured, truth=Readings(**truth)
            )
            self._waiting.append((now + self._settings.delay_s, encode_readings(readings)))
        while self._waiting and self._waiting[0][0] <= now:
            with contextlib.suppress(OSError):  # the controller's socket is closed; the watchdog decides
                self._socket.sendto(self._waiting.popleft()[1], self._controller)


class SteppedRobot:
    """A robot and its controller in one process, without a clock: readings and drives are those of `deploy`."""

    def __init__(
        self, model: mujoco.MjModel, policy: DeployedPolicy, *, noise: float = 0.0, rng: np.random.Generator
    ) -> None:
        """Copy a model of the robot and its ground; `begin` puts the robot somewhere.

        The noise is a multiple of that of joints and sensors in the training.
        """
        self._model, self._policy = copy.copy(model), policy
        self._model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET  # else a bad state would be hidden
        self.data = mujoco.MjData(self._model)
        self._drives = SimulatedDrives(self._model, self.data, policy.metadata)
        self._readings = SimulatedReadings(self._model, self.data, policy.metadata, noise, rng)
        self._observer = Observer(policy.metadata, values=frozenset(self._readings.measure()[1]["values"]))
        self._actuation = Actuation(policy.metadata, robot_bounds=True)
        self._action = np.zeros(len(policy.metadata["actions"]))
        self._step = 0

    def begin(self, qpos: np.ndarray, qvel: np.ndarray, fields: Mapping[str, np.ndarray]) -> None:
        """Begin an episode at qpos, of shape (nq,), and qvel, of shape (nv,).

        Args:
            fields: New values of fields of the model. From those of the gains, only each actuator's factors are taken,
                because the controller sends the gains.
        """
        for name, values in fields.items():
            if name == "actuator_gainprm":
                self._drives.weaken(values, fields.get("actuator_biasprm", self._drives.bias))
            elif name == "actuator_forcerange":
                self._drives.limit(values)
            elif name != "actuator_biasprm":
                getattr(self._model.opt if name == "gravity" else self._model, name)[:] = values
        if fields:
            mujoco.mj_setConst(self._model, self.data)
        _reset(self._model, self.data)
        self.data.qpos[:], self.data.qvel[:], self.data.time = qpos, qvel, 0.0
        held = self.data.ctrl.copy()
        self._actuation.controls = held[[row["ctrl_index"] for row in self._policy.metadata["actions"]]]
        self._drives.obey(self._actuation.drives())
        home, self.data.ctrl[:] = self.data.ctrl.copy(), 0.0
        self._actuation.controls = np.zeros_like(self._actuation.controls)
        self._drives.obey(self._actuation.drives())
        forward_at_rest(self._model, self.data, home)  # without controls, as an episode of the environment begins
        self.data.ctrl[:] = held
        self._observer.reset()
        self._actuation.reset()
        self._action = np.zeros_like(self._action)
        self._step = 0

    def act(self, commands: Named, encoder_bias: np.ndarray) -> np.ndarray:
        """Ask the policy, and drive the motors by its action, which is returned. Shape (num_actions,).

        Encoders add a bias of shape (nq,) to the positions.
        """
        measured = self._readings.measure()[0]
        for name, position in measured["positions"].items():
            begin = int(self._model.joint(name).qposadr[0])
            position += encoder_bias[begin : begin + len(position)]
        scene = Scene(
            metadata=self._policy.metadata,
            readings=Readings(**measured),
            commands=commands,
            action=self._action,
            displacements=self._actuation.displacements,
            step=self._step,
        )
        self._action = self._policy.act(self._observer.observe(scene))
        self._actuation.apply(self._action)
        self._drives.obey(self._actuation.drives())
        self._step += 1
        return self._action

    def step(self, num_substeps: int) -> bool:
        """Do physics steps, and return whether MuJoCo could compute them."""
        before = self.data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number
        mujoco.mj_step(self._model, self.data, num_substeps)
        return self.data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number == before


def load_model(simulation: Simulation) -> mujoco.MjModel:
    """Load the model and change it as asked."""
    compiled = simulation.model.endswith(".mjb")
    load = mujoco.MjModel.from_binary_path if compiled else mujoco.MjModel.from_xml_path
    model = load(simulation.model)
    model.body_mass *= simulation.mass
    model.body_inertia *= simulation.mass
    model.geom_friction[:, 0] *= simulation.friction
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def _reset(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Reset to keyframe "home", or without it (-1) to the reference pose."""
    mujoco.mj_resetDataKeyframe(model, data, mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, "home"))


def _find_passive(model: mujoco.MjModel) -> list[tuple[slice, slice]]:
    """Return the columns in qpos and qvel of joints that no actuator drives directly."""
    # Numbers, because an enumeration in a tuple does not equal numpy's numbers.
    on_joint = (mujoco.mjtTrn.mjTRN_JOINT.value, mujoco.mjtTrn.mjTRN_JOINTINPARENT.value)
    driven = {int(model.actuator_trnid[i, 0]) for i in range(model.nactuator) if model.actuator_trntype[i] in on_joint}
    widths = {mujoco.mjtJoint.mjJNT_FREE: (7, 6), mujoco.mjtJoint.mjJNT_BALL: (4, 3)}
    found = []
    for index in set(range(model.njnt)) - driven:
        positions, velocities = widths.get(mujoco.mjtJoint(model.jnt_type[index]), (1, 1))
        at, rate = int(model.jnt_qposadr[index]), int(model.jnt_dofadr[index])
        found.append((slice(at, at + positions), slice(rate, rate + velocities)))
    return found


def main() -> None:
    """Read settings, print the port or why the model cannot be simulated, serve."""
    request = json.load(sys.stdin)
    try:
        robot = SimulatedRobot(Simulation(**request["simulation"]), request["metadata"])
    except (ValueError, KeyError) as error:  # MuJoCo's: the file is not a model, or has other names than the policy
        sys.stdout.write(json.dumps({"problem": " ".join(str(error).split())}) + "\n")
        return
    sys.stdout.write(json.dumps({"port": robot.port}) + "\n")
    sys.stdout.flush()
    robot.serve(request["parent"])


if __name__ == "__main__":
    main()
