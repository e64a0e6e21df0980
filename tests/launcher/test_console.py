"""The launcher's own standard streams, where they are no files."""

import io
import os
import sys
from typing import Any

import pytest

from mjtrain.launcher.job.outputs import Console, RankOutput


class CellStream(io.TextIOBase):
    """As the stream of a notebook's kernel: it takes text for the cell; its descriptor is that of another terminal."""

    def __init__(self, descriptor: int) -> None:
        self.text = ""
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def fileno(self) -> int:
        return self._descriptor


def test_a_stream_that_is_no_file_gets_text_and_not_its_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    master, terminal = os.openpty()
    streams: dict[str, Any] = {name: CellStream(terminal) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    console = Console()
    output = RankOutput(0, console, None)
    assert not any(map(os.isatty, output.write_ends)), "rank 0 gets a pipe, as the cell is not a terminal"
    assert len(output.streams) == 2
    os.write(output.write_ends[0], "naïve\n".encode())
    (read,) = [read for read, stream in output.streams.items() if stream == "stdout"]
    output.pump(read)
    console.write("stderr", b"warning\n")
    console.close(10.0)
    output.close_write_ends()
    for descriptor in (*output.streams, terminal):
        os.close(descriptor)
    os.set_blocking(master, False)
    with pytest.raises(OSError):  # noqa: PT011 - nothing was written there
        os.read(master, 1)
    os.close(master)
    assert (streams["stdout"].text, streams["stderr"].text) == ("naïve\n", "warning\n")
