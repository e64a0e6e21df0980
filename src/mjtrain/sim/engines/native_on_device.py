"""The native engine for a learner on a GPU: worlds on CPU threads, their state copied to the device."""

from collections.abc import Mapping
from typing import Any

import mujoco
import torch

from mjtrain.sim.engines.base import Buffer, State, load_followed
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.robots.read_layout import make_layout


class NativeOnDevice:
    """Steps all worlds as `NativeEngine` does, for tensors on another device.

    Whatever the environment reads and writes is on the device; the worlds have the same numbers, bit for bit. Each step
    waits for the controls, steps, and queues copies of the new state, which the device makes while the CPU continues.
    """

    def __init__(
        self, model: mujoco.MjModel, num_envs: int, *, device: str, num_threads: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.device = torch.device(device)
        pin = self.device.type == "cuda"  # copies from and to other memory would wait for the CPU
        self._worlds = NativeEngine(model, num_envs, num_threads=num_threads, dtype=dtype, pin_memory=pin)
        self.num_envs = num_envs
        self.model = model
        self.num_threads = num_threads
        self.layout = make_layout(model, self.device, dtype)
        self.state = State(**{name: here.to(self.device, copy=True) for name, here in vars(self._worlds.state).items()})
        self.buffers: Mapping[str, Buffer] = self._worlds.buffers
        self.warnings: Mapping[str, torch.Tensor] = self._worlds.warnings
        self.failed = self._worlds.failed.to(self.device, copy=True)
        self.failures = self._worlds.failures
        here = self._worlds.state
        self._arguments = {
            "ctrl": torch.empty_like(here.ctrl, pin_memory=pin),
            "qpos": torch.empty_like(here.qpos, pin_memory=pin),
            "qvel": torch.empty_like(here.qvel, pin_memory=pin),
            "mask": torch.empty(num_envs, dtype=torch.bool, pin_memory=pin),
            "wrench": torch.empty(num_envs, 6, dtype=dtype, pin_memory=pin),
        }
        self._expanded: dict[str, _Expanded] = {}
        self._followed: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def step(self, ctrl: torch.Tensor, num_substeps: int) -> None:
        """Advance every world by num_substeps physics steps; see `Engine.step`."""
        here = self._fetch(ctrl=ctrl)
        self._worlds.step(here["ctrl"], num_substeps)
        self._show()
        self.failed.copy_(self._worlds.failed, non_blocking=True)

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Reset the masked worlds; see `Engine.reset`."""
        here = self._fetch(mask=mask, qpos=qpos, qvel=qvel)
        self._worlds.reset(here["mask"], here["qpos"], here["qvel"])
        self._show()

    def set_qvel(self, mask: torch.Tensor, qvel: torch.Tensor) -> None:
        """Overwrite the velocities of the masked worlds; see `Engine.set_qvel`."""
        here = self._fetch(mask=mask, qvel=qvel)
        self._worlds.set_qvel(here["mask"], here["qvel"])
        self._show("qvel")

    def set_body_force(self, body: int, wrench: torch.Tensor) -> None:
        """Apply a force and torque to a body; see `Engine.set_body_force`."""
        self._worlds.set_body_force(body, self._fetch(wrench=wrench)["wrench"])

    def follow(self, field: str) -> torch.Tensor:
        """Show a field of MuJoCo's data; see `Engine.follow`."""
        return self._copy_followed(field, self._worlds.follow(field))

    def follow_sensors(self, num_substeps: int) -> torch.Tensor:
        """Keep the sensors of every physics step; see `Engine.follow_sensors`."""
        return self._copy_followed("sensors", self._worlds.follow_sensors(num_substeps))

    def _copy_followed(self, name: str, here: torch.Tensor) -> torch.Tensor:
        """Return what the device has of a tensor of the worlds, which `_show` keeps up to date."""
        if name not in self._followed or self._followed[name][0] is not here:
            with torch.inference_mode(mode=False):  # it must outlive a rollout
                self._followed[name] = (here, here.to(self.device, copy=True))
        return self._followed[name][1]

    def expand(self, field: str) -> torch.Tensor:
        """Let every world have its own values of a field of the model; see `Engine.expand`."""
        if field not in self._expanded:
            with torch.inference_mode(mode=False):  # it must outlive a rollout, and count its changes
                self._expanded[field] = _Expanded(self._worlds.expand(field), self.device)
        return self._expanded[field].values

    def refresh_model(self, mask: torch.Tensor) -> None:
        """Recompute the constants of the masked worlds; see `Engine.refresh_model`."""
        self._worlds.refresh_model(self._fetch(mask=mask)["mask"])

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the worlds, on the CPU; see `Engine.state_dict`."""
        self._fetch()
        return self._worlds.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, also from one of worlds without a device; see `Engine.load_state_dict`."""
        self._fetch()
        self._worlds.load_state_dict(state)
        load_followed(self, state)
        for name in state["model"]:
            self.expand(name)
        for field in self._expanded.values():
            field.show()
        self._show()

    def close(self) -> None:
        """Stop the threads and release the worlds."""
        self._expanded.clear()
        self._worlds.close()

    def _fetch(self, **arguments: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return copies of arguments for the worlds, and give these what was written into their fields."""
        for name, value in arguments.items():
            self._arguments[name].copy_(value, non_blocking=True)
        if self.device.type == "cuda":  # no copy of the state may be under way when the worlds change it
            torch.cuda.current_stream(self.device).synchronize()
        for field in self._expanded.values():
            field.fetch()
        return self._arguments

    def _show(self, *names: str) -> None:
        """Queue copies of the state, or of some of it, to the device."""
        for name in names or vars(self.state):
            getattr(self.state, name).copy_(getattr(self._worlds.state, name), non_blocking=True)
        if not names:
            for here, there in self._followed.values():
                there.copy_(here, non_blocking=True)


class _Expanded:
    """A field of the model with values for each world: those of the worlds, and a copy on the device to write into."""

    def __init__(self, worlds: torch.Tensor, device: torch.device) -> None:
        self._worlds = worlds
        self.values = worlds.to(device, copy=True)
        """On the device. Shape (num_envs, ...)."""
        self._version = self.values._version

    def fetch(self) -> None:
        """Give the worlds what was written into the copy since the last call, if anything was."""
        if self.values._version != self._version:
            self._worlds.copy_(self.values)
            self._version = self.values._version

    def show(self) -> None:
        """Overwrite the copy by what the worlds have."""
        self.values.copy_(self._worlds)
        self._version = self.values._version
