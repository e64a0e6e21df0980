"""The loop of the launcher, and what it asks the system."""

import os
import signal
import subprocess
import sys
import time

from mjtrain.launcher.ipc.event_loop import EventLoop
from mjtrain.launcher.ipc.processes import is_ending


def test_a_signal_waits_for_the_end_of_a_callback() -> None:
    order = []
    read, write = os.pipe()

    def receive() -> None:
        os.read(read, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        order.append("callback")

    with EventLoop(order.append) as loop:
        loop.watch(read, receive)
        os.write(write, b"x")
        while len(order) < 2:
            loop.turn()
        loop.unwatch(read)
        loop.unwatch(read)  # a second time does nothing
    assert order == ["callback", signal.SIGTERM]
    os.close(read)
    os.close(write)


def test_a_turn_tells_how_long_the_process_was_stopped() -> None:
    with EventLoop(print) as loop:
        assert loop.turn() == 0.0
        child = subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 2.5; kill -CONT {os.getpid()}"])
        paused_s = 0.0
        while child.poll() is None:
            paused_s = max(paused_s, loop.turn())
        assert max(paused_s, loop.turn()) > 2.0


def test_a_process_that_is_ending() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not is_ending(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_ending(child.pid), "a zombie"
    child.wait()
    assert is_ending(child.pid), "no such process"
