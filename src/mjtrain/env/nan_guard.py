"""Detects worlds whose state has become invalid, and dumps their last seconds."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mjtrain.config import NanGuardConfig
from mjtrain.env.core import EnvCore
from mjtrain.runtime.errors import count
from mjtrain.runtime.files import replacing
from mjtrain.sim.engines.base import MAX_VALUE, State

_FIELDS = ("qpos", "qvel", "act", "ctrl")
_GROWS = 100.0
"""A world whose velocities were larger than this in the env step before it broke has diverged over several steps."""


class NanGuard:
    """Finds worlds whose state is not valid, and records the last seconds of every world for dumps."""

    def __init__(self, config: NanGuardConfig, core: EnvCore, robot: str) -> None:
        self._robot = robot
        self._step_dt = core.step_dt
        self._dumps_left = config.max_dumps
        self._num_steps = max(1, round(config.history_s / core.step_dt))
        tensors = [getattr(core.state, field) for field in _FIELDS]
        self._widths = [tensor.shape[1] for tensor in tensors]
        limits = [MAX_VALUE] * self._widths[0] + [min(config.max_velocity, MAX_VALUE)] * self._widths[1]
        self._limits = torch.tensor(limits, device=core.device)
        self._device = core.device
        self._ring = torch.zeros(0)
        self._shape = (core.num_envs, sum(self._widths))
        self._step = torch.zeros((), dtype=torch.long, device=core.device)
        self._broke_at = torch.full((core.num_envs,), -1, dtype=torch.long, device=core.device)
        self._episode_step = core.episode_step
        self._began = torch.zeros(core.num_envs, dtype=torch.bool, device=core.device)

    def check(self, state: State, failed: torch.Tensor) -> torch.Tensor:
        """Record an env step.

        Args:
            failed: Those that the engine could not compute; see `Engine.failed`.

        Returns:
            Which worlds are broken: MuJoCo calls them bad, a velocity is too large, or something of theirs is not
            finite, sensors included. Boolean, shape (num_envs,).
        """
        if not self._ring.numel():
            # Twice the time: what a dump needs must still be there at the end of an iteration.
            with torch.inference_mode(mode=False):  # it must outlive a rollout
                self._ring = torch.zeros(2 * self._num_steps, *self._shape, device=self._device)
        row = torch.cat([getattr(state, field) for field in _FIELDS], dim=1)
        self._ring.index_copy_(0, (self._step % self._ring.shape[0]).view(1), row[None])
        # A sum is finite only if all of its terms are.
        broken = ~(row.sum(dim=1) + state.sensordata.sum(dim=1)).isfinite() | failed
        broken |= (row[:, : len(self._limits)].abs() > self._limits).any(dim=1)
        new = broken & (self._broke_at < 0)
        self._broke_at.copy_(torch.where(new, self._step, self._broke_at))
        self._began.copy_(torch.where(new, self._episode_step == 1, self._began))
        self._step += 1
        return broken

    def forget(self) -> None:
        """Forget which worlds broke."""
        self._broke_at.fill_(-1)

    def explain(self) -> str:
        """Say what most likely broke the worlds that broke since the last dump, to follow a colon; empty for none."""
        events = "; if an event changes gains, damping, masses or armature, narrow its bounds"
        for _, now, before in self._read_broken():
            ctrl = now[len(now) - self._widths[3] :]
            if not (ctrl.abs() <= MAX_VALUE).all():
                return "controls were not finite: give action terms a clip, and look for observations without bounds"
            if (before[self._widths[0] : sum(self._widths[:2])].abs() > _GROWS).any():
                return (
                    "the physics is unstable, velocities grew over several env steps: shorten --env.robot.timestep, "
                    f"use the integrator implicitfast, or lower the gains of the actuators{events}"
                )
        if not (self._broke_at >= 0).any():
            return ""
        return f"look for bodies that start inside each other, for events that write NaN, and for masses near 0{events}"

    def describe_fastest(self, velocities: Sequence[tuple[str, str]]) -> str:
        """Say how fast which joint was where the physics became unstable, with `Layout.velocities`. Asks the device.

        It is the fastest joint of the first world that broke since the last dump, in the env step in which it broke and
        in the one before, if that was of the same episode; empty if no world did.
        """
        for world, *rows in self._read_broken() if velocities else ():
            now, before = (row[self._widths[0] : sum(self._widths[:2])].abs() for row in rows)
            broken = ~now.isfinite()
            column = int((before.masked_fill(~broken, -1.0) if broken.any() else now).argmax())
            joint, unit = velocities[column]
            speed, past = float(now[column]), float(before[column])
            was = "" if math.isnan(past) else f", and at {past:.3g} {unit} in the env step before"
            return f"joint {joint} of world {world} was at {speed:.3g} {unit}{was}"
        return ""

    def _read_broken(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield worlds that broke, the row of that env step, and the one before: NaN if that is of another episode."""
        oldest = max(int(self._step) - self._ring.shape[0], 0)
        for world, (step, began) in enumerate(zip(self._broke_at.tolist(), self._began.tolist(), strict=True)):
            if step >= oldest:
                now, before = (self._ring[(step - back) % self._ring.shape[0], world].cpu() for back in (0, 1))
                yield world, now, torch.full_like(before, torch.nan) if began or step == oldest else before

    def dump(self, folder: Path, name: str) -> list[Path]:
        """Write the last seconds of worlds that broke since the last call, as far as the record reaches back.

        Each file is an uncompressed numpy archive without pickles: qpos, qvel, act and ctrl, of shape (steps, size),
        after each env step, of which the last one is broken; step_dt in seconds; world; robot, the name of its MJCF
        file, which the run has a copy of.
        """
        if self._dumps_left <= 0:
            self.forget()
            return []
        now, broke_at = int(self._step), self._broke_at.tolist()
        self.forget()
        files = []
        for world, step in enumerate(broke_at):
            oldest = max(step - self._num_steps + 1, now - self._ring.shape[0], 0)
            if step < oldest or self._dumps_left <= 0:
                continue
            rows = torch.arange(oldest, step + 1, device=self._ring.device) % self._ring.shape[0]
            seconds = self._ring[rows, world].cpu().split(self._widths, dim=1)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}_world_{world}.npz"
            with replacing(path) as file:
                np.savez(
                    file,
                    allow_pickle=False,
                    **{field: values.numpy() for field, values in zip(_FIELDS, seconds, strict=True)},
                    step_dt=self._step_dt,
                    world=world,
                    robot=self._robot,
                )
            files.append(path)
            self._dumps_left -= 1
        return files


def check_nan_resets(metrics: dict[str, Any], config: NanGuardConfig, find_cause: Callable[[], str]) -> None:
    """Fail if worlds of the whole job broke too often in one iteration.

    Args:
        find_cause: Says what broke them; asked on all ranks or none.

    Raises:
        FloatingPointError: They were reset more than config.max_fraction times per world.
    """
    resets, worlds = metrics["nan_resets"], metrics["num_envs_total"]
    if resets > config.max_fraction * worlds:
        raise FloatingPointError(
            f"{count(resets, 'reset')} because worlds diverged in iteration {metrics['iteration']}, more than "
            f"--env.nan-guard.max-fraction {config.max_fraction} of {worlds} worlds: {find_cause()}. The folder nan of "
            "the run has their last seconds"
        )
