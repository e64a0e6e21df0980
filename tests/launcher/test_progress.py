"""What counts as progress of a rank, and for how long it may go without."""

import gc
import hashlib
import resource
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mjtrain.launcher.rank.progress import LEAST_COUNT, PhaseLimits, Progress, explain_limit
from mjtrain.runtime import heartbeat
from mjtrain.runtime.heartbeat import Durations
from support.frozen import frozen_file_system, thaw
from support.machine import patience, wait_until

LONG_S = 300.0
LOOK_S = 0.2
PATIENCE_S = patience(20.0)


@pytest.fixture(autouse=True)
def own_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "current", heartbeat.Heartbeat())


def watch(floor_s: float | None = None, ceiling_s: float = LONG_S) -> Progress:
    return Progress(threading.current_thread(), PhaseLimits(floor_s=floor_s, ceiling_s=ceiling_s))


def counts_stack(progress: Progress) -> bool:
    """Whether another line of this function is progress."""
    before = progress.look()["progress"]
    return progress.look()["progress"] > before


def test_the_stack_counts_until_the_first_beat_and_while_warming_up() -> None:
    progress = watch()
    assert counts_stack(progress)
    heartbeat.beat("build", warming_up=True)
    assert counts_stack(progress)
    heartbeat.beat()
    assert counts_stack(progress), "more of the same phase"
    heartbeat.beat("rollout")
    assert not counts_stack(progress)


def test_no_garbage_is_collected_while_frames_are_found() -> None:
    """What a collection runs lets the watched thread run too, and CPython 3.11 crashes there."""
    collected_in, ready, done = [], threading.Event(), threading.Event()

    def recurse(depth: int) -> None:
        if depth:
            recurse(depth - 1)
        else:
            ready.set()
            done.wait()

    thread = threading.Thread(target=recurse, args=(300,), daemon=True)
    thread.start()
    ready.wait()
    thresholds = gc.get_threshold()
    gc.callbacks.append(lambda *_: collected_in.append(sys._getframe(1).f_code.co_name))
    try:
        gc.set_threshold(1)
        stack = Progress(thread, PhaseLimits(floor_s=None, ceiling_s=LONG_S)).show_stack()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.pop()
        done.set()
    assert stack.count("recurse") > 3
    assert collected_in
    assert collected_in.count("_frames") < 10, "before and after, and not with each frame"
    assert gc.isenabled()


def test_beats_count_always() -> None:
    progress = watch()
    for phase, warming_up in ((None, False), ("build", True), ("rollout", False), (None, False)):
        before = progress.look()["progress"]
        heartbeat.beat(phase, warming_up=warming_up)
        assert progress.look()["progress"] > before


def test_a_stack_that_ends_in_something_else_than_a_frame_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 has returned a code object in the place of a frame of a thread that ran on."""
    progress = watch()
    code = counts_stack.__code__
    monkeypatch.setattr(sys, "_current_frames", lambda: {threading.get_ident(): code})
    assert progress.look()["progress"] > 0
    assert progress.show_stack() == ""


@contextmanager
def stuck_in(wait: Callable[[threading.Event], None]) -> Iterator[threading.Thread]:
    """Have another thread stay at one place of its stack."""
    over = threading.Event()
    thread = threading.Thread(target=wait, args=(over,), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join(PATIENCE_S)


def be_idle(over: threading.Event) -> None:
    over.wait()


def compute(over: threading.Event) -> None:
    """Stay in native code that computes, as a compiler does; it gives Python's lock back."""
    while not over.is_set():
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)


def show_iterations(count: int) -> None:
    """Be as after iterations of two milliseconds."""
    heartbeat.beat("rollout", iteration=count + 1)
    heartbeat.current.durations = {phase: durations(*[0.001] * count) for phase in ("rollout", "update")}


def look_until(progress: Progress, enough: Callable[[dict], bool]) -> dict:
    """Look as often as a rank does, except for the pace."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = progress.look()
        if enough(seen):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(LOOK_S)


def test_an_idle_rank_is_overdue_by_what_it_has_shown() -> None:
    with stuck_in(be_idle) as thread:
        show_iterations(LEAST_COUNT)
        seen = look_until(Progress(thread, PhaseLimits(floor_s=0.3, ceiling_s=LONG_S)), lambda seen: seen["overdue"])
    words = seen["overdue"]
    assert words.startswith("no progress for 0.6 s: phase rollout has taken ")
    assert words.endswith(" (limit 0.6 s; --heartbeat-floor-s)")


def test_it_warns_once_with_its_stack_before_that(capfd: pytest.CaptureFixture[str]) -> None:
    with stuck_in(be_idle) as thread:
        show_iterations(LEAST_COUNT)
        progress = Progress(thread, PhaseLimits(floor_s=0.3, ceiling_s=LONG_S))
        look_until(progress, lambda seen: seen["overdue"])
    said = capfd.readouterr().err
    assert said.count("warning: no progress for 0.3 s: phase rollout has taken ") == 1
    assert "(limit 0.6 s; --heartbeat-floor-s). Its Python stack:" in said
    assert "in be_idle" in said


def test_a_wait_for_a_disk_has_the_ceiling_only(tmp_path: Path) -> None:
    """As in the sync of a checkpoint to storage that stalls."""
    with frozen_file_system(tmp_path) as place:
        thread = threading.Thread(target=(place / "checkpoint").write_bytes, args=(b"x",))
        thread.start()
        show_iterations(LEAST_COUNT)
        state = Path(f"/proc/self/task/{thread.native_id}/stat")
        wait_until(lambda: ") D " in state.read_text(), "the thread is in uninterruptible sleep")
        progress = Progress(thread, PhaseLimits(floor_s=0.01, ceiling_s=LONG_S))
        for _ in range(8):
            assert not progress.look()["overdue"]
            time.sleep(0.1)
        thaw(place)
        thread.join()


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_free_descriptor_beats_count_all_the_same() -> None:
    progress = watch(floor_s=0.1)
    show_iterations(LEAST_COUNT)
    with no_free_descriptor():
        before = progress.look()["progress"]
        heartbeat.beat()
        assert progress.look()["progress"] > before
        seen = [progress.look() for _ in range(5)]
    assert not any(look["overdue"] for look in seen)


@pytest.mark.parametrize(
    ("floor_s", "count", "waiting"), [(None, LEAST_COUNT, False), (0.05, LEAST_COUNT - 1, False), (0.05, 50, True)]
)
def test_it_is_not_without_a_floor_nor_with_few_iterations_nor_if_it_waits(
    floor_s: float | None, count: int, waiting: bool
) -> None:
    with stuck_in(be_idle) as thread:
        show_iterations(count)
        heartbeat.current.waiting = waiting
        progress = Progress(thread, PhaseLimits(floor_s=floor_s, ceiling_s=LONG_S))
        for _ in range(8):
            assert not progress.look()["overdue"]
            time.sleep(0.1)


def test_a_busy_rank_gets_more_time() -> None:
    """An idle one would be overdue at 0.1 s; the times are those that the watch counts itself."""
    with stuck_in(compute) as thread:
        show_iterations(LEAST_COUNT)
        progress = Progress(thread, PhaseLimits(floor_s=0.25, ceiling_s=LONG_S))
        seen = look_until(progress, lambda seen: seen["overdue"])
    assert "(limit 2 s; " in seen["overdue"]


def wait_for_a_compiler(over: threading.Event) -> None:
    """Wait in native code for another process that computes."""
    compiler = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    threading.Thread(target=lambda: (over.wait(), compiler.kill()), daemon=True).start()
    compiler.wait()


def test_what_computes_while_warming_up_makes_progress_for_a_while() -> None:
    """Although it stays at one place of its stack: that is what compilers look like."""
    heartbeat.beat("build", warming_up=True)
    with stuck_in(wait_for_a_compiler) as thread:
        progress = Progress(thread, PhaseLimits(floor_s=None, ceiling_s=LONG_S))
        first = progress.look()["progress"]
        look_until(progress, lambda seen: seen["progress"] > first + 3)
        # The same with a limit whose multiple has passed at the second look.
        look_until_steady(Progress(thread, PhaseLimits(floor_s=None, ceiling_s=1e-6)))


def test_a_stack_is_shown_as_by_a_traceback() -> None:
    with stuck_in(be_idle) as thread:
        look_until_steady(progress := Progress(thread, PhaseLimits(floor_s=None, ceiling_s=LONG_S)))
        assert thread.ident is not None
        expected = traceback.format_stack(sys._current_frames()[thread.ident])
        assert progress.show_stack() == "".join(expected)


def test_what_is_idle_while_warming_up_makes_none() -> None:
    heartbeat.beat("build", warming_up=True)
    with stuck_in(be_idle) as thread:
        look_until_steady(Progress(thread, PhaseLimits(floor_s=None, ceiling_s=LONG_S)))


def look_until_steady(progress: Progress) -> None:
    """Look until five looks in a row have seen no progress."""
    counts: list[int] = []

    def is_steady(seen: dict) -> bool:
        counts.append(seen["progress"])
        return len(counts) >= 5 and len(set(counts[-5:])) == 1

    look_until(progress, is_steady)


def durations(*each_s: float) -> Durations:
    shown = Durations()
    for duration_s in each_s:
        shown.add(duration_s)
    return shown


@pytest.mark.parametrize(
    ("phase", "shown", "idle", "limit_s"),
    [
        ("rollout", [0.4] * 9, True, None),  # too few
        ("rollout", [0.4] * 10, True, 30.0),  # the floor
        ("rollout", [0.4] * 9 + [7.5], True, 37.5),  # five times the slowest
        ("rollout", [0.4] * 10, False, 120.0),  # four times the floor for what computes
        ("rollout", [0.4] * 9 + [14.0], False, 140.0),
        ("rollout", [31.0] * 10, True, None),  # half the ceiling
        ("save", [0.1] * 10, True, 120.0),  # files may be slow for once
        ("start", [], True, None),
    ],
)
def test_the_limit_of_a_phase(phase: str, shown: list[float], idle: bool, limit_s: float | None) -> None:
    limits = PhaseLimits(floor_s=30.0, ceiling_s=LONG_S)
    known = {phase: durations(*shown)} if shown else {}
    assert limits.find(phase, known, idle=idle) == limit_s


def test_the_words_name_the_phase_and_what_was_usual() -> None:
    shown = {"rollout": durations(*[0.4] * 49, 0.5)}
    words = explain_limit("rollout", shown, passed_s=6.0, limit_s=12.0, phase_s=6.31)
    assert words == (
        "no progress for 6 s: phase rollout has taken 6.31 s, usually 0.4 s and never more than 0.5 s "
        "(limit 12 s; --heartbeat-floor-s)"
    )


def test_what_was_warming_up_or_is_of_no_iteration_shows_nothing() -> None:
    heartbeat.beat("build")
    heartbeat.beat("rollout", iteration=1, warming_up=True)
    heartbeat.beat("update", warming_up=True)
    heartbeat.beat("rollout", iteration=2)
    heartbeat.beat("update")
    assert {phase: shown.count for phase, shown in heartbeat.current.durations.items()} == {"rollout": 1}
