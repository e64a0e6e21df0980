"""A simulated robot and its controller in one process, stepped together instead of in real time."""

import copy
from collections.abc import Mapping

import mujoco
import numpy as np

from mjtrain.deployment.actuation import Actuation
from mjtrain.deployment.observation import Observer
from mjtrain.deployment.policy import DeployedPolicy
from mjtrain.deployment.robot import Named, Readings
from mjtrain.deployment.simulated_drives import SimulatedDrives, forward_at_rest
from mjtrain.deployment.simulated_readings import SimulatedReadings
from mjtrain.deployment.terms import Scene


class SteppedRobot:
    """A robot in plain MuJoCo, driven by an exported policy through readings and drives as `deploy` does."""

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
        key = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_KEY, "home")  # -1 without it, for the reference pose
        mujoco.mj_resetDataKeyframe(self._model, self.data, key)
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
