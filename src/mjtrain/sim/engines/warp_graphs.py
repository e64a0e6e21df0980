"""Graphs of Warp kernels, recorded once and replayed without Python."""

from collections.abc import Callable, Hashable, Sequence

import torch
import warp as wp


class CapturedCalls:
    """Calls of kernels as captured graphs, on a GPU and on a CPU.

    A captured call reads and writes the arrays that it was recorded with. Call `clear` when one of them is replaced.
    """

    def __init__(self, device: wp.Device, kept: Sequence[torch.Tensor]) -> None:
        """Take what a first call must not change: on a GPU, recording a call executes it once before."""
        self._device = device
        self._kept = tuple(kept)
        self._graphs: dict[Hashable, wp.Graph] = {}

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Call a function that launches kernels, on torch's current stream.

        Another function, or another number of repetitions, needs another key.
        """
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._capture(function)
        launch_graph(graph)

    def clear(self) -> None:
        """Drop the graphs; the next calls are recorded again."""
        self._graphs.clear()

    def _capture(self, function: Callable[[], None]) -> wp.Graph:
        """Record the kernels of a call, leaving what is to be kept as it was."""
        before = [tensor.clone() for tensor in self._kept]
        with wp.ScopedDevice(self._device):
            graph = capture_graph(function)
        for tensor, original in zip(self._kept, before, strict=True):
            tensor.data.copy_(original)  # by data: it is not a write that counts, see `ReadOnly`
        return graph


def capture_graph(function: Callable[[], None]) -> wp.Graph:
    """Record the kernels that a function launches on Warp's current device; a GPU executes them once before."""
    if wp.get_device().is_cuda:
        wp.synchronize_device()  # torch may be writing on another stream what the function reads
        function()  # compiles and loads the kernels, which a capture on a GPU cannot
        wp.synchronize_device()
    with wp.ScopedCapture() as capture:
        function()
    assert capture.graph is not None
    return capture.graph


def launch_graph(graph: wp.Graph) -> None:
    """Replay a graph on torch's current stream, so that it comes after what torch has queued and before what follows.

    Warp's own stream does as well while torch is on its default stream: the driver has both wait for each other. A
    stream that was made by `torch.cuda.Stream` waits for neither.
    """
    if not graph.device.is_cuda:
        wp.capture_launch(graph)
        return
    current = torch.cuda.current_stream(wp.device_to_torch(graph.device))
    is_default = current.cuda_stream == 0
    with wp.ScopedDevice(graph.device):
        wp.capture_launch(graph, None if is_default else wp.stream_from_torch(current))
