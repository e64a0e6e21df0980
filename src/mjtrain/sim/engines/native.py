"""MuJoCo's C engine on a pool of threads, through `mujoco.batch`."""

import copy
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError

from mjtrain.deployment.simulated_drives import find_history
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.engines.base import FOLLOWED, Buffer, State, check_engine_state, load_followed, save_followed
from mjtrain.sim.robots.layout import MODEL_FIELDS
from mjtrain.sim.robots.read_layout import make_layout
from mjtrain.sim.robots.start import make_start

_WARNINGS = ("inertia", "contacts", "constraints", "bad_qpos", "bad_qvel", "bad_qacc", "bad_ctrl")
"""Those of `mujoco.mjtWarning`, in its order."""
_BAD_QACC = mujoco.mjtWarning.mjWARN_BADQACC.value

_ROWS = (
    "time",
    "qpos",
    "qvel",
    "act",
    "history",
    "qacc_warmstart",
    "ctrl",
    "qfrc_applied",
    "xfrc_applied",
    "eq_active",
    "mocap_pos",
    "mocap_quat",
    "userdata",
    "plugin_state",
    "plastic",
)
"""MuJoCo's mjSTATE_INTEGRATION: all that the next physics step depends on."""

_INPUTS = ("qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos", "mocap_quat", "userdata")
"""Rows that only a task changes. A state leaves out those that have the values with which an episode begins."""


class NativeEngine:
    """Steps all worlds on CPU threads, in double precision, bit for bit as a loop of `mj_step` would.

    The worlds live in the rows of a `Batch`, which also carry the solver's warm start from call to call
    (`mujoco.rollout` drops it); `state` holds copies in the precision that was asked for.
    """

    buffers: Mapping[str, Buffer] = MappingProxyType({})
    """MuJoCo's grow."""

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        num_threads: int,
        dtype: torch.dtype = torch.float32,
        pin_memory: bool = False,
    ) -> None:
        """Make the worlds.

        Args:
            pin_memory: Whether a GPU copies `state`: it is then in memory from which that needs no help of the CPU.
        """
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.model = model
        self.num_threads = num_threads
        self.layout = make_layout(model, self.device, dtype)
        model = copy.copy(model)
        # The environment must see worlds that diverge; MuJoCo would silently reset them to their reference pose.
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        if model.ntree <= 1:
            # A single mechanism is one island at most: to look for islands takes time and changes no bit.
            model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
        self._batch = Batch(model, num_envs, num_threads)
        self.failed = torch.zeros(num_envs, dtype=torch.bool, pin_memory=pin_memory)
        self.failures: list[str] = []
        self._warned = np.zeros((len(_WARNINGS), num_envs), dtype=bool)
        self._counted = np.zeros((num_envs, len(_WARNINGS)), dtype=np.int32)
        self.warnings: Mapping[str, torch.Tensor] = dict(zip(_WARNINGS, torch.from_numpy(self._warned), strict=True))
        begin = make_start(model)
        self._past = find_history(model) if model.nhistory else None
        delays = ("sensor_delay", "sensor_interval") if self._past and self._past[1].size else ()
        self._delays = [(self._batch.expand(name), getattr(model, name)) for name in delays]
        self._inputs = {name: np.array(getattr(begin, name), dtype=float) for name in _INPUTS}
        self._expanded: dict[str, torch.Tensor] = {}
        # A step fills only what is bound before it.
        self._bound = {field: self._batch.bind(field) for field in FOLLOWED}
        self._followed: dict[str, torch.Tensor] = {}
        self._history: torch.Tensor | None = None
        self._pin_memory = pin_memory
        widths = {"qpos": model.nq, "qvel": model.nv, "act": model.na, "ctrl": model.nu}
        self.state = State(
            **{name: torch.zeros(num_envs, size, dtype=dtype, pin_memory=pin_memory) for name, size in widths.items()},
            sensordata=torch.zeros(num_envs, model.nsensordata, dtype=dtype, pin_memory=pin_memory),
            time=torch.zeros(num_envs, dtype=dtype, pin_memory=pin_memory),
        )
        self._mirrors = [(tensor.numpy(), self._batch.bind(name)) for name, tensor in vars(self.state).items()]
        qpos, qvel = (start.expand(num_envs, -1) for start in (self.layout.default_qpos, self.layout.default_qvel))
        self.reset(torch.ones(num_envs, dtype=torch.bool), qpos, qvel)

    def step(self, ctrl: torch.Tensor, num_substeps: int) -> None:
        """Advance every world by num_substeps physics steps; see `Engine.step`."""
        self._batch.ctrl[:] = ctrl.numpy()
        failed = self.failed.numpy()
        failed[:] = False
        if self._history is None:
            self._advance(num_substeps, failed)
        else:
            history = self.follow_sensors(num_substeps).numpy()
            for step in range(num_substeps):
                self._advance(1, failed)
                history[:, step] = self._batch.sensordata
        if self._batch.warning.any():
            failed |= self._note_warnings()[:, _BAD_QACC]
        for mirror, original in self._mirrors:
            mirror[:] = original

    def _advance(self, num_substeps: int, failed: np.ndarray) -> None:
        try:
            self._batch.step(nstep=num_substeps)
        except SimulationError as error:  # the other worlds have moved
            failed[error.ids] = True
            self._note_failure(error)

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Reset the masked worlds; see `Engine.reset`."""
        worlds = np.flatnonzero(mask.numpy())
        if not worlds.size:
            return
        self._batch.reset(worlds, self.layout.home, mujoco.mjtStage.mjSTAGE_NONE.value)
        self._batch.time[worlds] = 0.0
        if self._past:  # as if the world had been in the new state before, with these controls
            self._remember(worlds, self._past[0], self._batch.ctrl)
        self._batch.ctrl[worlds] = 0.0
        self._batch.qpos[worlds] = qpos.numpy()[worlds]
        self._batch.qvel[worlds] = qvel.numpy()[worlds]
        self._counted[worlds] = 0  # MuJoCo counts from the reset
        for delays, _ in self._delays:
            delays[worlds] = 0.0  # else the sensors would show the past
        try:
            self._batch.forward(worlds)
        except SimulationError as error:  # the world fails in its next step, too
            self._note_failure(error)
        for delays, own in self._delays:
            delays[worlds] = own
        if self._past:
            self._remember(worlds, self._past[1], self._batch.sensordata)
        if self._batch.warning.any():
            self._note_warnings()
        for mirror, original in self._mirrors:
            mirror[worlds] = original[worlds]
        if self._history is not None:
            self._history.numpy()[worlds] = self._batch.sensordata[worlds, None]

    def _remember(self, worlds: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        """Make values the past ones, too; columns are those of `find_history`."""
        self._batch.history[worlds[:, None], columns[0]] = values[worlds[:, None], columns[1]]

    def _note_failure(self, error: SimulationError) -> None:
        self.failures[:] = [" ".join(self._batch.error(int(error.ids[0])).split())]

    def _note_warnings(self) -> np.ndarray:
        """Return which warnings are new since the last call. Boolean, shape (num_envs, num_warnings)."""
        counts = self._batch.warning[:, : len(_WARNINGS), 1]
        new = counts > self._counted
        self._counted[:] = counts
        self._warned |= new.T
        return new

    def set_qvel(self, mask: torch.Tensor, qvel: torch.Tensor) -> None:
        """Overwrite the velocities of the masked worlds; see `Engine.set_qvel`."""
        worlds = np.flatnonzero(mask.numpy())
        self._batch.qvel[worlds] = qvel.numpy()[worlds]
        self.state.qvel.numpy()[worlds] = self._batch.qvel[worlds]

    def set_body_force(self, body: int, wrench: torch.Tensor) -> None:
        """Apply a force and torque to a body; see `Engine.set_body_force`."""
        self._batch.xfrc_applied[:, body] = wrench.numpy()

    def follow(self, field: str) -> torch.Tensor:
        """Show a field of MuJoCo's data; see `Engine.follow`."""
        if field not in self._followed:
            original = self._bound[field]
            with torch.inference_mode(mode=False):  # it must outlive a rollout
                mirror = torch.empty(original.shape, dtype=self.state.qpos.dtype, pin_memory=self._pin_memory)
            mirror.numpy()[:] = original
            self._mirrors.append((mirror.numpy(), original))
            self._followed[field] = mirror
        return self._followed[field]

    def follow_sensors(self, num_substeps: int) -> torch.Tensor:
        """Keep the sensors of every physics step; see `Engine.follow_sensors`."""
        if self._history is None or self._history.shape[1] != num_substeps:
            now = self.state.sensordata
            shape = (self.num_envs, num_substeps, now.shape[1])
            with torch.inference_mode(mode=False):  # it must outlive a rollout
                self._history = torch.empty(shape, dtype=now.dtype, pin_memory=self._pin_memory)
            self._history.numpy()[:] = now.numpy()[:, None]
        return self._history

    def expand(self, field: str) -> torch.Tensor:
        """Let every world have its own values of a field of the model; see `Engine.expand`."""
        if field not in self._expanded:
            assert field in MODEL_FIELDS, field
            name = "opt.gravity" if field == "gravity" else field
            with torch.inference_mode(mode=False):  # it must outlive a rollout
                self._expanded[field] = torch.from_numpy(self._batch.expand(name))
        return self._expanded[field]

    def refresh_model(self, mask: torch.Tensor) -> None:
        """Recompute the constants of the masked worlds; see `Engine.refresh_model`."""
        worlds = np.flatnonzero(mask.numpy())
        for field in ("body_mass", "body_inertia"):
            if field in self._expanded and (self._expanded[field].numpy()[worlds] < 0).any():
                raise ValueError(f"{field} is negative in some worlds; a mass or an inertia must be positive")
        if worlds.size:
            try:
                self._batch.set_const(worlds)
            except SimulationError as error:
                self._note_failure(error)
                words = re.sub(
                    r"(?<=body )\d+", lambda row: self.model.body(int(row[0])).name or row[0], self.failures[-1]
                )
                raise RequestError(f"MuJoCo refuses the changed model: {words}") from error

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the worlds; see `Engine.state_dict`."""
        return {
            "engine": "native",
            "rows": {
                name: torch.from_numpy(np.array(row))
                for name, row in self._rows().items()
                if name not in self._inputs or (row != self._inputs[name]).any()
            },
            "sensordata": self.state.sensordata.clone(),
            "model": {name: values.clone() for name, values in self._expanded.items()},
            **save_followed(self._followed, self._history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; see `Engine.load_state_dict`."""
        rows = {name: row for name, row in self._rows().items() if name not in self._inputs or name in state["rows"]}
        check_engine_state(state, "native", rows | {"sensordata": self.state.sensordata}, self.layout, self.num_envs)
        for name, values in state["model"].items():
            self.expand(name).copy_(values)
        if any(MODEL_FIELDS[name] for name in state["model"]):
            self._batch.set_const()
        for name, values in self._inputs.items():
            self._batch.bind(name)[:] = values
        for name, row in rows.items():
            row[:] = state["rows"][name].numpy()
        for name, tensor in vars(self.state).items():
            if name == "sensordata" or name in rows:
                tensor.copy_(state["sensordata"] if name == "sensordata" else state["rows"][name])
        load_followed(self, state)

    def _rows(self) -> dict[str, np.ndarray]:
        """Return the parts of the worlds' state that this model has, live. Shape (num_envs, ...) each."""
        return {name: row for name in _ROWS if (row := self._batch.bind(name)).size}

    def close(self) -> None:
        """Stop the threads and release the worlds."""
        self._expanded.clear()
        del self._batch, self._mirrors, self._bound, self._delays
