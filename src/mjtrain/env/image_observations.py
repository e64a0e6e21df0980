"""Observation groups of images: channels side by side, with noise, shift, history and delay."""

from typing import TYPE_CHECKING, Any

import torch

from mjtrain.config import ObservationTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.delay import DelayLine
from mjtrain.env.term_result import ObservationSource, check_results
from mjtrain.runtime.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class ImageGroup:
    """Images of one height and width, stacked along their channels.

    uint8 stays uint8, of which a network sees value / 255. Where terms of uint8 and of float32 meet in a group, the
    group is float32 and the uint8 ones are divided by 255.
    """

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
        """Check that the terms fit together.

        Args:
            readings: What the functions returned, shape (num_envs, channels, height, width) each.
        """
        self._terms = terms
        self._core = core
        self._with_noise = noise
        self._sources = sources
        self._shapes = [tuple(reading.shape[1:]) for reading in readings]
        self._dtypes = [reading.dtype for reading in readings]
        first = next(iter(terms))
        for (term_name, term), shape, dtype in zip(terms.items(), self._shapes, self._dtypes, strict=True):
            flag = f"--env.observations.{name}.{term_name}"
            if shape[1:] != self._shapes[0][1:]:
                raise RequestError(
                    f"{flag}: has images of height and width {shape[1:]}, and {first} of {self._shapes[0][1:]}; put it "
                    "in a separate group"
                )
            if dtype == torch.uint8 and (term.scale != 1.0 or term.clip is not None):
                raise RequestError(f"{flag}: is an image of uint8, which takes no scale and no clip")
            if not 0 <= term.shift < min(shape[1:]):
                raise RequestError(f"{flag}.shift {term.shift}: give 0 to {min(shape[1:]) - 1} pixels")
        self._dtype = torch.uint8 if set(self._dtypes) == {torch.uint8} else torch.float32
        self._lines = {
            term_name: DelayLine(term.delay, shape, core, history=term.history, dtype=dtype)
            for (term_name, term), shape, dtype in zip(terms.items(), self._shapes, self._dtypes, strict=True)
            if term.delay[1] or term.history > 1
        }
        self._worlds = torch.arange(core.num_envs, device=core.device)
        height, width = self._shapes[0][1:]
        self._rows = torch.arange(height, device=core.device)
        self._columns = torch.arange(width, device=core.device)

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
                image = self._shift(image, term.shift)
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

    def _shift(self, image: torch.Tensor, most: int) -> torch.Tensor:
        """Move each world's image by a random number of pixels in both directions, repeating its border."""
        size = (2, self._core.num_envs, 1)
        drawn = torch.randint(-most, most + 1, size, generator=self._core.rng, device=self._core.device)
        rows = (self._rows + drawn[0]).clamp(0, len(self._rows) - 1)
        columns = (self._columns + drawn[1]).clamp(0, len(self._columns) - 1)
        return image[self._worlds[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    def widths(self) -> dict[str, int]:
        """Return how many channels each term has, its history included, in their order."""
        return {
            name: shape[0] * (self._lines[name].history if name in self._lines else 1)
            for name, shape in zip(self._terms, self._shapes, strict=True)
        }

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return {
            f"{name}.{key}": tensor
            for name, line in self._lines.items()
            for key, tensor in (("ring", line.ring), ("lag", line.lag))
        }
