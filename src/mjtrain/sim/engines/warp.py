"""MuJoCo Warp: graphs of kernels, on a GPU and on a CPU."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from mjtrain.runtime.errors import RequestError
from mjtrain.sim.engines.base import (
    FOLLOWED,
    MAX_VALUE,
    Buffer,
    State,
    check_engine_state,
    load_followed,
    save_followed,
)
from mjtrain.sim.engines.warp_buffers import UNPRINTED, WarpBuffers, note_readings
from mjtrain.sim.robots.layout import MODEL_FIELDS
from mjtrain.sim.robots.read_layout import make_layout
from mjtrain.sim.robots.start import make_start

_CONSTANTS = ("body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0", "actuator_acc0")
"""What `mjw.set_const` computes from masses and inertias; it needs an axis of worlds as soon as those have one."""

_KEPT = ("mocap_pos", "mocap_quat", "eq_active", "userdata", "plastic")
"""What a physics step reads beside `State`, if the model has it; a reset gives it the value of the default pose."""

_INPUTS = ("qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat", "eq_active", "userdata")
"""What only a task changes. A state leaves out those that have the values with which an episode begins."""


class WarpEngine:
    """Steps all worlds with mujoco-warp, in single precision; `state` is its memory, not a copy."""

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        device: str,
        num_threads: int = 1,
        nconmax: int | None = None,
        njmax: int | None = None,
        deterministic: bool = False,
    ) -> None:
        if model.nhistory:
            raise RequestError(
                "--engine warp: does not carry delays of actuators and sensors over resets; use --engine native, or a "
                "model without them"
            )
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.model = model
        self.num_threads = num_threads
        self.layout = make_layout(model, self.device, torch.float32)
        self._wp_device = wp.get_device(device)
        with wp.ScopedDevice(self._wp_device):
            with _naming_what_is_unsupported():
                self._model = mjw.put_model(model)
            self._model.opt.deterministic = deterministic
            self._model.opt.warn_overflow &= ~UNPRINTED
            self._data = mjw.make_data(model, nworld=num_envs, nconmax=nconmax, njmax=njmax)
        self._warmstart = wp.to_torch(self._data.qacc_warmstart)
        self._qacc = wp.to_torch(self._data.qacc)
        self.failed = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self.failures: list[str] = []
        self.warnings: Mapping[str, torch.Tensor] = {}
        self.state = State(**{field.name: wp.to_torch(getattr(self._data, field.name)) for field in fields(State)})
        self._kept = {name: wp.to_torch(array) for name in _KEPT if (array := getattr(self._data, name)).size}
        self._forces = {name: wp.to_torch(getattr(self._data, name)) for name in ("qfrc_applied", "xfrc_applied")}
        self._is_pushed = False
        begin = make_start(model)
        self._start = {
            name: torch.from_numpy(np.array(getattr(begin, name)))
            .to(tensor.device, tensor.dtype)
            .view(tensor.shape[1:])
            for name, tensor in [("act", self.state.act), *self._kept.items()]
        }
        self._expanded: dict[str, torch.Tensor] = {}
        self._followed: dict[str, torch.Tensor] = {}
        self._history: torch.Tensor | None = None
        buffers = WarpBuffers(self._data, num_envs, self.device)
        self.buffers: Mapping[str, Buffer] = buffers.by_name
        self._note_buffers = buffers.note
        kept = (*vars(self.state).values(), self._warmstart, *self._kept.values(), *buffers.tensors)
        self._calls = _CapturedCalls(self._wp_device, kept)
        qpos, qvel = (start.expand(num_envs, -1) for start in (self.layout.default_qpos, self.layout.default_qvel))
        with _naming_what_is_unsupported():  # MuJoCo Warp checks some of it with the first step
            self.reset(torch.ones(num_envs, dtype=torch.bool, device=self.device), qpos, qvel)

    def step(self, ctrl: torch.Tensor, num_substeps: int) -> None:
        """Advance every world by num_substeps physics steps; see `Engine.step`."""
        self.state.ctrl.copy_(ctrl)
        history = None if self._history is None else wp.from_torch(self.follow_sensors(num_substeps))

        def advance() -> None:
            mjw.step(self._model, self._data)
            self._note_buffers()

        def advance_all() -> None:
            for step in range(num_substeps):
                advance()
                if history is not None:
                    note_readings(self._data.sensordata, step, history)

        if self.device.type == "cuda":
            self._calls.run(("step", num_substeps), advance_all)
        else:  # recording one physics step takes as long as 200 replays on a CPU
            for step in range(num_substeps):
                self._calls.run("step", advance)
                if history is not None:
                    self._calls.run(("history", step), partial(note_readings, self._data.sensordata, step, history))
        torch.logical_not((self._qacc.abs() <= MAX_VALUE).all(dim=1), out=self.failed)

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Reset the masked worlds; see `Engine.reset`."""
        if self.device.type == "cpu" and not mask.any():  # on a GPU the question would cost more than the answer
            return
        state = self.state
        column = mask[:, None]
        state.qpos.copy_(torch.where(column, qpos, state.qpos))
        state.qvel.copy_(torch.where(column, qvel, state.qvel))
        for tensor in (state.ctrl, self._warmstart):
            tensor.masked_fill_(column, 0.0)
        if self._is_pushed:
            self._forces["xfrc_applied"].masked_fill_(column[..., None], 0.0)
        for name, start in self._start.items():
            tensor = state.act if name == "act" else self._kept[name]
            tensor.copy_(torch.where(mask.view(-1, *[1] * start.ndim), start, tensor))
        state.time.masked_fill_(mask, 0.0)
        shown = (state.sensordata, *self._followed.values())
        others = [tensor.clone() for tensor in shown]
        # It computes the sensors of all worlds, of which only the masked ones are wanted.
        self._calls.run("forward", lambda: mjw.forward(self._model, self._data))
        for tensor, other in zip(shown, others, strict=True):
            tensor.copy_(torch.where(column, tensor, other))
        if self._history is not None:
            self._history.copy_(torch.where(column[..., None], state.sensordata[:, None], self._history))

    def set_qvel(self, mask: torch.Tensor, qvel: torch.Tensor) -> None:
        """Overwrite the velocities of the masked worlds; see `Engine.set_qvel`."""
        self.state.qvel.copy_(torch.where(mask[:, None], qvel, self.state.qvel))

    def set_body_force(self, body: int, wrench: torch.Tensor) -> None:
        """Apply a force and torque to a body; see `Engine.set_body_force`."""
        self._forces["xfrc_applied"][:, body].copy_(wrench)
        self._is_pushed = True

    def follow(self, field: str) -> torch.Tensor:
        """Show a field of MuJoCo's data; see `Engine.follow`."""
        if field not in self._followed:
            assert field in FOLLOWED, field
            self._followed[field] = wp.to_torch(getattr(self._data, field))
        return self._followed[field]

    def follow_sensors(self, num_substeps: int) -> torch.Tensor:
        """Keep the sensors of every physics step; see `Engine.follow_sensors`."""
        if self._history is None or self._history.shape[1] != num_substeps:
            with torch.inference_mode(mode=False):  # it must outlive a rollout
                self._history = self.state.sensordata[:, None].repeat(1, num_substeps, 1)
            self._calls.clear()  # they do not fill it
        return self._history

    def expand(self, field: str) -> torch.Tensor:
        """Let every world have its own values of a field of the model; see `Engine.expand`."""
        if field not in self._expanded:
            assert field in MODEL_FIELDS, field
            self._expanded[field] = self._expand(self._model.opt if field == "gravity" else self._model, field)
            if MODEL_FIELDS[field]:
                for constant in _CONSTANTS:
                    if constant not in self._expanded:
                        self._expanded[constant] = self._expand(self._model, constant)
            self._calls.clear()  # they point at the shared values
        return self._expanded[field]

    def _expand(self, owner: mjw.Model | mjw.Option, field: str) -> torch.Tensor:
        """Give an array of the model, which all worlds share, a leading axis of worlds."""
        shared = getattr(owner, field)
        with torch.inference_mode(mode=False):  # it must outlive a rollout
            values = wp.to_torch(shared)[:1].repeat(self.num_envs, *[1] * (wp.to_torch(shared).ndim - 1)).contiguous()
        setattr(owner, field, wp.from_torch(values, dtype=shared.dtype))
        return values

    def refresh_model(self, mask: torch.Tensor) -> None:  # noqa: ARG002
        """Recompute the constants of all worlds; see `Engine.refresh_model`."""
        self._calls.run("set_const", lambda: mjw.set_const(self._model, self._data))

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the worlds; see `Engine.state_dict`."""
        rows = {name: row for name, row in self._rows().items() if name not in _INPUTS or self._is_changed(name, row)}
        return {
            "engine": "warp",
            "rows": {name: tensor.clone() for name, tensor in rows.items()},
            "model": {name: values.clone() for name, values in self._expanded.items() if name in MODEL_FIELDS},
            **save_followed(self._followed, self._history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; see `Engine.load_state_dict`."""
        rows = {name: row for name, row in self._rows().items() if name not in _INPUTS or name in state["rows"]}
        check_engine_state(state, "warp", rows, self.layout, self.num_envs)
        for name, values in state["model"].items():
            self.expand(name).copy_(values)
        if any(MODEL_FIELDS[name] for name in state["model"]):
            self.refresh_model(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        for name, tensor in self._rows().items():
            tensor.copy_(state["rows"][name] if name in rows else self._start.get(name, torch.zeros(())))
        self._is_pushed |= "xfrc_applied" in rows
        load_followed(self, state)

    def _rows(self) -> dict[str, torch.Tensor]:
        """Return the worlds' state, live. Shape (num_envs, ...) each."""
        return {**vars(self.state), "qacc_warmstart": self._warmstart, **self._kept, **self._forces}

    def _is_changed(self, name: str, row: torch.Tensor) -> bool:
        return bool((row != self._start[name]).any() if name in self._start else row.any())

    def close(self) -> None:
        """Drop the captured graphs."""
        self._calls.clear()


@contextmanager
def _naming_what_is_unsupported() -> Iterator[None]:
    """Turn an error of MuJoCo Warp about a model into one line."""
    try:
        yield
    except (NotImplementedError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        words = " ".join(str(error).split()).rstrip(".")
        raise RequestError(
            f"--engine warp: MuJoCo Warp does not support this robot: {words}; use --engine native"
        ) from error


class _CapturedCalls:
    """Calls of kernels as captured graphs, on GPU and CPU; `clear` them when an array that they use is replaced."""

    def __init__(self, device: wp.Device, kept: Sequence[torch.Tensor]) -> None:
        """Take what a first call must not change: on a GPU, recording a call executes it once before."""
        self._device = device
        self._kept = tuple(kept)
        self._graphs: dict[Hashable, wp.Graph] = {}

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Call a function that launches kernels, on torch's current stream.

        Another function, or another number of repetitions, needs another key.
        """
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._capture(function)
        launch_graph(graph)

    def clear(self) -> None:
        """Drop the graphs; the next calls are recorded again."""
        self._graphs.clear()

    def _capture(self, function: Callable[[], None]) -> wp.Graph:
        """Record the kernels of a call, leaving what is to be kept as it was."""
        before = [tensor.clone() for tensor in self._kept]
        with wp.ScopedDevice(self._device):
            graph = capture_graph(function)
        for tensor, original in zip(self._kept, before, strict=True):
            tensor.data.copy_(original)  # by data: it is not a write that counts, see `ReadOnly`
        return graph


def capture_graph(function: Callable[[], None]) -> wp.Graph:
    """Record the kernels that a function launches on Warp's current device; a GPU executes them once before."""
    if wp.get_device().is_cuda:
        wp.synchronize_device()  # torch may be writing on another stream what the function reads
        function()  # compiles and loads the kernels, which a capture on a GPU cannot
        wp.synchronize_device()
    with wp.ScopedCapture() as capture:
        function()
    assert capture.graph is not None
    return capture.graph


def launch_graph(graph: wp.Graph) -> None:
    """Replay a graph on torch's current stream, so that it comes after what torch has queued and before what follows.

    Warp's own stream does as well while torch is on its default stream: the driver has both wait for each other. A
    stream that was made by `torch.cuda.Stream` waits for neither.
    """
    if not graph.device.is_cuda:
        wp.capture_launch(graph)
        return
    current = torch.cuda.current_stream(wp.device_to_torch(graph.device))
    is_default = current.cuda_stream == 0
    with wp.ScopedDevice(graph.device):
        wp.capture_launch(graph, None if is_default else wp.stream_from_torch(current))
