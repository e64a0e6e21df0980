"""One rank, in the calling process: the only one, or one of a job that something else has started."""

import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mjtrain.launcher.base import LaunchRequest
from mjtrain.launcher.failure import Failure, shorten, write_crash_file
from mjtrain.launcher.faults import make_heartbeat
from mjtrain.launcher.ipc.signals import NotSavedError, StopSignals, is_stop, leave
from mjtrain.launcher.rank.progress import TICK_S, PhaseLimits, Progress
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import RequestError, summarise
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.standard_streams import try_to_write_to_stderr

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

INTERRUPT_GRACE_S = 5.0
"""Time that a function which hangs has to come back when it is interrupted."""

_RECORD_PATIENCE_S = 30.0
"""Time to record that nothing was saved; the file system may be why."""

_running: dict[int, Any] = {}
"""The lock of each process, by its pid: a process that another thread forks meanwhile runs nothing itself."""


@contextmanager
def _refusing_other_threads() -> Iterator[None]:
    """Refuse a second thread: random numbers, Warp's device and the request to stop are those of the process."""
    lock = _running.setdefault(os.getpid(), threading.RLock())
    if not lock.acquire(blocking=False):
        raise RequestError("another thread of this process trains or plays; wait for its end, or start a process")
    try:
        yield
    finally:
        lock.release()


def check_thread() -> None:
    """Raise a RequestError while another thread runs a rank, whose random numbers a check of a task would draw."""
    with _refusing_other_threads():
        pass


@_refusing_other_threads()
def run_in_process(
    request: LaunchRequest, store: "Store | None" = None, explain: Callable[[BaseException], str] = lambda _: ""
) -> Any:
    """Call fn(context, *args) here, as the plan's only rank, and return what it returns.

    An exception leaves its traceback in crash_dir, if there is one, unless the request was wrong. One that is not an
    Exception, such as SystemExit, or KeyboardInterrupt without a signal, becomes a `RankFailedError`. The first stop
    signal lets a function that asks `heartbeat.stop_requested` finish, and interrupts any other. If it has not finished
    when the grace time is over, the process ends with status 1. A function that hangs is interrupted by a
    `RankFailedError`; if that does not help, the process ends with status 1.
    """
    from mjtrain.runtime.worker import rank_scope  # torch and warp, which a launcher can do without

    plan, crash_dir = request.plan, request.crash_dir
    (context,) = plan.ranks
    before = heartbeat.current  # of a function that calls `train`, for example
    own = heartbeat.current = make_heartbeat(
        plan.faults, context, plan.run_dir, lambda fault: try_to_write_to_stderr(f"injecting fault {fault}")
    )
    stop = _Stop(plan.stop_grace_s, request.on_not_saved)
    limits = PhaseLimits(floor_s=plan.heartbeat_floor_s, ceiling_s=plan.heartbeat_timeout_s)
    hang = _HangWatch(context, limits, crash_dir, stop.on_signal)
    signals = StopSignals(hang.on_signal)
    try:
        with (
            signals,
            hang,
            _failing_exits(lambda summary, stack: _record_failure(summary, stack, context, crash_dir)),
            rank_scope(context, plan.backend, store, plan.process_group_timeout_s),
        ):
            own.begin("start")
            own.begin("run")
            value = request.fn(context, *request.args)
    except RequestError:
        raise
    except BaseException as error:
        if is_stop(error) or (isinstance(error, KeyboardInterrupt) and signals.replaced):
            raise
        if hang.failure is not None:
            raise hang.failure.to_error() from None
        detail = shorten("".join(traceback.format_exception(error)))
        failure = _record_failure(summarise(error) + explain(error), detail, context, crash_dir)
        if not isinstance(error, Exception):  # as SystemExit, whose status may be 0, as if all had been done
            raise failure.to_error() from error
        error.add_note(failure.describe())
        raise
    finally:
        stop.cancel()
        before.stop_agreed |= own.stop_agreed  # which a rank of torchrun looks at afterwards
        before.pause_requested |= own.pause_requested
        before.paused |= own.paused
        before.injected += own.injected
        heartbeat.current = before
    if own.stop_signal is not None:
        leave(own.stop_signal)
    return value


def _record_failure(summary: str, detail: str, context: RankContext, crash_dir: Path | None) -> Failure:
    """Describe a failure of this process, and write it down if there is a folder for that."""
    host, phase = socket.gethostname(), heartbeat.current.phase
    failure = Failure(summary=summary, detail=detail, rank=context.rank, host=host, phase=phase)
    failure = failure.after_faults(heartbeat.current.injected)
    return failure if crash_dir is None else write_crash_file(crash_dir, failure, parents=context.node_rank > 0)


@contextmanager
def _failing_exits(record: Callable[[str, str], Failure]) -> Iterator[None]:
    """Have `os._exit(0)` in this process end it with status 1 and the cause: its parent would take 0 as success."""
    pid, leave_process = os.getpid(), os._exit

    def end(status: int) -> NoReturn:
        # The kernel keeps 8 bits. A process that was forked from this one ends as it wants to.
        if status & 0xFF == 0 and os.getpid() == pid:
            stack = shorten("".join(traceback.format_stack()[:-1]))
            failure = record(f"called os._exit({status}) before finishing", stack)
            try_to_write_to_stderr(failure.describe())
            status = 1
        leave_process(status)

    os._exit = end
    try:
        yield
    finally:
        os._exit = leave_process


class _HangWatch:
    """Notices that the function in the thread that enters this hangs; stops of the whole process do not count."""

    def __init__(
        self, context: RankContext, limits: PhaseLimits, crash_dir: Path | None, stop: Callable[[int], None]
    ) -> None:
        self._context = context
        self._limits = limits
        self._crash_dir = crash_dir
        self._stop = stop
        self._thread = threading.get_ident()
        self._over = threading.Event()
        """Set when the with block has ended."""
        self.failure: Failure | None = None

    def __enter__(self) -> "_HangWatch":
        progress = Progress(threading.current_thread(), self._limits)
        threading.Thread(target=self._watch, args=(progress,), name="mjtrain-hang-watch", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()

    def on_signal(self, signum: int) -> None:
        """Handle a signal, which may be this object's own."""
        if self.failure is not None:
            raise self.failure.to_error()
        self._stop(signum)

    def _watch(self, progress: Progress) -> None:
        timeout_s = self._limits.ceiling_s
        tick_s = min(TICK_S, timeout_s / 8)
        last, stalled_s = -1, 0.0
        while not self._over.wait(tick_s):
            now = progress.look()
            stalled_s = 0.0 if now["progress"] != last or now["waits"] else stalled_s + tick_s
            last = now["progress"]
            reason = now["overdue"]
            if stalled_s > timeout_s:
                reason = f"no progress for {timeout_s:g} s (--heartbeat-timeout-s)"
            if reason:
                self._on_hang(reason, progress.show_stack())
                return

    def _on_hang(self, reason: str, stack: str) -> None:
        """Interrupt the function; end the process if the function does not come back."""
        detail = f"Its Python stack:\n{stack}"
        failure = self.failure = _record_failure(f"hangs: {reason}", detail, self._context, self._crash_dir)
        owns_process = self._thread == threading.main_thread().ident  # otherwise this is one thread of something larger
        if owns_process:
            signal.pthread_kill(self._thread, signal.SIGINT)
        if not self._over.wait(INTERRUPT_GRACE_S):
            try_to_write_to_stderr(failure.describe())
            if owns_process:
                os._exit(1)


class _Stop:
    """What signals do to a function in this very process."""

    def __init__(self, grace_s: float, on_not_saved: Callable[[NotSavedError], None] | None) -> None:
        self._grace_s = grace_s
        self._on_not_saved = on_not_saved
        self._gives_up = False
        self._timer: threading.Timer | None = None

    def on_signal(self, signum: int) -> None:
        """Ask the function to stop; interrupt one that does not listen or was asked before."""
        if self._gives_up:
            return
        if not heartbeat.current.stoppable or heartbeat.current.stop_signal is not None:
            leave(signum)
        heartbeat.current.stop_signal = signum
        self._timer = threading.Timer(self._grace_s, self._give_up, (signum,))
        self._timer.daemon = True
        self._timer.start()
        how = f"finishing this iteration, then saving (within {self._grace_s:g} s; again to leave at once)"
        try_to_write_to_stderr(f"{signal.Signals(signum).name}: {how}")

    def _give_up(self, signum: int) -> None:
        """End the process: the function may be in native code that never returns."""
        self._gives_up = True
        error = NotSavedError(signum, self._grace_s)
        if self._on_not_saved is not None:
            recorder = threading.Thread(target=self._on_not_saved, args=(error,), daemon=True)
            recorder.start()
            recorder.join(_RECORD_PATIENCE_S)
        try_to_write_to_stderr(str(error.code))
        os._exit(1)

    def cancel(self) -> None:
        """Call when the function has ended: do not enforce the stop any more."""
        if self._timer is not None:
            self._timer.cancel()
