"""Which processes are ending, where a child finds modules, and that a signal reaches a main thread first."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from mjtrain.runtime.processes import is_ending, send_signal, signal_main_threads
from support.machine import wait_until

STOPS = """
import faulthandler, signal, sys, threading, time
faulthandler.register(signal.SIGRTMIN + 7, open(sys.argv[1], "w"), all_threads=True)

def idle():
    while True:
        time.sleep(0.001)

def stop():
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

threading.Thread(target=idle, daemon=True).start()
stop()
while True:
    pass
"""


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def stop_and_continue(stacks: Path) -> str:
    """Return the stacks that a stopped process writes when it continues."""
    with subprocess.Popen([sys.executable, "-c", STOPS, stacks]) as process:
        try:
            wait_until(lambda: is_stopped(process.pid), "stopped")
            signal_main_threads([process.pid], signal.SIGRTMIN + 7)
            send_signal([process.pid], signal.SIGCONT)
            wait_until(lambda: "in <module>" in stacks.read_text(), "stacks")
        finally:
            process.kill()
    return stacks.read_text()


def test_a_stopped_process_writes_the_stack_of_where_it_was_stopped(tmp_path: Path) -> None:
    for attempt in range(10):  # where any thread may take the signal, about half of them show another place
        assert "in stop" in stop_and_continue(tmp_path / f"stacks_{attempt}")


def test_a_process_that_is_ending() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not is_ending(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_ending(child.pid), "a zombie"
    child.wait()
    assert is_ending(child.pid), "no such process"


SHOW = "import json, os, sys; {}; print(json.dumps([entry or os.getcwd() for entry in sys.path]))"
TELL = SHOW.format("from mjtrain.runtime.processes import module_path; {}; print(json.dumps(module_path()))")


def show(python: list[str], code: str, module_path: str, folder: Path) -> list[Any]:
    """Return what the lines say that an interpreter prints."""
    done = subprocess.run(
        [*python, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": module_path},
        stdout=subprocess.PIPE,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("change", "has_default"),
    [
        ("pass", False),
        ("sys.path.insert(0, '/first')", False),
        ("sys.path.append('/last')", True),
        ("sys.path.remove(sysconfig.get_path('purelib'))", True),
    ],
)
def test_a_child_finds_what_its_parent_finds_in_the_same_order(change: str, has_default: bool, tmp_path: Path) -> None:
    """Another version of Python cannot start with the standard library of this one in PYTHONPATH."""
    before = os.pathsep.join([str(tmp_path / "here"), *(entry for entry in sys.path if entry.endswith("/src"))])
    paths, given = show([sys.executable], TELL.format(f"import sysconfig; {change}"), before, tmp_path)[::-1]
    (found,) = show([sys.executable, "-P"], SHOW.format("pass"), given, tmp_path)
    assert found[: len(paths)] == paths
    assert (sysconfig.get_path("stdlib") in given.split(os.pathsep)) == has_default
    assert len(found) == len(paths) or has_default
