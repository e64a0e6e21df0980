"""What a spawned rank runs: the caller's function, and beside it a thread that keeps in touch with the launcher."""

import faulthandler
import os
import pickle
import select
import signal
import socket
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle

from mjtrain import heartbeat
from mjtrain.errors import RequestError
from mjtrain.launcher.ipc.messages import MessageReader, Sender, connect, receive_descriptors
from mjtrain.launcher.ipc.signals import STOP_SIGNALS
from mjtrain.launcher.planning.plan import LaunchPlan
from mjtrain.launcher.rank.progress import Progress
from mjtrain.launcher.rank.rendezvous import meet
from mjtrain.rank import RankContext
from mjtrain.standard_streams import flush_standard_streams

STACK_SIGNAL = signal.SIGRTMIN + 7
"""Signal that makes a rank write its Python stack down, native code or not."""

MEETING_NAME = "meeting"
"""File in the job's folder through which the ranks of one host find each other."""

_BEAT_INTERVAL_S = 1.0
_REPORT_PATIENCE_S = 30.0


def stack_file(scratch: Path, rank: int) -> Path:
    """Name the file for a rank's Python stack: on demand, and when native code crashes."""
    return scratch / f"stack_{rank}.txt"


def run_rank(plan: LaunchPlan, scratch: Path, payload: bytes) -> None:
    """Be the rank that the variable RANK says.

    Args:
        plan: The ranks.
        scratch: The job's folder, where the launcher listens.
        payload: The pickled function and its arguments.
    """
    context = plan.ranks[int(os.environ["RANK"])]  # torchrunx counts the ranks of this host
    os.environ.update(_describe_place(context))
    link = SupervisorClient(context, scratch, beat_interval_s=min(_BEAT_INTERVAL_S, plan.heartbeat_timeout_s / 4))
    try:
        from mjtrain.worker import rank_scope

        fn, args = cloudpickle.loads(payload)
        meeting = f"file://{scratch / MEETING_NAME}"
        if plan.place is not None:
            meeting = meet(context, plan.place, plan.connect_timeout_s)
        with rank_scope(context, plan.backend, meeting, plan.process_group_timeout_s):
            heartbeat.current.phase = "run"
            value = fn(context, *args)
        flush_standard_streams()
        link.speaker.send("done", cloudpickle.dumps(value) if context.local_rank == 0 else b"")
    except BaseException as error:
        link.fail(error)


def _describe_place(context: RankContext) -> dict[str, str]:
    """Return the variables that say which rank of the whole job this is, as torchrun sets them."""
    return {
        "RANK": str(context.rank),
        "LOCAL_RANK": str(context.local_rank),
        "WORLD_SIZE": str(context.world_size),
        "LOCAL_WORLD_SIZE": str(context.local_world_size),
        "GROUP_RANK": str(context.node_rank),
    }


class SupervisorClient:
    """The connection to the launcher."""

    def __init__(self, context: RankContext, scratch: Path, beat_interval_s: float) -> None:
        """Take over the output streams, watch for signals and begin to beat."""
        self._interval_s = beat_interval_s
        self._connection = connect(scratch)
        self.speaker = Sender(self._connection)
        self.speaker.send("hello", rank=context.rank, pid=os.getpid(), host=socket.gethostname())
        for stream, received in zip((1, 2), receive_descriptors(self._connection, 2), strict=True):
            os.dup2(received, stream)
            os.close(received)
        self._mask: set[int] = set()
        os.register_at_fork(
            before=self._hold_signals, after_in_parent=self._release_signals, after_in_child=self._be_nobody
        )
        stacks = stack_file(scratch, context.rank).open("w")
        faulthandler.enable(stacks)
        faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
        self._signalled: int | None = None
        self._interrupted = False
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._on_signal)
        self._main_thread = threading.get_ident()
        threading.Thread(target=self._keep_in_touch, name="mjtrain-heartbeat", daemon=True).start()

    def fail(self, error: BaseException) -> NoReturn:
        """Say why this rank cannot go on, and wait for the end.

        It keeps its connections until then: no other rank gets to complain about a lost peer before the cause is known.
        """
        interrupted = self._interrupted and isinstance(error, KeyboardInterrupt)
        text = "".join(traceback.format_exception(error))
        try:
            pickled = cloudpickle.dumps(error)
            pickle.loads(pickled)  # many exceptions can be pickled but not restored
        except Exception:
            pickled = b""
        flush_standard_streams()
        self.speaker.send(
            "interrupted" if interrupted else "failed",
            pickled,
            traceback=text,
            summary=f"{type(error).__name__}: {error}",
            phase=heartbeat.current.phase,
            retry=not isinstance(error, RequestError),
            time_s=time.monotonic(),
        )
        time.sleep(_REPORT_PATIENCE_S)
        os._exit(1)

    def _hold_signals(self) -> None:
        """Before a fork: let signals wait, for Python forgets those that reach a fork in its first moment."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def _release_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _be_nobody(self) -> None:
        """In a fork of this rank: do not keep the launcher believing that the rank lives, and obey signals."""
        self._connection.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for signum in STOP_SIGNALS[1:]:
            signal.signal(signum, signal.SIG_DFL)
        self._release_signals()

    def _on_signal(self, signum: int, _: Any) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        else:
            self._signalled = signum  # somebody signalled this rank; the launcher decides what that means for the job

    def _keep_in_touch(self) -> None:
        """Beat, and hear what the launcher has to say."""
        reader = MessageReader()
        progress = Progress(self._main_thread)
        try:
            while True:
                self.speaker.send("beat", **progress.look())
                if self._signalled is not None:
                    self.speaker.send("signalled", signum=self._signalled)
                    self._signalled = None
                ready, _, _ = select.select([self._connection], [], [], self._interval_s)
                if not ready:
                    continue
                data = self._connection.recv(65536)
                if not data:
                    os._exit(1)  # there is no launcher any more
                for message, _ in reader.feed(data):
                    self._obey(message)
        except OSError:
            os._exit(1)

    def _obey(self, message: dict[str, Any]) -> None:
        if message["kind"] != "stop":
            return
        if heartbeat.current.stoppable:
            heartbeat.current.stop_signal = message["signum"]
            self.speaker.send("stopping")
        else:
            self._interrupted = True
            self.speaker.send("interrupting")
            signal.pthread_kill(self._main_thread, signal.SIGINT)
