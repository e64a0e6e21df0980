"""MuJoCo's C engine on a pool of threads, through `mujoco.rollout`."""

from itertools import pairwise

import mujoco
import numpy as np
import torch
from mujoco.rollout import Rollout

from mjtrain.engines.base import State
from mjtrain.engines.layout import make_layout


class NativeEngine:
    """Steps all worlds on CPU threads, in double precision.

    The worlds live here as MuJoCo's full-physics state (time, qpos, qvel, act, …); `state` holds copies in the
    precision that was asked for.
    """

    def __init__(
        self, model: mujoco.MjModel, num_envs: int, *, num_threads: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.layout = make_layout(model, self.device, dtype)
        self._models = [model] * num_envs
        self._data = [mujoco.MjData(model) for _ in range(num_threads)]
        self._pool = Rollout(nthread=num_threads if num_threads > 1 else 0)
        self._initial = _full_physics(model, self._data[0])
        self._physics = np.tile(self._initial, (num_envs, 1))
        self._trajectory = np.empty((num_envs, 0, self._initial.size))
        self._sensors = np.empty((num_envs, 0, model.nsensordata))
        self._ctrl = np.empty((num_envs, 0, model.nu))
        ends = np.cumsum([1, model.nq, model.nv, model.na])
        self._columns = tuple(slice(start, end) for start, end in pairwise(ends))
        widths = {"qpos": model.nq, "qvel": model.nv, "act": model.na, "ctrl": model.nu}
        self.state = State(
            **{name: torch.zeros(num_envs, width, dtype=dtype) for name, width in widths.items()},
            sensordata=torch.zeros(num_envs, model.nsensordata, dtype=dtype),
            time=torch.zeros(num_envs, dtype=dtype),
        )
        everywhere = torch.ones(num_envs, dtype=torch.bool)
        self.reset(
            everywhere,
            self.layout.default_qpos.expand(num_envs, -1),
            self.layout.default_qvel.expand(num_envs, -1),
        )

    def step(self, ctrl: torch.Tensor, num_substeps: int) -> None:
        """Advance every world by num_substeps physics steps; see `Engine.step`."""
        if self._ctrl.shape[1] != num_substeps:
            self._trajectory, self._sensors, self._ctrl = (
                np.empty((self.num_envs, num_substeps, buffer.shape[2]))
                for buffer in (self._trajectory, self._sensors, self._ctrl)
            )
        self.state.ctrl.copy_(ctrl)
        self._ctrl[:] = self.state.ctrl.numpy()[:, None]
        self._pool.rollout(
            self._models,
            self._data,
            self._physics,
            self._ctrl,
            nstep=num_substeps,
            state=self._trajectory,
            sensordata=self._sensors,
            skip_checks=True,
        )
        self._physics[:] = self._trajectory[:, -1]
        self._publish(slice(None), self._sensors[:, -1])

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Start the masked worlds anew; see `Engine.reset`."""
        worlds = np.flatnonzero(mask.numpy())
        if not worlds.size:
            return
        positions, velocities, _ = self._columns
        self._physics[worlds] = self._initial
        self._physics[worlds, positions] = qpos.numpy()[worlds]
        self._physics[worlds, velocities] = qvel.numpy()[worlds]
        self.state.ctrl[worlds] = 0.0
        # One step whose result is thrown away: its sensors describe the state it started from.
        _, sensors = self._pool.rollout(
            [self._models[world] for world in worlds],
            self._data,
            self._physics[worlds],
            np.zeros((worlds.size, 1, self._ctrl.shape[2])),
        )
        self._publish(worlds, sensors[:, 0])

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()

    def _publish(self, worlds: slice | np.ndarray, sensors: np.ndarray) -> None:
        """Copy worlds from the double-precision state to the tensors."""
        state = self.state
        for tensor, columns in zip((state.qpos, state.qvel, state.act), self._columns, strict=True):
            tensor.numpy()[worlds] = self._physics[worlds, columns]
        state.time.numpy()[worlds] = self._physics[worlds, 0]
        state.sensordata.numpy()[worlds] = sensors


def _full_physics(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    mujoco.mj_resetData(model, data)
    kind = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
    state = np.empty(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, state, kind)
    return state
