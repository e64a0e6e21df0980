"""Numbers that environments of others tell of themselves, such as sums of their reward terms or causes of ends."""

from collections.abc import Iterable, Mapping

import torch


class EnvLog:
    """Adds up by name what was told in each env step, without waiting for the device.

    Which names there are shows only while the environments are stepped, and ranks may see other ones: `agree_on` tells
    which totals `pop` returns, in which order.
    """

    def __init__(self, device: torch.device) -> None:
        """Start with nothing.

        Args:
            device: Where the totals are wanted.
        """
        self._device = device
        self._names: tuple[str, ...] = ()
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, told: Mapping[str, torch.Tensor]) -> None:
        """Take in what was told in an env step.

        Args:
            told: Numbers by name, of any shape: each counts.
        """
        for name, values in told.items():
            total = values.double().sum()
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] = self._counts.get(name, 0) + values.numel()

    def new_names(self) -> list[str]:
        """Return the names that were told and not agreed on yet."""
        return [name for name in self._sums if name not in self._names]

    def agree_on(self, names: Iterable[str]) -> None:
        """Add to the names of the totals; all ranks must add the same."""
        self._names = (*self._names, *names)

    def pop(self) -> torch.Tensor:
        """Return sum and count of each name that was agreed on, and forget all. Shape (2 * num_names,), float64."""
        zero = torch.zeros((), dtype=torch.float64)
        sums = [self._sums.get(name, zero).to(self._device) for name in self._names]
        counts = torch.tensor([self._counts.get(name, 0) for name in self._names], dtype=torch.float64)
        self._sums, self._counts = {}, {}
        return torch.cat([torch.stack(sums), counts.to(self._device)]) if sums else counts.to(self._device)

    def summarise(self, totals: list[float]) -> dict[str, float]:
        """Turn totals, of one rank or added over ranks, into means: log/NAME for each name that was told."""
        sums, counts = totals[: len(self._names)], totals[len(self._names) :]
        return {
            f"log/{name}": total / count for name, total, count in zip(self._names, sums, counts, strict=True) if count
        }
