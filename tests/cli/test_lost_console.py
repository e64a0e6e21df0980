"""Commands whose console is gone: a pipe without a reader, as in `COMMAND | head`, or a full disk."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mjtrain.cli.command import run_command
from mjtrain.cli.main import main
from mjtrain.training.reporting.console import ProgressDisplay

PLACES = ["no reader", "full disk"]


@contextlib.contextmanager
def lost_stdout(place: str) -> Iterator[None]:
    """Make standard output a stream that takes nothing."""
    if place == "no reader":
        read, write = os.pipe()
        os.close(read)
    else:
        write = os.open("/dev/full", os.O_WRONLY)
    before = sys.stdout
    sys.stdout = io.TextIOWrapper(io.FileIO(write, "w", closefd=False), write_through=True)
    try:
        yield
    finally:
        sys.stdout = before
        os.close(write)


def print_much(done: list[int]) -> None:
    for line in range(3):
        print("x" * 10_000, line, flush=True)  # noqa: T201
        done.append(line)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("prints_result", [True, False])
def test_a_command_does_all_of_its_work(place: str, capsys: pytest.CaptureFixture[str], *, prints_result: bool) -> None:
    done: list[int] = []
    status = 0
    with lost_stdout(place):
        try:
            run_command("runs", lambda _: print_much(done), [], prints_result=prints_result)
        except SystemExit as stop:
            status = stop.code
    assert done == [0, 1, 2]
    assert status == (1 if place == "full disk" and prints_result else 0)
    said = "runs: standard output could not be written (No space left on device)\n" if place == "full disk" else ""
    assert capsys.readouterr().err == said


@contextlib.contextmanager
def ascii_stdout(file: Path) -> Iterator[None]:
    """Make standard output a stream of ASCII, as with PYTHONIOENCODING=ascii."""
    before = sys.stdout
    sys.stdout = io.TextIOWrapper(io.FileIO(file, "w"), encoding="ascii", write_through=True)
    try:
        yield
    finally:
        sys.stdout.close()
        sys.stdout = before


def test_what_a_console_cannot_show_is_escaped(tmp_path: Path) -> None:
    with ascii_stdout(tmp_path / "out"):
        run_command("runs", lambda _: print("läufe …"), [])  # noqa: T201
    assert (tmp_path / "out").read_text() == "l\\xe4ufe \\u2026\n"
    with ascii_stdout(tmp_path / "out"):  # from Python there is no command
        with ProgressDisplay(4) as display:
            display.tell("läufe …")
        assert (tmp_path / "out").read_text().startswith("l\\xe4ufe \\u2026\n")


COMMANDS = [["--help"], ["sweep", "--help"], ["list-tasks"], ["runs", "--log-root", "."]]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_every_command_ends_without_a_traceback(
    place: str, command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with lost_stdout(place), contextlib.suppress(SystemExit):
        main(command)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["runs --help", "train --help", "train --version", "train Cartpole-Balance --dry-run"]
)
def test_help_that_cannot_be_written_is_a_failure(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with lost_stdout("full disk"), pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == 1
    assert "standard output could not be written" in capsys.readouterr().err


@pytest.mark.parametrize("place", PLACES)
def test_a_training_of_a_python_program_continues(place: str) -> None:
    with lost_stdout(place), ProgressDisplay(10) as display:
        for iteration in (1, 2):
            row = {"iteration": iteration, "env_steps_per_second": 1.0, "mean_reward": 1.0}
            display.update({**row, "mean_episode_length": 1.0})
            display.warn("a warning")
            display.tell("a line")
