"""MuJoCo's C engine on a pool of threads, through `mujoco.batch`."""

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch

from mjtrain.engines.base import State
from mjtrain.engines.layout import make_layout


class NativeEngine:
    """Steps all worlds on CPU threads, in double precision, bit for bit as a loop of `mj_step` would.

    The worlds live in the rows of a `Batch`, which also carry the solver's warm start from call to call
    (`mujoco.rollout` drops it); `state` holds copies in the precision that was asked for.
    """

    def __init__(
        self, model: mujoco.MjModel, num_envs: int, *, num_threads: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.layout = make_layout(model, self.device, dtype)
        self._batch = Batch(model, num_envs, num_threads)
        widths = {"qpos": model.nq, "qvel": model.nv, "act": model.na, "ctrl": model.nu}
        self.state = State(
            **{name: torch.zeros(num_envs, width, dtype=dtype) for name, width in widths.items()},
            sensordata=torch.zeros(num_envs, model.nsensordata, dtype=dtype),
            time=torch.zeros(num_envs, dtype=dtype),
        )
        self._mirrors = [(tensor.numpy(), self._batch.bind(name)) for name, tensor in vars(self.state).items()]
        everywhere = torch.ones(num_envs, dtype=torch.bool)
        self.reset(
            everywhere,
            self.layout.default_qpos.expand(num_envs, -1),
            self.layout.default_qvel.expand(num_envs, -1),
        )

    def step(self, ctrl: torch.Tensor, num_substeps: int) -> None:
        """Advance every world by num_substeps physics steps; see `Engine.step`."""
        self._batch.ctrl[:] = ctrl.numpy()
        self._batch.step(nstep=num_substeps)
        for copy, original in self._mirrors:
            copy[:] = original

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Start the masked worlds anew; see `Engine.reset`."""
        worlds = np.flatnonzero(mask.numpy())
        if not worlds.size:
            return
        self._batch.reset(worlds, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
        self._batch.qpos[worlds] = qpos.numpy()[worlds]
        self._batch.qvel[worlds] = qvel.numpy()[worlds]
        self._batch.forward(worlds)
        for copy, original in self._mirrors:
            copy[worlds] = original[worlds]

    def close(self) -> None:
        """Stop the threads and give the worlds up."""
        del self._batch, self._mirrors
