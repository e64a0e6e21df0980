"""What every part of the environment needs: worlds, clock, random generator, delays, memory, shared sums.

It also has the check that terms do not write into what the environment gives them.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import torch

from mjtrain.config import EnvConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.engines.base import Engine, State

_VERSION = attrgetter("_version")


class ReadOnly:
    """Notices when a term writes into what the environment gave it, which is often a view of the state itself.

    torch counts the writes into a tensor and all of its views. To compare the counts costs about a microsecond.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tensors: list[torch.Tensor] = []
        self._versions: list[int] = []

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Watch more tensors, by the expressions with which terms read them, such as env.qpos(...).

        A tensor takes the place of an earlier one with the same expression.
        """
        for name, tensor in tensors.items():
            if tensor.is_inference():  # torch counts nothing for one that was made in inference mode
                continue
            if name in self._names:
                place = self._names.index(name)
                self._tensors[place], self._versions[place] = tensor, tensor._version
            else:
                self._names.append(name)
                self._tensors.append(tensor)
                self._versions.append(tensor._version)

    def mark(self) -> None:
        """Accept all writes up to now."""
        self._versions = list(map(_VERSION, self._tensors))

    def find_written(self) -> str | None:
        """Say what was written since the last mark; None if nothing was."""
        versions = list(map(_VERSION, self._tensors))
        if versions == self._versions:
            return None
        before, self._versions = self._versions, versions
        return _describe(
            next(name for name, one, other in zip(self._names, before, versions, strict=True) if one != other)
        )

    def check(self, term: str) -> None:
        """Raise a RequestError if a term, such as rewards.slip, has written into one of the tensors."""
        written = self.find_written()
        if written is not None:
            raise RequestError(f"--env.{term}: {written}")

    def copy(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the tensors and their copies, for `restore`."""
        return [(tensor, tensor.clone()) for tensor in self._tensors]

    def restore(self, before: list[tuple[torch.Tensor, torch.Tensor]]) -> str | None:
        """Undo what was written since `copy`, and say what it was; None if nothing was. Compares all values.

        Tensors that were added since are left as they are.
        """
        written = self.find_written()
        for name, tensor, (watched, value) in zip(self._names, self._tensors, before, strict=False):
            if tensor is not watched or torch.equal(tensor, value):
                continue
            if not torch.equal(tensor.nan_to_num(), value.nan_to_num()):
                tensor.copy_(value)
                written = written or _describe(name)
        if written is not None:
            self.mark()
        return written


def _describe(name: str) -> str:
    return (
        f"wrote into {name} in place, which changes the environment; compute a new tensor, for example q = q - 0.1 "
        "instead of q -= 0.1"
    )


class Memory:
    """Tensors by name, made when they are first asked for, zero at first, and part of a checkpoint."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._num_envs = num_envs
        self._device = device
        self._tensors: dict[str, torch.Tensor] = {}
        self._saved: dict[str, torch.Tensor] = {}
        self._kept: set[str] = set()

    def tensor(self, name: str, size: int, *, kept: bool = False) -> torch.Tensor:
        """Return a tensor of this name, to be changed in place; zero where an episode begins, unless it is kept.

        Shape (num_envs, size).
        """
        if name not in self._tensors:
            with torch.inference_mode(mode=False):  # it must outlive the rollout in which it is asked for
                tensor = torch.zeros(self._num_envs, size, device=self._device)
            _continue(tensor, self._saved.pop(name, None))
            self._tensors[name] = tensor
            if kept:
                self._kept.add(name)
        return self._tensors[name]

    def reset(self, mask: torch.Tensor) -> None:
        """Forget the masked worlds, except what is kept. Boolean, shape (num_envs,)."""
        for name, tensor in self._tensors.items():
            if name not in self._kept:
                tensor.masked_fill_(mask[:, None], 0.0)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of all tensors, in an order that does not depend on when each was first asked for."""
        return {name: tensor.clone() for name, tensor in sorted((self._saved | self._tensors).items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state. A tensor that it lacks or has in another shape starts at zero.

        So does everything of a checkpoint from before there was a memory.
        """
        self._saved = dict(state)
        for name, tensor in self._tensors.items():
            _continue(tensor, self._saved.pop(name, None))


def _continue(tensor: torch.Tensor, saved: torch.Tensor | None) -> None:
    """Fill a tensor with the one of a state; with zeros if the state lacks it or has it in another shape."""
    if saved is not None and saved.shape == tensor.shape:
        tensor.copy_(saved)
    else:
        tensor.zero_()


class EnvCore:
    """The worlds and their clock, complete before any evaluator of terms is made.

    Evaluators (actions, observations, ...) are built from it. Only term functions get the whole `Env`, which describes
    what both have.
    """

    def __init__(self, config: EnvConfig, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.num_envs = engine.num_envs
        self.device = engine.device
        self.step_dt = engine.layout.timestep_s * config.decimation
        self.max_episode_steps = max(1, round(config.episode_length_s / self.step_dt))
        self.rng = torch.Generator(self.device).manual_seed(seed)
        self.episode_step = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        self.memory = Memory(self.num_envs, self.device)
        """What terms remember from env step to env step."""
        self.read_only = ReadOnly()
        """What terms must not write."""

    @property
    def state(self) -> State:
        """The worlds."""
        return self.engine.state


class DelayLine:
    """Delays a signal by a number of env steps, drawn for each world and episode."""

    def __init__(
        self,
        delay: tuple[int, int],
        shape: tuple[int, ...],
        core: EnvCore,
        *,
        history: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Make room.

        Args:
            shape: Shape of the signal of one world: its columns, or the channels, height and width of an image.
            history: How many values are read at once.
        """
        self._core = core
        self._low, self._high = delay
        self.ring = torch.zeros(core.num_envs, delay[1] + history, *shape, device=core.device, dtype=dtype)
        """Values of the last env steps, oldest first. Shape (num_envs, high + history, *shape)."""
        self.lag = torch.zeros(core.num_envs, dtype=torch.long, device=core.device)
        """Delay of the running episode, in env steps. Shape (num_envs,)."""
        self._window = torch.arange(history, device=core.device) + delay[1]
        self._worlds = torch.arange(core.num_envs, device=core.device)[:, None]

    def push(self, value: torch.Tensor, advance: bool = True) -> torch.Tensor:
        """Store the newest value and return what arrives now.

        Args:
            value: Shape (num_envs, *shape).
            advance: Whether an env step has passed; if not, nothing is stored.

        Returns:
            Along the first axis of the signal, oldest first: shape (num_envs, history * size), or (num_envs, history *
            channels, height, width).
        """
        if advance:
            self.ring.copy_(torch.cat([self.ring[:, 1:], value[:, None]], dim=1))
        return self.ring[self._worlds, self._window - self.lag[:, None]].flatten(1, 2)

    def begin(self, mask: torch.Tensor, value: torch.Tensor) -> None:
        """Begin episodes in the masked worlds: fill their past with a value, as `push` takes it, and draw a delay."""
        worlds = mask.view(-1, *[1] * (self.ring.ndim - 1))
        self.ring.copy_(torch.where(worlds, value[:, None], self.ring))
        if self._high > self._low:
            drawn = torch.randint(
                self._low, self._high + 1, mask.shape, generator=self._core.rng, device=self._core.device
            )
        else:
            drawn = torch.full_like(self.lag, self._low)
        self.lag.copy_(torch.where(mask, drawn, self.lag))


def line_buffers(lines: Mapping[str, DelayLine]) -> dict[str, torch.Tensor]:
    """Return the tensors of delay lines that persist from step to step."""
    return {
        f"{name}.{key}": tensor
        for name, line in lines.items()
        for key, tensor in (("ring", line.ring), ("lag", line.lag))
    }


class SharedSum:
    """Numbers that worlds add to. Its total is the same on all ranks, and changes only between two iterations."""

    def __init__(self, size: int, keep: float, device: torch.device) -> None:
        self.total = torch.zeros(size, dtype=torch.float64, device=device)
        """What was added in all iterations before this one, each `keep` times less than the next. Shape (size,)."""
        self.pending = torch.zeros(size, dtype=torch.float64, device=device)
        """What the worlds of this rank have added in this iteration. Shape (size,)."""
        self.keep = keep

    def add(self, amounts: torch.Tensor) -> None:
        """Add to the numbers; the total has it after this iteration. Shape (size,)."""
        self.pending += amounts


class SharedSums:
    """Sums by name, made when they are first asked for, and part of a checkpoint.

    A rank may ask for a sum later than others. Ranks therefore tell each other which are new before they merge them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, SharedSum] = {}
        self._restored: set[str] = set()
        """Those of a checkpoint that no term has asked for yet."""
        self._agreed: dict[str, tuple[int, float]] = {}
        """Size and keep of the sums that all ranks have, by name."""

    def get(self, name: str, size: int, keep: float) -> SharedSum:
        """Return the sum of this name."""
        if name not in self._sums or (name in self._restored and len(self._sums[name].total) != size):
            with torch.inference_mode(mode=False):  # it must outlive the rollout in which it is asked for
                self._sums[name] = SharedSum(size, float(keep), self._device)
        if name in self._restored:
            self._restored.remove(name)
            self._sums[name].keep = float(keep)  # that of the command which resumes
        return self._sums[name]

    def new(self) -> list[str]:
        """Return what all ranks must know of the sums that they may not have yet, as JSON."""
        return [
            json.dumps([name, *self._describe(name), name not in self._restored])
            for name in self._sums
            if self._agreed.get(name) != self._describe(name)
        ]

    def merge(self, add_over_ranks: Callable[[torch.Tensor], torch.Tensor], new: Iterable[str]) -> None:
        """Take into the totals what all ranks have added; see `TaskEnv.merge_shared`."""
        for text in new:
            name, size, keep, is_asked_for = json.loads(text)
            if is_asked_for or name not in self._sums:  # a term decides, not the checkpoint, on whichever rank it asked
                self.get(name, size, keep)
            self._agreed[name] = self._describe(name)
        if not self._agreed:
            return
        sums = [self._sums[name] for name in sorted(self._agreed)]
        added = add_over_ranks(torch.cat([shared.pending for shared in sums]))
        for shared, part in zip(sums, added.split([len(shared.total) for shared in sums]), strict=True):
            shared.total.mul_(shared.keep).add_(part)
            shared.pending.zero_()

    def totals(self) -> dict[str, torch.Tensor]:
        """Return what is the same on all ranks, by name."""
        return {name: self._sums[name].total for name in sorted(self._agreed)}

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return copies of all sums, in an order that does not depend on when each was first asked for."""
        return {
            name: {"total": shared.total.clone(), "pending": shared.pending.clone(), "keep": shared.keep}
            for name, shared in sorted(self._sums.items())
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state. A sum that it lacks or has in another size starts at zero."""
        for name, saved in state.items():
            if name not in self._sums:
                self.get(name, len(saved["total"]), saved.get("keep", 1.0))  # older states lack it
                self._restored.add(name)
        for name, shared in self._sums.items():
            for key in ("total", "pending"):
                _continue(getattr(shared, key), state.get(name, {}).get(key))

    def _describe(self, name: str) -> tuple[int, float]:
        return len(self._sums[name].total), self._sums[name].keep
