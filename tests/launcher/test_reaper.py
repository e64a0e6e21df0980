"""The reaper ends what belongs to a job, and nothing else."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mjtrain.launcher.ipc.messages import MessageReader, Sender
from mjtrain.runtime.processes import JOB_VARIABLE, list_job_processes, send_signal
from support.machine import many_open_files, patience, wait_until

pytestmark = pytest.mark.process

DEAF = 'trap "" TERM; echo $$ > deaf; sleep 1000'
"""A command that ignores SIGTERM, and so does what it starts."""


@contextmanager
def reaper_of(folder: Path, script: str) -> Iterator[socket.socket]:
    """Start a reaper and below it a script of sh; yields the launcher's end of the socket between them."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "mjtrain.launcher.job.reaper", str(os.getpid()), str(theirs.fileno())]
    with ours, theirs:
        process = subprocess.Popen(
            [*command, str(folder), "sh", "-c", script],
            cwd=folder,
            env={**os.environ, JOB_VARIABLE: folder.name},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        try:
            yield ours
        finally:
            send_signal(list_job_processes(folder.name), signal.SIGKILL)
            process.wait()


def end(control: socket.socket, *, kill: list[int]) -> list[dict[str, Any]]:
    """Order the end of a job; return what the reaper says until it has ended all of it."""
    Sender(control).send("end", kill=kill, wait_s=0.0, grace_s=0.2)
    control.settimeout(patience(3.0))
    reader, said = MessageReader(), []
    while not any(message["kind"] == "gone" for message in said):
        said += [message for message, _ in reader.feed(control.recv(65536))]
    return said


def test_what_ignores_sigterm_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    """By the reaper itself: the launcher would do it only after 20 s."""
    with reaper_of(tmp_path, DEAF) as control:
        wait_until((tmp_path / "deaf").exists, "the command ignores SIGTERM")
        said = end(control, kill=[])
    exit_codes = [message["exit_code"] for message in said if message["kind"] == "exited"]
    assert set(exit_codes) == {-signal.SIGKILL}


def test_a_job_of_a_program_with_many_open_files(tmp_path: Path) -> None:
    """Its end of the socket has the number that it has in the program."""
    with many_open_files(), reaper_of(tmp_path, "sleep 1000") as control:
        said = end(control, kill=[])
    assert {message["exit_code"] for message in said if message["kind"] == "exited"} == {-signal.SIGTERM}


def test_a_process_of_others_is_not_killed(tmp_path: Path) -> None:
    """A rank that has ended may have left its number to another program."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as other:
        try:
            with reaper_of(tmp_path, "sleep 1000") as control:
                end(control, kill=[other.pid])
            assert other.poll() is None
        finally:
            other.kill()
