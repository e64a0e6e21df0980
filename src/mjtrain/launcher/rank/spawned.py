"""What a spawned rank runs: the caller's function, which was pickled with its code, and a thread for the supervisor."""

import faulthandler
import io
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

import cloudpickle

from mjtrain.launcher.failure import shorten
from mjtrain.launcher.faults import make_heartbeat
from mjtrain.launcher.ipc.messages import MessageReader, Sender, await_readable, connect, receive_descriptors
from mjtrain.launcher.ipc.signals import STOP_SIGNALS, in_forks, stop_repeats
from mjtrain.launcher.planning.plan import LaunchPlan
from mjtrain.launcher.rank.progress import TICK_S, PhaseLimits, Progress
from mjtrain.launcher.rank.rank_rendezvous import is_complaint, open_job_store
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import SHORTAGES, RequestError, summarise
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.standard_streams import flush_standard_streams

STACK_SIGNAL = signal.SIGRTMIN + 7
"""Signal that makes a rank write its Python stack to a file, even in native code."""

RENDEZVOUS_NAME = "rendezvous"
"""File in the job's folder through which the ranks of one host find each other."""

_REPORT_PATIENCE_S = 30.0
_LAST_MESSAGE_WAIT_S = 0.5
"""Time in which a request to stop reaches all ranks of a job."""

_SPAWNED_MAIN = "__mp_main__"
"""The module to which the functions of a script belong in a process of multiprocessing's spawn or forkserver. Like
__main__, no other process can import it."""


def stack_file(scratch: Path, rank: int) -> Path:
    """Name the file for a rank's Python stack: on demand, and when native code crashes."""
    return scratch / f"stack_{rank}.txt"


def run_rank(plan: LaunchPlan, scratch: Path, payload: bytes) -> None:
    """Be the rank that the variable RANK names."""
    context = plan.ranks[int(os.environ["RANK"])]  # torchrunx counts the ranks of this host
    os.environ.update(rank_environ(plan, context))
    # Before the thread begins that sends the heartbeats.
    heartbeat.current = make_heartbeat(plan.faults, context, plan.run_dir, lambda fault: supervisor.announce(fault))
    limits = PhaseLimits(floor_s=plan.heartbeat_floor_s, ceiling_s=plan.heartbeat_timeout_s)
    supervisor = SupervisorClient(context, scratch, limits)
    try:
        from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

        from mjtrain.runtime.worker import rank_scope

        heartbeat.current.begin("start")
        fn, args = pickle.loads(payload)
        if plan.master is None:
            store = FileStore(str(scratch / RENDEZVOUS_NAME), context.world_size)
            # `init_process_group` sets no timeout on a store that it is given, in which NCCL's ranks wait for rank 0.
            store.set_timeout(timedelta(seconds=plan.process_group_timeout_s))
        else:
            store = open_job_store(context, plan.master, plan.connect_timeout_s)
        with rank_scope(context, plan.backend, store, plan.process_group_timeout_s):
            heartbeat.current.begin("run")
            value = fn(context, *args)
        flush_standard_streams()
        returned = pickle_with_code(value) if context.local_rank == 0 else b""
        supervisor.sender.send("done", returned, paused=heartbeat.current.paused)
    except BaseException as error:
        supervisor.fail(error)


def rank_environ(plan: LaunchPlan, context: RankContext) -> dict[str, str]:
    """Return the variables that differ from rank to rank.

    They say which rank of the whole job this is, as torchrun sets them, and show it its own GPU only. CUDA reads the
    latter when it starts in this process, which has not happened: the spawner forks before it does.
    """
    gpu = {"CUDA_VISIBLE_DEVICES": plan.gpus[context.local_rank]} if plan.gpus else {}
    return gpu | {
        "RANK": str(context.rank),
        "LOCAL_RANK": str(context.local_rank),
        "WORLD_SIZE": str(context.world_size),
        "LOCAL_WORLD_SIZE": str(context.local_world_size),
        "GROUP_RANK": str(context.node_rank),
    }


class SupervisorClient:
    """A rank's connection to the supervisor of its host."""

    def __init__(self, context: RankContext, scratch: Path, limits: PhaseLimits) -> None:
        """Connect, take over the output streams, watch for signals and send heartbeats."""
        self._limits = limits
        self._connection = connect(scratch)
        self.sender = Sender(self._connection)
        self.sender.send("hello", rank=context.rank, pid=os.getpid(), host=socket.gethostname())
        for stream, received in zip((1, 2), receive_descriptors(self._connection, 2), strict=True):
            os.dup2(received, stream)
            os.close(received)
        in_forks.append(self._disown)
        stacks = stack_file(scratch, context.rank).open("w")
        faulthandler.enable(stacks)
        faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
        self._signalled: int | None = None
        self._interrupted = False
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._on_signal)
        self._main_thread = threading.current_thread()
        threading.Thread(target=self._keep_in_touch, name="mjtrain-heartbeat", daemon=True).start()

    def fail(self, error: BaseException) -> NoReturn:
        """Report why this rank fails, and wait for the end.

        It keeps its connections until then, so that no other rank reports a lost peer before the cause is known. Only
        where it was interrupted as asked, it gives up those to other ranks: one that waits for it in a collective could
        not be interrupted. By then they all know of the request.
        """
        interrupted = self._interrupted and isinstance(error, KeyboardInterrupt)
        text = "".join(traceback.format_exception(error))
        try:
            pickled = pickle_with_code(error)
            pickle.loads(pickled)  # many exceptions can be pickled but not restored
        except Exception:
            pickled = b""
        flush_standard_streams()
        self.sender.send(
            "interrupted" if interrupted else "failed",
            pickled,
            traceback=shorten(text),
            summary=summarise(error),
            phase=heartbeat.current.phase,
            retry=not isinstance(error, RequestError),
            complaint=is_complaint(error),
            time_s=time.monotonic(),
        )
        if interrupted:
            from mjtrain.runtime.worker import leave_group

            time.sleep(_LAST_MESSAGE_WAIT_S)
            leave_group()
        time.sleep(_REPORT_PATIENCE_S)
        os._exit(1)

    def announce(self, fault: str) -> None:
        """Say that a fault is about to be injected; the supervisor reads this even if the process ends at once."""
        self.sender.send("injected", fault=fault, phase=heartbeat.current.phase)

    def _disown(self) -> None:
        """In a fork of this rank: give up its connection, which says that the rank lives, and obey signals."""
        self._connection.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for signum in STOP_SIGNALS[1:]:
            signal.signal(signum, signal.SIG_DFL)

    def _on_signal(self, signum: int, _: Any) -> None:
        stop_repeats(signum)
        if self._interrupted:
            raise KeyboardInterrupt
        else:
            self._signalled = signum  # the launcher decides what a signal to one rank means for the job

    def _keep_in_touch(self) -> None:
        """Send heartbeats, and do what the supervisor asks for."""
        reader = MessageReader()
        progress = Progress(self._main_thread, self._limits)
        interval_s = min(TICK_S, self._limits.ceiling_s / 4)
        while True:
            seen = progress.look()
            try:
                self.sender.send("beat", **seen)
                if self._signalled is not None:
                    self.sender.send("signalled", signum=self._signalled)
                    self._signalled = None
                if not await_readable(self._connection, wait_s=interval_s):
                    continue
                data = self._connection.recv(65536)
                if not data:
                    os._exit(1)  # the supervisor is gone
                for message, _ in reader.feed(data):
                    self._obey(message)
            except OSError as error:
                if error.errno not in SHORTAGES:
                    os._exit(1)
                time.sleep(interval_s)

    def _obey(self, message: dict[str, Any]) -> None:
        if message["kind"] == "rejoin":
            heartbeat.current.pause_requested = True
        if message["kind"] != "stop":
            return
        if heartbeat.current.stoppable:
            heartbeat.current.stop_signal = message["signum"]
            self.sender.send("stopping")
        else:
            self._interrupted = True
            self.sender.send("interrupting")
            assert self._main_thread.ident is not None
            signal.pthread_kill(self._main_thread.ident, signal.SIGINT)


def pickle_with_code(value: Any) -> bytes:
    """Pickle a value with cloudpickle; functions that other processes cannot import go along with their code.

    Since version 3.1.3 cloudpickle gives such code `<dynamic-code>` as its file, so that equal functions have equal
    bytes wherever they stand. A traceback of a rank would then tell neither the file nor the line's text. Here code
    keeps the file that it was compiled from.
    """
    buffer = io.BytesIO()
    main = sys.modules.get(_SPAWNED_MAIN)
    if main is not None and main.__name__ == _SPAWNED_MAIN:
        cloudpickle.register_pickle_by_value(main)
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Reduce code to what cloudpickle makes of it and the file that it was compiled from; leave the rest to it."""
        if isinstance(obj, CodeType):
            make, arguments = self.dispatch_table[CodeType](obj)[:2]
            return _make_code, (obj.co_filename, make, arguments)
        return super().reducer_override(obj)


def _make_code(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)
