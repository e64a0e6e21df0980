"""Tensors of an environment that terms may read and must not write."""

from collections.abc import Mapping
from operator import attrgetter

import torch

from mjtrain.runtime.errors import RequestError

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
            if tensor is watched and not torch.equal(tensor.nan_to_num(), value.nan_to_num()):
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
