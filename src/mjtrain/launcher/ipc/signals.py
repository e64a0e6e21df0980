"""SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU while a job runs, and the loop in which a launcher waits."""

import contextlib
import os
import resource
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from mjtrain.runtime.errors import StoppedError

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)

in_forks: list[Callable[[], None]] = []
"""Called in each fork of this process, the newest first, so that a fork obeys signals as if there were no handlers."""

_masks = threading.local()

_TURN_S = 0.2


def _hold_signals() -> None:
    """Before a fork: block signals, as Python drops those that reach a fork in its first moment."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS) if in_forks else None


def _release_signals() -> None:
    if _masks.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _give_up_signals() -> None:
    while in_forks:
        in_forks.pop()()
    _release_signals()


os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_give_up_signals)


class StopSignals:
    """Calls back for every signal that asks for an end; use as a context manager.

    Only the main thread of a process can handle signals; elsewhere this does nothing. SIGINT counts even where the
    process began with it ignored, as shells do with jobs in the background; SIGHUP does not, as that is what nohup
    asks for.
    """

    def __init__(self, callback: Callable[[int], None]) -> None:
        self._callback = callback
        self._before: dict[int, Any] = {}
        self.replaced = False
        """Whether something else handled SIGINT at the end."""

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for signum in STOP_SIGNALS:
                if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
                    continue
                self._before[signum] = signal.signal(signum, self._handle)
            in_forks.append(self._give_up)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.replaced = bool(self._before) and signal.getsignal(signal.SIGINT) != self._handle
        if self._give_up in in_forks:  # not in a fork
            in_forks.remove(self._give_up)
        self._restore(self._before)

    def _give_up(self) -> None:
        """In a fork: restore the handlers, except of signals that the function handles itself."""
        self._restore([signum for signum in self._before if signal.getsignal(signum) == self._handle])

    def _restore(self, signums: Iterable[int]) -> None:
        for signum in signums:
            handler = self._before[signum]
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def _handle(self, signum: int, _: FrameType | None) -> None:
        stop_repeats(signum)
        self._callback(signum)


def stop_repeats(signum: int) -> None:
    """Have SIGXCPU come once: the kernel repeats it with every second of CPU time beyond the soft limit."""
    if signum == signal.SIGXCPU:
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


class NotSavedError(SystemExit):
    """A job was asked to stop, and had not finished when its grace time was over; `code` is a line that says so."""

    def __init__(self, signum: int, grace_s: float) -> None:
        name = signal.Signals(signum).name
        super().__init__(f"stopped by {name}, but not saved within {grace_s:g} s (--stop-grace-s)")
        self.signum = signum

    def add(self, words: str) -> None:
        """Add to the line."""
        self.code = f"{self.code}; {words}"
        self.args = (self.code,)


def leave(signum: int) -> NoReturn:
    """End as a signal would have it: KeyboardInterrupt for SIGINT, else StoppedError with status 128 + signum."""
    if signum == signal.SIGINT:
        error = KeyboardInterrupt()
        vars(error)["signum"] = signum
        raise error
    raise StoppedError(128 + signum)


def is_stop(error: BaseException) -> bool:
    """Whether `leave` has raised an exception; functions of users may raise KeyboardInterrupt without a signal.

    A KeyboardInterrupt that a function raises while it handles one of `leave` counts too.
    """
    if isinstance(error, KeyboardInterrupt) and "signum" not in vars(error) and error.__context__ is not None:
        return is_stop(error.__context__)
    return isinstance(error, StoppedError) or (isinstance(error, KeyboardInterrupt) and "signum" in vars(error))


@contextlib.contextmanager
def wakeup_pipe() -> Iterator[int]:
    """Give a descriptor that becomes readable with every signal, so that a select takes notice."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read
    finally:
        if before is not None:
            signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


class EventLoop:
    """Calls back when a file becomes readable or a stop signal has arrived; use as a context manager.

    Every callback runs in `turn`, in the thread that calls it, and after the one before has returned. A signal
    therefore never interrupts a callback that holds a lock.
    """

    def __init__(self, on_stop_signal: Callable[[int], None]) -> None:
        self._on_stop_signal = on_stop_signal
        self._signals: deque[int] = deque()
        self._selector = selectors.DefaultSelector()
        self._stack = contextlib.ExitStack()
        self._turn_ended_s = 0.0

    def __enter__(self) -> "EventLoop":
        with contextlib.ExitStack() as stack:
            stack.callback(self._selector.close)
            wakeup = stack.enter_context(wakeup_pipe())
            stack.enter_context(StopSignals(self._signals.append))
            self.watch(wakeup, lambda: os.read(wakeup, 4096))
            self._stack = stack.pop_all()
        self._turn_ended_s = time.monotonic()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def watch(self, file: "FileDescriptorLike", callback: Callable[[], Any]) -> None:
        """Call back each time a file is readable."""
        self._selector.register(file, selectors.EVENT_READ, callback)

    def unwatch(self, file: "FileDescriptorLike") -> None:
        """Stop watching a file, if it is watched; do this before it is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(file)

    def turn(self) -> float:
        """Wait for a moment, handle all that has arrived, and return for how many seconds this process was stopped."""
        for key, _ in self._selector.select(_TURN_S):
            if key.fd in self._selector.get_map():  # an earlier callback of this turn may have closed it
                key.data()
        while self._signals:
            self._on_stop_signal(self._signals.popleft())
        before_s, self._turn_ended_s = self._turn_ended_s, time.monotonic()
        passed_s = self._turn_ended_s - before_s
        return passed_s if passed_s > 10 * _TURN_S else 0.0
