"""What the policy sees: groups of named terms."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from mjtrain.config import ObservationTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.delay import DelayLine, check_delay
from mjtrain.env.term_result import check_results, name_term
from mjtrain.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Observations:
    """Evaluates the observation groups. A function that several groups share is called once per env step."""

    def __init__(self, groups: dict[str, dict[str, ObservationTerm]], core: EnvCore, *, noise: bool) -> None:
        """Check the terms.

        Args:
            groups: Terms by group and name.
            core: The worlds.
            noise: Whether observations carry the noise of their terms.

        Raises:
            RequestError: A history or a delay is out of range.
        """
        for name, terms in groups.items():
            for term_name, term in terms.items():
                flag = f"--env.observations.{name}.{term_name}"
                check_delay(f"{flag}.delay", term.delay)
                if term.history < 1:
                    raise RequestError(f"{flag}.history {term.history}: give at least 1")
        self._groups = {name: _Group(name, terms, core, noise) for name, terms in groups.items()}

    def start(self, env: "Env") -> None:
        """Call each function once to find out how many columns it has."""
        cache: dict[Any, torch.Tensor] = {}
        for group in self._groups.values():
            group.start(env, cache)

    def compute(self, env: "Env", fresh: torch.Tensor, advance: bool = True) -> dict[str, torch.Tensor]:
        """Observe.

        Args:
            env: The environment.
            fresh: Worlds whose episode has just begun. Boolean, shape (num_envs,).
            advance: Whether an env step has passed for the other worlds.

        Returns:
            One tensor per group, its terms side by side in order. Shape (num_envs, size) each.
        """
        cache: dict[Any, torch.Tensor] = {}
        return {name: group.compute(env, fresh, advance, cache) for name, group in self._groups.items()}

    def widths(self, group: str) -> dict[str, int]:
        """Return how many columns each term of a group has, its history included, in their order."""
        return self._groups[group].widths()

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return {
            f"{name}.{key}": tensor for name, group in self._groups.items() for key, tensor in group.buffers().items()
        }


class _Group:
    """Terms side by side. Noise, scale and clip are applied to all of them at once."""

    def __init__(self, name: str, terms: dict[str, ObservationTerm], core: EnvCore, noise: bool) -> None:
        self._terms = terms
        self._core = core
        self._with_noise = noise
        self._sources = [_Source(f"observations.{name}.{term_name}", term) for term_name, term in terms.items()]
        self._widths: list[int] = []
        self._lines: dict[str, DelayLine] = {}

    def start(self, env: "Env", cache: dict[Any, torch.Tensor]) -> None:
        terms = list(self._terms.values())
        self._widths = [source.read(env, cache).shape[1] for source in self._sources]
        noise = self._row([term.noise for term in terms])
        scale = self._row([term.scale for term in terms])
        self._noise = noise if self._with_noise and noise.any() else None
        self._scale = scale if (scale != 1.0).any() else None
        bounds = [term.clip or (-torch.inf, torch.inf) for term in terms]
        self._clips = any(term.clip for term in terms)
        self._low, self._high = (self._row([bound[side] for bound in bounds]) for side in (0, 1))
        self._lines = {
            name: DelayLine(term.delay, width, self._core, history=term.history)
            for (name, term), width in zip(self._terms.items(), self._widths, strict=True)
            if term.delay[1] or term.history > 1
        }

    def compute(self, env: "Env", fresh: torch.Tensor, advance: bool, cache: dict[Any, torch.Tensor]) -> torch.Tensor:
        value = self._read(env, cache)
        if self._noise is not None:
            noise = torch.rand(value.shape, generator=self._core.rng, device=self._core.device)
            value = value + self._noise * (2 * noise - 1)
        if self._scale is not None:
            value = value * self._scale
        if self._clips:
            value = value.clamp(self._low, self._high)
        if not self._lines:
            return value
        parts = dict(zip(self._terms, value.split(self._widths, dim=1), strict=True))
        for name, line in self._lines.items():
            line.begin(fresh, parts[name])
            parts[name] = line.push(parts[name], advance)
        return torch.cat(list(parts.values()), dim=1)

    def _read(self, env: "Env", cache: dict[Any, torch.Tensor]) -> torch.Tensor:
        """Return the readings side by side. Raises a TypeError that names the term if one does not fit."""
        readings = [source.read(env, cache) for source in self._sources]
        try:
            value = torch.cat(readings, dim=1)
        except Exception:
            check_results("observation", [source.name for source in self._sources], readings, self._core)
            raise
        if value.shape != (self._core.num_envs, sum(self._widths)) or value.dtype != torch.float32:
            check_results("observation", [source.name for source in self._sources], readings, self._core)
            for source, reading, width in zip(self._sources, readings, self._widths, strict=True):
                if reading.shape[1] != width:
                    raise TypeError(f"--env.{source.name}: has {reading.shape[1]} columns now, and had {width}")
        return value

    def _row(self, values: list[float]) -> torch.Tensor:
        """Repeat the value of each term over its columns. Shape (num_columns,)."""
        columns = [value for value, width in zip(values, self._widths, strict=True) for _ in range(width)]
        return torch.tensor(columns, device=self._core.device)

    def widths(self) -> dict[str, int]:
        times = [self._lines[name].history if name in self._lines else 1 for name in self._terms]
        return {name: width * time for name, width, time in zip(self._terms, self._widths, times, strict=True)}

    def buffers(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{key}": tensor
            for name, line in self._lines.items()
            for key, tensor in (("ring", line.ring), ("lag", line.lag))
        }


class _Source:
    """A function with its parameters."""

    def __init__(self, name: str, term: ObservationTerm) -> None:
        self.name = name
        self._func: Callable[..., torch.Tensor] = term.func
        self._params = term.params
        self._key = (term.func, repr(sorted(term.params.items())))

    def read(self, env: "Env", cache: dict[Any, torch.Tensor]) -> torch.Tensor:
        if self._key not in cache:
            try:
                cache[self._key] = self._func(env, **self._params)
            except Exception as error:
                name_term(error, self.name)
                raise
        return cache[self._key]
