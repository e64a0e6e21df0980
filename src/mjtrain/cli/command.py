"""What commands have in common: shared options, one-line errors, the exit status, and the end of the process."""

import _thread
import atexit
import contextlib
import errno
import gc
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.runtime.event_log import find_injected
from mjtrain.runtime.files import check_working_directory
from mjtrain.runtime.standard_streams import (
    find_descriptor,
    flush_standard_streams,
    lenient_streams,
    open_missing_streams,
    printable,
    show_crashes,
    write_to_stderr,
)

THREADS_GRACE_S = 30.0
"""How long a command that is done waits for threads of a task, and then for exit handlers, in seconds."""


def run_command(
    name: str, body: Callable[[list[str]], None], argv: Sequence[str] | None, *, prints_result: bool = True
) -> None:
    """Run a command and turn every exception into a message on standard error and an exit status.

    An OSError about a path of the command that may not be opened or is too long counts as a wrong request.

    The command continues without a reader of its standard output, as in `COMMAND | head`.

    Args:
        prints_result: Whether the command fails if standard output cannot be written, as on a full disk. Otherwise its
            files have the result. Help, the version and a plan (--dry-run) are always results.

    Raises:
        SystemExit: With status 1 if the command failed while running, 2 if the request was wrong, and 128 plus the
            number of the signal if a signal stopped it. SIGPIPE counts, if the reader of standard output has ended.
    """
    open_missing_streams()
    show_crashes()
    atexit.register(_skip_last_collection)
    ends_process = end_despite_threads() if argv is None else contextlib.nullcontext()
    with ends_process, lenient_streams() as find_error:
        args = list(sys.argv[1:] if argv is None else argv)
        told: SystemExit | None = None
        try:
            _run(name, body, args)
        except SystemExit as stop:
            if stop.code:
                raise
            told = stop
        error = find_error()
        if error is not None and error.errno != errno.EPIPE:
            write_to_stderr(f"{name}: standard output could not be written ({error.strerror})")
            if prints_result or told is not None or args == ["--version"] or "--dry-run" in args:
                sys.exit(1)
        if told is not None:
            raise told


@dataclass(frozen=True, kw_only=True)
class TrainedRunOptions:
    """Which checkpoint of which run, for commands that take a trained policy."""

    checkpoint: str | None = None
    """File, its name in the run, or best, for the best one by the run's --best-metric. Default: the newest valid
    one."""

    trust_run: bool = False
    """Run any code that the run names. Default: only that of mjtrain, of packages that register tasks, and of tasks
    from which you have trained on this machine. Give it only for a run whose maker you trust."""

    log_root: str = "logs"
    """Folder below which runs live."""


def command(name: str, *, prints_result: bool = True) -> Callable[[Callable[[list[str]], None]], Callable[..., None]]:
    """Decorate the body of a command to run as `run_command` says, by default with the arguments of this process."""

    def decorate(body: Callable[[list[str]], None]) -> Callable[..., None]:
        @wraps(body)
        def main(argv: Sequence[str] | None = None) -> None:
            run_command(name, body, argv, prints_result=prints_result)

        return main

    return decorate


@contextlib.contextmanager
def end_despite_threads() -> Iterator[None]:
    """Once the main thread is done, end this process although threads or exit handlers of a task may never end."""
    status = 1
    try:
        yield
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        raise
    finally:
        with contextlib.suppress(RuntimeError):  # no thread can be started: this process ends without one
            _thread.start_new_thread(_end_process, (status,))  # Thread.start waits forever if memory is used up


def _find_threads() -> list[str]:
    """Name the threads that Python waits for at its end."""
    threads = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    return sorted(thread.name for thread in threads if not thread.daemon)


def _end_process(status: int) -> None:
    """End this process if threads, or then exit handlers, take too long; the end of Python ends this thread."""
    while threading.main_thread().is_alive():  # a program that calls a command may continue; `join` can fail at the end
        time.sleep(0.02)
    names = _find_threads()
    if names and not _await_end(f"threads that have not ended: {', '.join(names)}", _find_threads):
        exits = threading.Thread(target=atexit._run_exitfuncs, daemon=True)  # as at the end of Python
        exits.start()
        exits.join(THREADS_GRACE_S)  # one of them may wait for such a thread too
    else:
        _await_end("exit handlers (atexit)", lambda: True)
    flush_standard_streams()
    os._exit(status)


def _await_end(what: str, are_left: Callable[[], object]) -> bool:
    """Wait, with a line if that takes long, and tell whether nothing was left in time."""
    told, begin_s = False, time.monotonic()
    while are_left():
        waited_s = time.monotonic() - begin_s
        if waited_s > THREADS_GRACE_S:
            return False
        if not told and waited_s > THREADS_GRACE_S / 10:
            told = True
            write_to_stderr(f"waiting at most {THREADS_GRACE_S:g} s for {what}")
        time.sleep(0.02)
    return True


def _skip_last_collection() -> None:
    """Save the half second that Python spends at its end on cycles among all the modules."""
    if "triton" not in sys.modules:  # whose nanobind would report all of them as leaks
        gc.freeze()


def _run(name: str, body: Callable[[list[str]], None], args: list[str]) -> None:
    try:
        if args == ["--version"]:
            print(f"mjtrain {version('mjtrain')}")
            return
        check_working_directory()
        body(args)
    except RequestError as error:
        _end_for_memory(name, error.__cause__)  # of a task or a library that was imported
        from mjtrain.launcher.failure import list_further

        for line in (str(error), *list_further(error)):
            print(printable(f"{name}: {' '.join(line.split())}"), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{name}: stopped by SIGINT", file=sys.stderr)
        sys.exit(130)
    except SystemExit as stop:
        _can_be_read()  # or Python would complain at its end
        if isinstance(stop.code, int) and stop.code > 128:
            print(f"{name}: stopped by {signal.Signals(stop.code - 128).name}", file=sys.stderr)
        elif isinstance(stop.code, str):
            print(f"{name}: {stop.code}", file=sys.stderr)
            sys.exit(1)
        raise
    except OutsideError as error:
        print(printable(f"{name}: {' '.join(str(error).split())}{find_injected(error)}"), file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and not _can_be_read():
            sys.exit(128 + signal.SIGPIPE)
        _end_for_memory(name, error)
        if (line := _describe_path(error, args)) is not None:
            print(printable(f"{name}: {' '.join(line.split())}"), file=sys.stderr)
            sys.exit(2)
        from mjtrain.launcher.failure import final_message

        print(final_message(error), file=sys.stderr)
        sys.exit(1)
    _can_be_read()  # or Python would complain at its end


def _end_for_memory(name: str, error: BaseException | None) -> None:
    """Exit with one line if an import found too little memory."""
    if isinstance(error, ImportError) and re.search("failed to map segment|cannot allocate memory", str(error)):
        cause = f"{name}: {error}: `ulimit -v` limits the address space, or memory is full"
        print(" ".join(cause.split()), file=sys.stderr)
        sys.exit(1)


def _describe_path(error: Exception, args: Sequence[str]) -> str | None:
    """Name the argument with a path that may not be opened or is too long; None if an exception says something else."""
    if not isinstance(error, OSError) or error.errno not in (errno.EACCES, errno.ENAMETOOLONG):
        return None
    if not isinstance(error.filename, str) or hasattr(error, "__notes__"):  # which a job adds
        return None
    path, reason = Path(error.filename).absolute(), str(error.strerror)
    words = ["", *(part for arg in args for part in (arg.split("=", 1) if arg.startswith("--") else [arg]))]
    given = [
        (len(word), f"{flag} {word}" if flag.startswith("--") else word)
        for flag, word in pairwise(words)
        if word and (Path(word).absolute() in (path, *path.parents) or str(path).endswith(f"/{word}"))
    ]
    if not given and error.errno == errno.EACCES:  # of code that the command runs
        return None
    if error.errno == errno.EACCES:
        locked = [folder for folder in reversed(path.parents) if not os.access(folder, os.X_OK)]
        reason += f"; the folder {locked[0]} may not be searched" if locked else f": {path}"
    return f"{max(given, default=(0, error.filename))[1]}: cannot be used ({reason})"


def _can_be_read() -> bool:
    """Whether standard output still has a reader, unlike in `mjtrain runs | head`; if not, drop what is buffered."""
    descriptor = find_descriptor(sys.stdout)
    if descriptor is None:  # not a file, as in tests and notebooks
        return True
    poll = select.poll()
    poll.register(descriptor, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return False


def take_first(argv: Sequence[str], name: str, hint: str) -> tuple[str, list[str]]:
    """Split the first word of a command from its options.

    Args:
        name: What the help calls the word. Without one, or with a flag for help in its place, it is returned with an
            option that asks for help.
        hint: What the error says where another option comes first.
    """
    first, *args = argv or ["--help"]
    if first in ("-h", "--help"):
        return name, ["--help"]
    if not first or first.startswith("-"):
        raise RequestError(hint if first else f"{name} '': is empty; {hint}")
    return first, args


def split_task(argv: Sequence[str], prog: str) -> tuple[str, list[str], list[str]]:
    """Split the arguments of a command that trains a task: PROG TASK [options] [-- flags of train].

    Returns:
        The task, the options of the command, and the flags after --. For help, see `take_first`; the name is TASK.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    hint = f"the task comes first, as in {prog} [options] [-- train options]"
    return *take_first(argv[:end], "TASK", hint), list(argv[end + 1 :])
