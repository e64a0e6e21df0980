"""MuJoCo Warp: a CUDA graph of kernels on a GPU, the same kernels one after another on a CPU."""

from collections.abc import Callable

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjtrain.engines.base import State
from mjtrain.engines.layout import make_layout
from mjtrain.errors import RequestError


class WarpEngine:
    """Steps all worlds with mujoco-warp, in single precision; `state` is its memory, not a copy."""

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        device: str,
        nconmax: int | None = None,
        njmax: int | None = None,
    ) -> None:
        if model.nhistory or model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
            raise RequestError(
                "--engine warp: does not carry delays of actuators and sensors, or sleep, over resets; use --engine "
                "native, or a model without them"
            )
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.layout = make_layout(model, self.device, torch.float32)
        self._wp_device = wp.get_device(device)
        with wp.ScopedDevice(self._wp_device):
            self._model = mjw.put_model(model)
            self._data = mjw.make_data(model, nworld=num_envs, nconmax=nconmax, njmax=njmax)
        self._warmstart = wp.to_torch(self._data.qacc_warmstart)
        self.state = State(
            qpos=wp.to_torch(self._data.qpos),
            qvel=wp.to_torch(self._data.qvel),
            act=wp.to_torch(self._data.act),
            ctrl=wp.to_torch(self._data.ctrl),
            sensordata=wp.to_torch(self._data.sensordata),
            time=wp.to_torch(self._data.time),
        )
        self._graphs: dict[tuple[str, int], wp.Graph] = {}
        everywhere = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self.reset(
            everywhere,
            self.layout.default_qpos.expand(num_envs, -1),
            self.layout.default_qvel.expand(num_envs, -1),
        )

    def step(self, ctrl: torch.Tensor, num_substeps: int) -> None:
        """Advance every world by num_substeps physics steps; see `Engine.step`."""
        self.state.ctrl.copy_(ctrl)
        self._run("step", mjw.step, num_substeps)

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Start the masked worlds anew; see `Engine.reset`."""
        if self.device.type == "cpu" and not mask.any():  # on a GPU the question would cost more than the answer
            return
        state = self.state
        column = mask[:, None]
        state.qpos.copy_(torch.where(column, qpos, state.qpos))
        state.qvel.copy_(torch.where(column, qvel, state.qvel))
        for tensor in (state.act, state.ctrl, self._warmstart):
            tensor.masked_fill_(column, 0.0)
        state.time.masked_fill_(mask, 0.0)
        others = state.sensordata.clone()
        self._run("forward", mjw.forward, 1)  # sensors of all worlds, of which only the masked ones are wanted
        state.sensordata.copy_(torch.where(column, state.sensordata, others))

    def close(self) -> None:
        """Drop the captured graphs."""
        self._graphs.clear()

    def _run(self, name: str, function: Callable[[mjw.Model, mjw.Data], None], times: int) -> None:
        """Call function(model, data) so many times: as one captured graph on a GPU, directly on a CPU."""
        with wp.ScopedDevice(self._wp_device):
            if not self._wp_device.is_cuda:
                for _ in range(times):
                    function(self._model, self._data)
                return
            graph = self._graphs.get((name, times))
            if graph is None:
                graph = self._graphs[name, times] = self._capture(function, times)
            wp.capture_launch(graph)

    def _capture(self, function: Callable[[mjw.Model, mjw.Data], None], times: int) -> wp.Graph:
        """Record the kernels of so many calls, leaving the worlds as they were."""
        before = [tensor.clone() for tensor in (*vars(self.state).values(), self._warmstart)]
        function(self._model, self._data)  # compiles and loads the kernels, which a capture cannot
        with wp.ScopedCapture() as capture:
            for _ in range(times):
                function(self._model, self._data)
        for tensor, original in zip((*vars(self.state).values(), self._warmstart), before, strict=True):
            tensor.copy_(original)
        assert capture.graph is not None
        return capture.graph
