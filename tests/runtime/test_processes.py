"""Which processes are ending, and that the main thread of a process gets a signal before it continues."""

import os
import signal
import subprocess
import sys
from pathlib import Path

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
