"""What terms add up over all worlds, of all ranks."""

from collections.abc import Callable
from typing import Any

import torch


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
    """Sums by name, made when they are first asked for, and part of a checkpoint."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, SharedSum] = {}
        self._saved: dict[str, dict[str, torch.Tensor]] = {}

    def get(self, name: str, size: int, keep: float) -> SharedSum:
        """Return the sum of this name."""
        if name not in self._sums:
            with torch.inference_mode(mode=False):  # it must outlive the rollout in which it is asked for
                self._sums[name] = SharedSum(size, keep, self._device)
                self._load(name)
        return self._sums[name]

    def merge(self, add_over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Take into the totals what all ranks have added; all ranks must have the same sums."""
        if not self._sums:
            return
        sums = list(self._sums.values())
        added = add_over_ranks(torch.cat([shared.pending for shared in sums]))
        for shared, part in zip(sums, added.split([len(shared.total) for shared in sums]), strict=True):
            shared.total.mul_(shared.keep).add_(part)
            shared.pending.zero_()

    def totals(self) -> dict[str, torch.Tensor]:
        """Return what is the same on all ranks, by name."""
        return {name: shared.total for name, shared in self._sums.items()}

    def state_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return copies of all sums."""
        now = {
            name: {"total": shared.total.clone(), "pending": shared.pending.clone()}
            for name, shared in self._sums.items()
        }
        return self._saved | now

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state. A sum that it lacks or has in another size starts at zero."""
        self._saved = dict(state)
        for name in self._sums:
            self._load(name)

    def _load(self, name: str) -> None:
        shared, saved = self._sums[name], self._saved.pop(name, None)
        for key in ("total", "pending"):
            tensor = getattr(shared, key)
            if saved is not None and saved[key].shape == tensor.shape:
                tensor.copy_(saved[key])
            else:
                tensor.zero_()
