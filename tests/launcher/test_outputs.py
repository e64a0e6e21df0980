"""What ranks write, on the console and in the files."""

import contextlib
import fcntl
import io
import os
import pty
import re
import resource
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from mjtrain.launcher.job.outputs import Console, LogFile, RankOutput
from support.commands import start
from support.machine import patience, wait_until

PROGRAM = """
import os, sys, warnings
import mjtrain

def speak(context):
    size = os.get_terminal_size() if context.is_main and sys.stdout.isatty() else None
    print(f"\\x1b[31mred\\x1b[0m {context.rank} {sys.stdout.isatty()} {size and (size.columns, size.lines)}")
    os.write(1, b"first\\rsecond\\n")
    if context.rank == 1:
        warnings.warn("the floor is wet")
    else:
        print("to standard error", file=sys.stderr)
    sys.stdout.write("no line feed at the end")

mjtrain.launch(speak, launch=mjtrain.LaunchConfig(gpu_ids=None, num_workers=2, torchrunx_log_dir="logs"))
"""


def read_logs(folder: Path) -> dict[str, list[str]]:
    return {
        path.name: [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line) for line in path.read_text().splitlines()]
        for path in folder.glob("logs/*/*.log")
    }


@pytest.mark.process
def test_pipes_get_rank_0_as_it_is_and_the_warnings_of_others(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"\x1b[31mred\x1b[0m 0 False None\nfirst\rsecond\nno line feed at the end"
    lines = done.stderr.decode().splitlines()
    assert "to standard error" in lines
    (warning,) = (line for line in lines if line != "to standard error")
    assert re.fullmatch(r"\[rank 1\] <string>:\d+: UserWarning: the floor is wet", warning)
    logs = read_logs(tmp_path)
    assert set(logs) == {"localhost.log", "localhost[0].log", "localhost[1].log"}
    assert logs["localhost.log"] == []
    assert sorted(logs["localhost[0].log"]) == sorted(
        ["red 0 False None", "second", "no line feed at the end", "to standard error"]
    )
    assert "no line feed at the end" in logs["localhost[1].log"]
    assert any("the floor is wet" in line for line in logs["localhost[1].log"])


@pytest.mark.process
def test_a_terminal_stays_one_for_rank_0(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    command = [sys.executable, "-c", PROGRAM]
    with os.fdopen(theirs, "wb") as terminal:
        process = start(command, cwd=tmp_path, environ=os.environ, stdout=terminal, stderr=terminal)
    shown = b""
    while select.select([ours], [], [], patience(60))[0]:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # all writers have closed it
            break
    os.close(ours)
    assert process.wait(patience(60)) == 0
    assert b"\x1b[31mred\x1b[0m 0 True (77, 33)\r\n" in shown
    assert b"no line feed at the end" in shown
    assert "red 0 True (77, 33)" in read_logs(tmp_path)["localhost[0].log"]


WITHOUT_STREAMS = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]


@pytest.mark.process
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_training_without_standard_streams(tmp_path: Path, ranks: int) -> None:
    command = [str(Path(sys.executable).parent / "train"), "Cartpole-Balance", "--gpu-ids", "None", "--num-envs", "8"]
    command += ["--num-workers", str(ranks), "--max-iterations", "2", "--logger", "none"]
    done = subprocess.run([*WITHOUT_STREAMS, *command], cwd=tmp_path, timeout=patience(60), check=False)
    assert done.returncode == 0
    (metrics,) = tmp_path.glob("logs/*/*/metrics.jsonl")
    assert metrics.read_text().count('"iteration"') == 2


@pytest.mark.process
def test_a_function_without_standard_streams(tmp_path: Path) -> None:
    done = subprocess.run(
        [*WITHOUT_STREAMS, sys.executable, "-c", PROGRAM], cwd=tmp_path, timeout=patience(60), check=False
    )
    assert done.returncode == 0
    logs = read_logs(tmp_path)
    assert "red 0 False None" in logs["localhost[0].log"]
    assert any("the floor is wet" in line for line in logs["localhost[1].log"])


def test_a_log_whose_file_system_does_not_respond_holds_up_nothing(tmp_path: Path) -> None:
    """A FIFO without a reader blocks whoever opens it, as a network folder does while its server is away."""
    console = Console()
    os.mkfifo(tmp_path / "log")
    log = LogFile(tmp_path / "log", console)
    for line in (b"one", b"two"):
        log.write(line)
    log.close(0.0)
    with (tmp_path / "log").open() as reader:
        lines = [line.split(maxsplit=2)[2] for line in reader]
    assert lines == ["one\n", "two\n"]
    console.close(patience(5.0))


@pytest.mark.parametrize("rank", [0, 1])
def test_pipes_are_closed_where_the_next_one_cannot_be_opened(rank: int) -> None:
    """The supervisor tries again for a while, and would soon have no descriptor left."""
    console, limits = Console(), resource.getrlimit(resource.RLIMIT_NOFILE)

    def count_free(stack: contextlib.ExitStack) -> int:
        free = 0
        with contextlib.suppress(OSError):
            while True:
                stack.callback(os.close, os.dup(0))
                free += 1
        return free

    with contextlib.ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
        left = [os.dup(0), os.dup(0)]
        count_free(files)
        for descriptor in left:
            os.close(descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            RankOutput(rank, console, None)
        with contextlib.ExitStack() as again:
            assert count_free(again) == 2
    console.close(patience(5.0))


def test_lines_that_a_log_cannot_hold_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console()
    os.mkfifo(tmp_path / "log")
    log = LogFile(tmp_path / "log", console)
    for _ in range(20):
        log.write(b"x" * (1 << 20))
    with (tmp_path / "log").open() as reader:
        for _ in range(16):
            assert len(reader.readline()) > 1 << 20
        wait_until(lambda: log._pending == 0, "what was queued is written")
        log.write(b"y")
        log.close(0.0)
        rest = reader.read().splitlines()
    assert rest[0] == "(4 lines are missing here)"
    assert rest[1].endswith(" y")
    console.close(patience(5.0))
    assert capsys.readouterr().err.count("does not respond; lines are left out until it does") == 1


def test_a_log_that_cannot_be_opened_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    log = LogFile(tmp_path / "nowhere" / "log", console)
    for line in (b"one", b"two"):
        log.write(line)
    log.close(patience(5.0))
    console.close(patience(5.0))
    assert capsys.readouterr().err.count("cannot be written: No such file or directory") == 1


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
