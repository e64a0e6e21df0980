"""Process 1 of a container, to which the kernel delivers no signal that it has no handler for."""

import os
import signal
import threading
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that would end any other process; Python handles SIGINT itself."""


def obey_signals_as_process_1() -> None:
    """Have signals end this process, if it is process 1, as they would end any other.

    To be called before the imports that take seconds. Otherwise the SIGTERM with which a container is stopped while it
    starts is lost, and SIGKILL follows. What handles a signal already stays.
    """
    if os.getpid() != 1 or threading.current_thread() is not threading.main_thread():
        return
    for signum in _SIGNALS:
        if signal.getsignal(signum) == signal.SIG_DFL:
            signal.signal(signum, _end)


def _end(signum: int, _: Any) -> None:
    os._exit(128 + signum)
