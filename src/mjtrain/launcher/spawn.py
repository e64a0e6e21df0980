"""Several ranks on this host, each in a process of its own, through torchrunx."""

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from mjtrain.errors import RequestError
from mjtrain.launcher.failure import RankFailedError, read_first_failure, write_report
from mjtrain.launcher.plan import LaunchPlan

HOST = "localhost"


def run_spawned(plan: LaunchPlan, fn: Callable[..., Any], args: tuple[Any, ...], crash_dir: Path | None) -> Any:
    """Call fn(context, *args) in one new process per rank.

    Args:
        plan: The ranks, their environment and where their logs go.
        fn: Any function that cloudpickle can carry.
        args: Its arguments after the context.
        crash_dir: Where a failing rank leaves its traceback; None keeps it out of sight.

    Returns:
        What rank 0 returned.

    Raises:
        Exception: The first exception that any rank raised.
        RankFailedError: A rank ended without one.
    """
    import torchrunx

    _make_log_dir(plan.log_dir)
    # As bytes, so that only the ranks unpickle what is the caller's, and say so when that fails.
    payload = cloudpickle.dumps((fn, args))
    launcher = torchrunx.Launcher(
        hostnames=[HOST],
        workers_per_host=len(plan.ranks),
        backend=None,  # the ranks own their process group
        copy_env_vars=(),  # a process started on this host inherits the environment; what is copied shows in `ps`
        # The ranks find the modules that the caller finds, next to a script for instance.
        extra_env_vars={**plan.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ).set_logging_handlers(partial(_make_handlers, plan.log_dir, len(plan.ranks)))
    with tempfile.TemporaryDirectory(prefix="mjtrain-") as scratch, _loopback_host_name():
        reports = crash_dir or Path(scratch)
        try:
            value = launcher.run(_rank_main, plan, payload, reports).rank(0)
        except Exception as error:
            failure = read_first_failure(reports)
            if failure is None:
                raise RankFailedError(
                    f"a rank ended without a Python exception ({type(error).__name__}: {error})"
                ) from error
            raise failure from None
    return cloudpickle.loads(value)


def _rank_main(plan: LaunchPlan, payload: bytes, reports: Path) -> bytes:
    """What each spawned process runs."""
    for handler in logging.root.handlers:  # torchrunx ships every record of every library, down to DEBUG
        handler.addFilter(lambda record: record.name == "root" or record.levelno >= logging.WARNING)
    context = plan.ranks[int(os.environ["RANK"])]
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    try:
        from mjtrain.worker import rank_scope

        fn, args = cloudpickle.loads(payload)
        with rank_scope(context, plan.backend):
            value = fn(context, *args)
        return cloudpickle.dumps(value) if context.is_main else b""
    except BaseException as error:
        # torchrunx waits for all ranks when one returns an exception, and the others may wait in a collective for
        # this one. A process that dies is noticed.
        write_report(reports, context.rank, error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


@contextmanager
def _loopback_host_name() -> Iterator[None]:
    """Have torchrunx meet its agents on loopback.

    It asks the resolver for this machine's own name, which hangs where there is no such name, and would listen for
    pickles on the address behind it.
    """
    original = socket.getfqdn
    socket.getfqdn = lambda name="": "127.0.0.1"  # noqa: ARG005
    try:
        yield
    finally:
        socket.getfqdn = original


def _make_log_dir(log_dir: str | None) -> None:
    """Find out now: torchrunx opens the files in a process of its own, whose failure nobody would notice."""
    if log_dir is None:
        return
    try:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=log_dir):
            pass
    except OSError as error:
        raise RequestError(
            f"--torchrunx-log-dir {log_dir}: cannot be written ({error.strerror}); the variable TORCHRUNX_LOG_DIR wins "
            'over the flag, and "" writes no log files'
        ) from error


def _make_handlers(log_dir: str | None, num_ranks: int) -> list[logging.Handler]:
    from torchrunx.utils.log_handling import file_handlers

    files = file_handlers([HOST], [num_ranks], log_dir=log_dir, log_level=logging.INFO) if log_dir else []
    return [_ConsoleHandler(), *files]


class _ConsoleHandler(logging.Handler):
    """Rank 0's lines as they are, warnings of the other ranks with their rank before them."""

    def emit(self, record: logging.LogRecord) -> None:
        local_rank = getattr(record, "local_rank", None)
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        if local_rank == 0:
            print(record.getMessage(), file=stream, flush=True)
        elif local_rank is not None and record.levelno >= logging.WARNING:
            print(f"[rank {local_rank}] {record.getMessage()}", file=stream, flush=True)
