"""What terms add up over all worlds, of all ranks."""

import json
from collections.abc import Callable, Iterable
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
                tensor, saved = getattr(shared, key), state.get(name, {}).get(key)
                if saved is not None and saved.shape == tensor.shape:
                    tensor.copy_(saved)
                else:
                    tensor.zero_()

    def _describe(self, name: str) -> tuple[int, float]:
        return len(self._sums[name].total), self._sums[name].keep
