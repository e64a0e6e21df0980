"""What the policy sees: groups of named terms."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from mjtrain.config import ObservationTerm
from mjtrain.env.core import DelayLine, EnvCore, line_buffers
from mjtrain.env.sampling import shift_images
from mjtrain.env.term_result import ObservationSource, check_results
from mjtrain.runtime.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Observations:
    """Evaluates the observation groups. A function that several groups share is called once per env step."""

    def __init__(self, groups: dict[str, dict[str, ObservationTerm]], core: EnvCore, *, noise: bool) -> None:
        self._terms = groups
        self._core = core
        self._with_noise = noise
        self._groups: dict[str, _FlatGroup | _ImageGroup] = {}

    def start(self, env: "Env") -> None:
        """Call each function once to find out what it returns: columns or images."""
        self._core.read_only.mark()
        cache: dict[Any, torch.Tensor] = {}
        for name, terms in self._terms.items():
            sources = [
                ObservationSource(f"observations.{name}.{term_name}", term, self._core)
                for term_name, term in terms.items()
            ]
            readings = [source.read(env, cache) for source in sources]
            images = [reading.ndim == 4 for reading in readings]
            if any(images) and not all(images):
                image, flat = sources[images.index(True)].name, sources[images.index(False)].name
                raise RequestError(f"--env.{image}: returns images and {flat} does not; put images into another group")
            make = _ImageGroup if any(images) else _FlatGroup
            self._groups[name] = make(name, terms, sources, readings, self._core, noise=self._with_noise)

    def compute(self, env: "Env", fresh: torch.Tensor, advance: bool = True) -> dict[str, torch.Tensor]:
        """Observe.

        Args:
            fresh: Worlds whose episode has just begun. Boolean, shape (num_envs,).
            advance: Whether an env step has passed for the other worlds.

        Returns:
            One tensor per group, its terms side by side in order. Shape (num_envs, size) each, or (num_envs, channels,
            height, width) of images.
        """
        self._core.read_only.mark()
        cache: dict[Any, torch.Tensor] = {}
        return {name: group.compute(env, fresh, advance, cache) for name, group in self._groups.items()}

    def widths(self, group: str) -> dict[str, int]:
        """Return how many columns or channels each term of a group has, its history included, in their order."""
        return self._groups[group].widths()

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return {
            f"{name}.{key}": tensor for name, group in self._groups.items() for key, tensor in group.buffers().items()
        }


def choose_by_world(
    mask: torch.Tensor, those: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return those observations in the masked worlds, and the others in the rest. Boolean mask, shape (num_envs,)."""
    return {
        name: torch.where(mask.view(-1, *[1] * (values.ndim - 1)), those[name], values)
        for name, values in others.items()
    }


class _Group:
    """Terms side by side, some of them with a delay or a history."""

    def __init__(
        self,
        name: str,
        terms: dict[str, ObservationTerm],
        sources: list[ObservationSource],
        readings: list[torch.Tensor],
        core: EnvCore,
        *,
        noise: bool,
    ) -> None:
        """Check that the terms fit together, by the readings that their functions returned."""
        self._terms, self._sources, self._core, self._with_noise = terms, sources, core, noise
        self._shapes = [tuple(reading.shape[1:]) for reading in readings]
        self._dtypes = [reading.dtype for reading in readings]
        self._prepare({f"--env.observations.{name}.{term_name}": term for term_name, term in terms.items()})
        self._lines = {
            name: DelayLine(term.delay, shape, core, history=term.history, dtype=dtype)
            for (name, term), shape, dtype in zip(terms.items(), self._shapes, self._dtypes, strict=True)
            if term.delay[1] or term.history > 1
        }

    def _prepare(self, terms: dict[str, ObservationTerm]) -> None:
        """Check the terms, which are given by their flags, and compute what is the same in every env step."""
        raise NotImplementedError

    def widths(self) -> dict[str, int]:
        """Return how many columns or channels each term has, its history included, in their order."""
        return {
            name: shape[0] * term.history for (name, term), shape in zip(self._terms.items(), self._shapes, strict=True)
        }

    def buffers(self) -> dict[str, torch.Tensor]:
        return line_buffers(self._lines)


class _FlatGroup(_Group):
    """Terms side by side. Noise, scale and clip are applied to all of them at once."""

    def _prepare(self, terms: dict[str, ObservationTerm]) -> None:
        for flag, term in terms.items():
            if term.shift:
                raise RequestError(f"{flag}.shift {term.shift}: is for images only")
        self._widths = [shape[0] for shape in self._shapes]
        largest = self._row([term.noise for term in terms.values()])
        scale = self._row([term.scale for term in terms.values()])
        self._noise = largest if self._with_noise and largest.any() else None
        self._scale = scale if (scale != 1.0).any() else None
        bounds = [term.clip or (-torch.inf, torch.inf) for term in terms.values()]
        self._clips = any(term.clip for term in terms.values())
        self._low, self._high = (self._row([bound[side] for bound in bounds]) for side in (0, 1))

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


class _ImageGroup(_Group):
    """Images of one size, stacked along their channels; uint8 is divided by 255 where another term is float32."""

    def _prepare(self, terms: dict[str, ObservationTerm]) -> None:
        first, size = next(iter(self._terms)), self._shapes[0][1:]
        for (flag, term), shape, dtype in zip(terms.items(), self._shapes, self._dtypes, strict=True):
            if shape[1:] != size:
                raise RequestError(
                    f"{flag}: has images of height and width {shape[1:]}, and {first} of {size}; put it in a separate "
                    "group"
                )
            if dtype == torch.uint8 and (term.scale != 1.0 or term.clip is not None):
                raise RequestError(f"{flag}: is an image of uint8, which takes no scale and no clip")
            if not 0 <= term.shift < min(size):
                raise RequestError(f"{flag}.shift {term.shift}: give 0 to {min(size) - 1} pixels")
        self._dtype = torch.uint8 if set(self._dtypes) == {torch.uint8} else torch.float32

    def compute(self, env: "Env", fresh: torch.Tensor, advance: bool, cache: dict[Any, torch.Tensor]) -> torch.Tensor:
        """Return the channels of all terms side by side. Shape (num_envs, channels, height, width)."""
        readings = [source.read(env, cache) for source in self._sources]
        self._check(readings)
        parts = []
        for (name, term), reading in zip(self._terms.items(), readings, strict=True):
            image = self._change(term, reading)
            if name in self._lines:
                self._lines[name].begin(fresh, image)
                image = self._lines[name].push(image, advance)
            if term.shift and self._with_noise:
                image = shift_images(image, term.shift, self._core.rng)
            if image.dtype != self._dtype:
                image = image / 255.0
            parts.append(image)
        return torch.cat(parts, dim=1)  # a copy even of one part, which the next frame will overwrite

    def _check(self, readings: list[torch.Tensor]) -> None:
        for source, reading, shape, dtype in zip(self._sources, readings, self._shapes, self._dtypes, strict=True):
            if reading.shape != (self._core.num_envs, *shape) or reading.dtype != dtype:
                check_results("observation", [source.name], [reading], self._core)
                raise TypeError(
                    f"--env.{source.name}: is {tuple(reading.shape[1:])} of {reading.dtype} now, and was {shape} of "
                    f"{dtype}"
                )

    def _change(self, term: ObservationTerm, image: torch.Tensor) -> torch.Tensor:
        if term.noise and self._with_noise:
            noise = torch.rand(image.shape, generator=self._core.rng, device=self._core.device)
            noisy = image + term.noise * (2 * noise - 1)
            image = noisy.round().clamp(0, 255).to(torch.uint8) if image.dtype == torch.uint8 else noisy
        if term.scale != 1.0:
            image = image * term.scale
        return image if term.clip is None else image.clamp(*term.clip)
