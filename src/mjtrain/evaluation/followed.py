"""The frames that a command follows, such as those of a motion: where worlds are, what viewers show, what fails."""

from typing import Any

import numpy as np
import torch

from mjtrain.env.env import Env
from mjtrain.mdp.reference import Reference


class Followed:
    """What the worlds of an environment follow."""

    def __init__(self, env: Env, command: str, reference: Reference) -> None:
        self.command = command
        self.reference = reference
        self._env = env
        self._firsts = reference.firsts.tolist()

    @property
    def frames(self) -> torch.Tensor:
        """Present frame of each world, at most the last of the clip in which it started. Shape (num_envs,)."""
        start = self._env.drawn_command(self.command)[:, 0].long()
        return torch.minimum(self._env.command(self.command)[:, 0].long(), self.reference.last[start])

    def qpos(self, world: int) -> torch.Tensor:
        """Return the present frame of a world, without waiting for the device. Shape (nq,)."""
        return self.reference.qpos.index_select(0, self.frames[world : world + 1])[0]

    def place(self, frame: int) -> tuple[str, float]:
        """Return the clip that a frame is in, and the time since this clip began, in s."""
        clip = sum(first <= frame for first in self._firsts) - 1
        return self.reference.clips[clip], (frame - self._firsts[clip]) * self._env.step_dt


def find_followed(env: Any) -> Followed | None:
    """Return what the first command follows that declares it, see `mdp.reference.follows`; None if none does."""
    for name, term in env.config.commands.items():
        find = getattr(term.func, "follows", None)
        if find is not None:
            return Followed(env, name, find(env, name))
    return None


class Ghost:
    """The reference in the frame of a world, or, while time stands still, in a frame that the user has chosen."""

    def __init__(self, followed: Followed) -> None:
        self.is_shown = True
        self.chosen: int | None = None
        """Frame that the user has chosen; None for that of the world."""
        self.command = followed.command
        self.num_frames = len(followed.reference.qpos)
        self._followed = followed

    def frame(self, world: int) -> int:
        """Return the frame that is shown beside a world."""
        return int(self._followed.frames[world]) if self.chosen is None else self.chosen

    def start(self, world: int) -> int:
        """Return the frame that is shown, or one before if so few are left that an episode would end at once."""
        frame, reference = self.frame(world), self._followed.reference
        first = max(first for first in reference.firsts.tolist() if first <= frame)
        return min(frame, max(first, int(reference.last[frame]) - 2))

    def qpos(self, world: int) -> np.ndarray | None:
        """Return positions in this frame, shape (nq,), or None while the ghost is switched off."""
        return self._followed.reference.qpos[self.frame(world)].cpu().double().numpy() if self.is_shown else None

    def describe(self, world: int) -> str:
        """Say which frame is shown."""
        frame = self.frame(world)
        clip, time_s = self._followed.place(frame)
        return f"reference {clip}: {time_s:.2f} s, frame {frame}, the last is {self.num_frames - 1}"


class FailuresByBin:
    """Counts, for each bin of the reference, the episodes that came there and that failed there, and means of errors.

    Errors count as in whole episodes: not before `ErrorTerm.settling_s`, nor in the state that ends an episode.
    """

    def __init__(self, env: Env, followed: Followed) -> None:
        self._env, self._followed = env, followed
        self._errors = env.config.commands[followed.command].errors
        self._bins = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
        size = len(followed.reference.bin_sizes)
        self._counts = torch.zeros(2 + 2 * len(self._errors), size, dtype=torch.float64, device=env.device)

    def before_step(self, measured: torch.Tensor) -> None:
        """Measure errors where the policy sees them. Boolean, shape (num_envs,)."""
        env = self._env
        bins = self._followed.reference.bins.index_select(0, self._followed.frames)
        self._add(0, measured & ((env.episode_step == 0) | (bins != self._bins)), bins)
        self._bins = bins
        for row, (name, term) in enumerate(self._errors.items()):
            counts = measured & (env.episode_step >= round(term.settling_s / env.step_dt))
            errors = env.command_error(self._followed.command, name).masked_fill(~counts, 0.0)
            self._add(2 + 2 * row, errors, bins)
            self._add(3 + 2 * row, counts, bins)

    def after_step(self, over: torch.Tensor) -> None:
        """Count episodes that have just ended. Boolean, shape (num_envs,)."""
        self._add(1, over & self._env.terminated, self._bins)

    def to_plain(self) -> list[dict[str, Any]]:
        """Return plain values for JSON, of the bins in which any episode was."""
        reference = self._followed.reference
        numbers = torch.arange(len(reference.bin_sizes), device=self._env.device)
        begins = torch.searchsorted(reference.bins, numbers).tolist()
        sizes = reference.bin_sizes.tolist()
        rows = []
        for number, (episodes, failed, *sums) in enumerate(self._counts.T.tolist()):
            if not episodes:
                continue
            clip, begin_s = self._followed.place(begins[number])
            means = {
                name: total / count
                for name, total, count in zip(self._errors, sums[::2], sums[1::2], strict=True)
                if count
            }
            rows.append(
                {
                    "clip": clip,
                    "begin_s": begin_s,
                    "end_s": begin_s + sizes[number] * self._env.step_dt,
                    "episodes": int(episodes),
                    "failed": int(failed),
                    "errors": means,
                }
            )
        return rows

    def _add(self, row: int, amounts: torch.Tensor, bins: torch.Tensor) -> None:
        self._counts[row].index_add_(0, bins, amounts.double())
