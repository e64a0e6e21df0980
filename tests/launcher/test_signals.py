"""The loop of the launcher: signals wait for callbacks, and a stop of the process is noticed."""

import os
import signal
import subprocess
import sys
import time

from mjtrain.launcher.ipc.signals import EventLoop
from support.machine import patience, read_proc, wait_until


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


STOPPED = """
import os, signal, time
from mjtrain.launcher.ipc.signals import EventLoop

began_s = time.monotonic()
with EventLoop(print) as loop:
    told_s = loop.turn()
    print(told_s == 0.0 or told_s <= time.monotonic() - began_s > 2.0)  # a machine that busy counts as a stop
    os.kill(os.getpid(), signal.SIGSTOP)
    print(loop.turn())
"""


def test_a_turn_tells_how_long_the_process_was_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: read_proc(process.pid, "stat").rpartition(b")")[2].split()[:1] == [b"T"], "it has stopped")
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=patience(10))
    before, paused_s = out.split()
    assert before == "True"
    assert float(paused_s) >= 2.5
