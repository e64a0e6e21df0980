"""Actor and critic learn at the same time, each on half of the threads."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mjtrain.runtime.worker import torch_threads


class SideBySide:
    """Stands in for the critic while an update runs, and computes it in a second thread.

    RSL-RL adds the losses of both networks, and their graphs meet only there. So the critic's forward pass runs beside
    the actor's, and its backward pass from the gradient of its values beside the rest. With a few thousand samples
    two threads are hardly faster than one if they share the work on one network. What is computed does not change.
    """

    def __init__(self, critic: nn.Module, worker: ThreadPoolExecutor) -> None:
        self._critic = critic
        self._worker = worker
        self._values: Future[torch.Tensor] | None = None
        self._backward: Future[None] | None = None

    def begin(self, batches: Callable[..., Generator[Any]]) -> Callable[..., Generator[Any]]:
        """Return a generator of the same mini-batches, whose values are being computed when they come."""

        def begun(*args: Any) -> Generator[Any]:
            for batch in batches(*args):
                self._values = self._worker.submit(self._critic, batch.observations)
                yield batch

        return begun

    def __call__(self, observations: Any, **_: Any) -> torch.Tensor:
        """Return the values of the mini-batch as a leaf, whose gradient starts the critic's backward pass."""
        del observations  # those of the mini-batch
        assert self._values is not None
        values = self._values.result()
        leaf = values.detach().requires_grad_()

        def go_back(gradient: torch.Tensor) -> None:
            self._backward = self._worker.submit(_go_back, values, gradient)

        leaf.register_hook(go_back)
        return leaf

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the critic's parameters when their gradients are there."""
        if self._backward is not None:
            self._backward.result()
            self._backward = None
        return self._critic.parameters()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._critic, name)


def _go_back(values: torch.Tensor, gradient: torch.Tensor) -> None:
    """Do what `values.backward(gradient)` does, for which torch would import sympy first."""
    (values * gradient).sum().backward()


@contextmanager
def side_by_side(critic: nn.Module) -> Generator[SideBySide]:
    """Give half of torch's threads to a stand-in for the critic, until the context ends."""
    num_threads = torch.get_num_threads()
    half = num_threads // 2
    with (
        torch_threads(num_threads - half),
        ThreadPoolExecutor(1, "critic", lambda: torch.set_num_threads(half)) as worker,
    ):
        yield SideBySide(critic, worker)
