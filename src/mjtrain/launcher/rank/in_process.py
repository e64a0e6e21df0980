"""One rank, in the calling process: the only one, or one of a job that something else has started."""

import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mjtrain import heartbeat
from mjtrain.errors import RequestError
from mjtrain.launcher.failure import Failure, failure_of, write_crash_file
from mjtrain.launcher.ipc.network import choose_gloo_interface
from mjtrain.launcher.ipc.processes import die_with_parent
from mjtrain.launcher.ipc.signals import StopSignals, leave
from mjtrain.launcher.planning.external import ExternalRank
from mjtrain.launcher.planning.plan import LaunchPlan
from mjtrain.launcher.rank.progress import HangWatch
from mjtrain.launcher.rank.rendezvous import RankRendezvous
from mjtrain.rank import RankContext
from mjtrain.standard_streams import write_to_stderr

COMPLAINT_DELAY_S = 3.0
"""A rank that has lost the others waits so long before it says so: the rank that went first gets to say why."""

INTERRUPT_GRACE_S = 5.0
"""Time that a function which hangs has to come back when it is interrupted."""


def run_in_process(
    plan: LaunchPlan,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    crash_dir: Path | None,
    meeting: RankRendezvous | None = None,
) -> Any:
    """Call fn(context, *args) here, as the plan's only rank, and return what it returns.

    An exception leaves its traceback in crash_dir, if there is one, unless the request was wrong. The first signal
    that asks for an end lets a function that asks `heartbeat.stop_requested` come to one, and interrupts any other. A
    function that hangs is interrupted by a `RankFailedError`; if that does not help, the process ends with status 1.
    """
    from mjtrain.worker import rank_scope  # torch and warp, which a launcher can do without

    (context,) = plan.ranks
    heartbeat.current = heartbeat.Heartbeat()
    stop = _Stop(plan.stop_grace_s)
    hang = _Hang(context, plan.heartbeat_timeout_s, crash_dir)
    store = None
    if meeting is not None:
        prepare_to_join(plan, meeting.master_address)
        store = meeting.store
    try:
        with (
            hang.watch,
            StopSignals(hang.instead_of(stop.on_signal)),
            rank_scope(context, plan.backend, store, plan.process_group_timeout_s),
        ):
            value = fn(context, *args)
    except RequestError:
        raise
    except Exception as error:
        if hang.failure is not None:
            raise hang.failure.to_error() from None
        failure = failure_of(error, rank=context.rank, host=socket.gethostname(), phase=heartbeat.current.phase)
        if meeting is not None and is_complaint(error):
            time.sleep(COMPLAINT_DELAY_S)
            failure = replace(failure, summary=f"{failure.summary} (lost other ranks: {meeting.describe()})")
        if crash_dir is not None:
            failure = write_crash_file(crash_dir, failure)
        error.add_note(failure.describe())
        if meeting is not None:
            tell_torchrun(error)
        raise
    finally:
        stop.cancel()
    if heartbeat.current.stop_signal is not None:
        leave(heartbeat.current.stop_signal)
    return value


class _Hang:
    """What happens when the function in this very process hangs."""

    def __init__(self, context: RankContext, timeout_s: float, crash_dir: Path | None) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._crash_dir = crash_dir
        self._thread = threading.get_ident()
        self.watch = HangWatch(timeout_s, self._on_hang)
        self.failure: Failure | None = None

    def instead_of(self, on_signal: Callable[[int], None]) -> Callable[[int], None]:
        """Return a handler for signals that first looks whether the signal is this object's own."""

        def handle(signum: int) -> None:
            if self.failure is not None:
                raise self.failure.to_error()
            on_signal(signum)

        return handle

    def _on_hang(self, stack: str) -> None:
        """Interrupt the function where it stands; end the process if it does not come back from there."""
        failure = Failure(
            summary=f"hangs: no progress for {self._timeout_s:g} s (--heartbeat-timeout-s)",
            detail=f"Its Python stack:\n{stack}",
            rank=self._context.rank,
            host=socket.gethostname(),
            phase=heartbeat.current.phase,
        )
        if self._crash_dir is not None:
            failure = write_crash_file(self._crash_dir, failure)
        self.failure = failure
        owns_process = self._thread == threading.main_thread().ident  # else it is one thread of something larger
        if owns_process:
            signal.pthread_kill(self._thread, signal.SIGINT)
        if not self.watch.over.wait(INTERRUPT_GRACE_S):
            write_to_stderr(failure.describe())
            if owns_process:
                os._exit(1)


class _Stop:
    """What signals do to a function in this very process."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._timer: threading.Timer | None = None

    def on_signal(self, signum: int) -> None:
        """Ask the function to stop; interrupt one that does not listen, or has been asked before."""
        if not heartbeat.current.stoppable or heartbeat.current.stop_signal is not None:
            leave(signum)
        heartbeat.current.stop_signal = signum
        how = f"finishing this iteration, then saving (within {self._grace_s:g} s; again to leave at once)"
        write_to_stderr(f"{signal.Signals(signum).name}: {how}")
        self._timer = threading.Timer(self._grace_s, self._give_up, (signum,))
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self, signum: int) -> None:
        """Leave without the function's help: it may be in native code that never comes back."""
        os._exit(128 + signum)

    def cancel(self) -> None:
        """Let the function's end be the end."""
        if self._timer is not None:
            self._timer.cancel()


def prepare_to_join(plan: LaunchPlan, master_address: str) -> None:
    """Set up this process for its rank, before torch opens a connection.

    Args:
        plan: What to join.
        master_address: Where other hosts see the master.
    """
    assert isinstance(plan.world, ExternalRank)
    if plan.world.elastic:
        # An agent that is killed leaves its ranks behind; no other agent would know of them.
        die_with_parent(os.getppid())
    os.environ.update(plan.environ)
    choose_gloo_interface(master_address)


def is_complaint(error: BaseException) -> bool:
    """Whether an exception only says that other ranks do not answer: it came up inside of torch.distributed."""
    return any("/torch/distributed/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)[-3:])


def tell_torchrun(error: BaseException) -> None:
    """Write the cause where torchrun looks for it, for the summary that it prints; elsewhere there is no such place."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)  # pyright: ignore[reportArgumentType]
