"""mjtrain.launch with real processes."""

import asyncio
import multiprocessing
import os
import re
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import warp as wp

import mjtrain
from mjtrain.config import LaunchConfig, RobotConfig
from mjtrain.launcher import LaunchRequest, make_plan, rendezvous, run_plan
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.event_log import end_recorded
from mjtrain.runtime.processes import read_stat
from mjtrain.runtime.rank import RankContext
from mjtrain.sim.robots.model import open_robot
from support.machine import free_port, full_pipe, many_open_files, patience

CPU = LaunchConfig(gpu_ids=None)
TWO = LaunchConfig(gpu_ids=None, num_workers=2, seed=10)


def test_one_rank_runs_in_this_process() -> None:
    def look(context: RankContext, word: str) -> tuple[int, RankContext, str, str]:
        assert not dist.is_initialized()
        return os.getpid(), context, str(wp.get_device()), word

    pid, context, device, word = mjtrain.launch(look, "hello", launch=CPU)
    assert pid == os.getpid()
    assert (context.rank, context.world_size, context.device, context.seed) == (0, 1, "cpu", 0)
    assert (device, word) == ("cpu", "hello")


def test_an_exception_in_this_process_comes_as_it_is() -> None:
    def fail(context: RankContext) -> None:
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        mjtrain.launch(fail, launch=CPU)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError("late"), "CancelledError: late"),
        (BaseExceptionGroup("both", [SystemExit(0)]), "BaseExceptionGroup: both"),
        (SystemExit("long" * 10**6), r"SystemExit: (long){250} \[3998000 characters left out\] (long){250}"),
    ],
)
def test_a_function_that_leaves_this_process_has_failed(error: BaseException, cause: str, tmp_path: Path) -> None:
    def leave(context: RankContext) -> None:
        raise error

    plan = make_plan(CPU)
    with pytest.raises(mjtrain.RankFailedError, match=cause) as caught, end_recorded(tmp_path):
        run_plan(LaunchRequest(plan=plan, fn=leave, crash_dir=tmp_path), rendezvous(plan))
    assert "FAILED: rank 0" in caught.value.__notes__[0]
    assert re.search(cause, (tmp_path / "rank_0.txt").read_text(), re.MULTILINE)
    assert (tmp_path / "metrics.jsonl").stat().st_size < 5000
    assert '"how": "failed"' in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize(("given", "forks", "status"), [(0, False, 1), (256, False, 1), (0, True, 0)])
def test_a_function_that_ends_this_process_with_status_0_has_failed(
    capfd: pytest.CaptureFixture[str], given: int, forks: bool, status: int
) -> None:
    def leave(context: RankContext) -> None:
        if not forks or os.fork() == 0:  # a child that has nothing to do with the training ends as it wants to
            os._exit(given)  # the kernel makes 256, as of a `waitpid`, a status of 0
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0

    process = multiprocessing.get_context("fork").Process(target=mjtrain.launch, args=(leave,), kwargs={"launch": CPU})
    process.start()
    process.join(patience(60))
    assert process.exitcode == status
    told = capfd.readouterr().err
    assert ("FAILED: rank 0" in told and f"called os._exit({given}) before finishing" in told) == (not forks)


def test_the_signal_that_kills_the_agent_is_named() -> None:
    def kill_parent(context: RankContext) -> None:
        if context.rank == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(patience(60))

    with pytest.raises(mjtrain.RankFailedError, match="the process that starts its ranks was killed by SIGKILL"):
        mjtrain.launch(kill_parent, launch=TWO)


def test_what_the_reaper_has_said_is_in_the_cause() -> None:
    def kill_reaper(context: RankContext) -> None:
        reaper = os.getpid()
        for _ in range(3):  # agent, spawner, reaper
            reaper = int(read_stat(reaper)[1])
        with Path(f"/proc/{reaper}/fd/2").open("a") as log:
            log.write("Traceback (most recent call last):\n  here\nOSError: out of something\n")
        os.kill(reaper, signal.SIGKILL)
        time.sleep(patience(60.0))

    with pytest.raises(mjtrain.RankFailedError, match="the reaper process ended unexpectedly: OSError: out of some"):
        mjtrain.launch(kill_reaper, launch=replace(CPU, max_restarts=1))


_KILL_THE_AGENT = """
import os, signal
depth = 0
def after_in_child():
    global depth
    depth += 1
    if depth == 2:  # a rank, which the agent has forked; the spawner has forked the agent
        os.kill(os.getppid(), signal.SIGKILL)
os.register_at_fork(after_in_child=after_in_child)
"""


def test_an_agent_that_ends_before_any_rank_begins_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kill_the_agent.py").write_text(_KILL_THE_AGENT)
    monkeypatch.syspath_prepend(tmp_path)
    plan = make_plan(TWO)
    with pytest.raises(mjtrain.RankFailedError, match=r"its ranks (have ended|was killed by SIGKILL)"):
        run_plan(LaunchRequest(plan=plan, fn=print, preload=("kill_the_agent",)), rendezvous(plan))


_NO_SEMAPHORES = """
from multiprocessing.synchronize import SemLock
def refuse(*args, **kwargs):
    raise OSError(30, "Read-only file system")
SemLock.__init__ = refuse
"""


def test_ranks_begin_where_dev_shm_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Semaphores of `multiprocessing` are files there."""
    (tmp_path / "no_semaphores.py").write_text(_NO_SEMAPHORES)
    monkeypatch.syspath_prepend(tmp_path)
    plan = make_plan(TWO)
    request = LaunchRequest(plan=plan, fn=lambda context: context.rank, preload=("no_semaphores",))
    assert run_plan(request, rendezvous(plan)) == 0


def _interrupt_again(context: RankContext) -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("cleaned up") from None


def _interrupt_by_another_handler(context: RankContext) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("fn", [_interrupt_again, _interrupt_by_another_handler])
def test_an_interrupt_that_a_function_handles_itself_is_not_its_failure(
    fn: Callable[[RankContext], None], tmp_path: Path
) -> None:
    plan = make_plan(CPU)
    with pytest.raises(KeyboardInterrupt):
        run_plan(LaunchRequest(plan=plan, fn=fn, crash_dir=tmp_path), rendezvous(plan))
    assert list(tmp_path.iterdir()) == []


def test_a_signal_while_a_robot_is_made_is_none_of_its_function() -> None:
    def make() -> None:
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        mjtrain.launch(lambda context: open_robot(RobotConfig(spec=make)), launch=CPU)
    assert caught.value.code == 128 + signal.SIGTERM


class WordlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_exception_without_words_comes_as_it_is(tmp_path: Path) -> None:
    def fail(context: RankContext) -> None:
        raise WordlessError

    with pytest.raises(WordlessError) as caught, end_recorded(tmp_path):
        mjtrain.launch(fail, launch=CPU)
    assert any("WordlessError: (its __str__ raises ValueError)" in note for note in caught.value.__notes__)
    assert "WordlessError" in (tmp_path / "metrics.jsonl").read_text()


def test_a_message_that_utf_8_cannot_encode_is_escaped_in_the_crash_file(tmp_path: Path) -> None:
    def fail(context: RankContext) -> None:
        raise ValueError("no picture in motion\udcff.npz")

    plan = make_plan(CPU)
    with pytest.raises(ValueError, match="no picture in motion"):
        run_plan(LaunchRequest(plan=plan, fn=fail, crash_dir=tmp_path), rendezvous(plan))
    assert r"ValueError: no picture in motion\udcff.npz" in (tmp_path / "rank_0.txt").read_text()


def test_a_run_directory_that_was_renamed_is_not_made_again(tmp_path: Path) -> None:
    def rename(context: RankContext) -> None:
        (tmp_path / "run").rename(tmp_path / "moved")
        raise ValueError("the arm fell off")

    (tmp_path / "run").mkdir()
    plan = make_plan(CPU)
    with pytest.raises(ValueError, match="the arm fell off") as caught:
        run_plan(LaunchRequest(plan=plan, fn=rename, crash_dir=tmp_path / "run" / "crash"), rendezvous(plan))
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]
    assert "rank_0.txt could not be written: No such file or directory)" in caught.value.__notes__[0]


async def walk(context: RankContext) -> int:
    return 1


def count(context: RankContext) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("fn", [walk, partial(walk), count], ids=["async", "partial", "generator"])
def test_what_only_makes_a_coroutine_is_refused(fn: Any) -> None:
    with pytest.raises(RequestError, match=r"is a (coroutine|generator) function; give one that"):
        mjtrain.launch(fn, launch=CPU)


def test_the_seed_repeats_a_function() -> None:
    def draw(context: RankContext) -> float:
        return torch.rand(1).item()

    first, again = (mjtrain.launch(draw, launch=LaunchConfig(gpu_ids=None, seed=3)) for _ in range(2))
    assert first == again != mjtrain.launch(draw, launch=LaunchConfig(gpu_ids=None, seed=4))


def test_sigusr2_asks_for_a_stop_as_other_signals_do() -> None:
    """Submitit and LSF send it before they end a job."""

    def save_when_asked(context: RankContext) -> None:
        assert not mjtrain.stop_requested()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert mjtrain.stop_requested()

    with pytest.raises(SystemExit) as caught:
        mjtrain.launch(save_when_asked, launch=CPU)
    assert caught.value.code == 128 + signal.SIGUSR2


def test_the_soft_limit_of_cpu_time_asks_for_a_stop_and_only_once() -> None:
    """The kernel would repeat its signal every second, and a second signal ends the job."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)

    def save_when_asked(context: RankContext) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1, hard))
        while not mjtrain.stop_requested():
            pass
        assert resource.getrlimit(resource.RLIMIT_CPU) == (hard, hard)

    try:
        with pytest.raises(SystemExit) as caught:
            mjtrain.launch(save_when_asked, launch=CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    assert caught.value.code == 128 + signal.SIGXCPU


def test_a_stop_is_asked_for_and_enforced_where_standard_error_takes_nothing() -> None:
    """As after Ctrl-S in the terminal."""

    def hold_output(context: RankContext) -> None:
        sys.stderr = open(full_pipe()[1], "w")  # noqa: PTH123, SIM115
        assert not mjtrain.stop_requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert mjtrain.stop_requested()
        time.sleep(patience(60.0))

    launch = partial(mjtrain.launch, launch=replace(CPU, stop_grace_s=0.1))
    forked = multiprocessing.get_context("fork").Process(target=launch, args=(hold_output,))
    forked.start()
    forked.join(patience(20.0))
    forked.kill()
    assert forked.exitcode == 1


@pytest.mark.parametrize("how", [CPU, replace(CPU, max_restarts=1)])
def test_the_heartbeat_of_a_function_comes_back_after_a_launch_in_it(how: LaunchConfig) -> None:
    """Otherwise a change of its stack does not count, and a signal waits for it to ask for stops."""

    def beat(context: RankContext) -> bool:
        heartbeat.beat("save")
        return mjtrain.stop_requested()

    def nest(context: RankContext) -> tuple[int, str, bool]:
        mjtrain.launch(beat, launch=CPU)
        return heartbeat.current.beats, heartbeat.current.phase, heartbeat.current.stoppable

    assert mjtrain.launch(nest, launch=how) == (0, "run", False)


def test_what_ranks_agreed_on_in_a_launch_is_known_after_it() -> None:
    """The outer rank reports a pause, and the faults that were injected."""

    def agree(context: RankContext) -> None:
        heartbeat.current.stop_agreed = heartbeat.current.paused = heartbeat.current.pause_requested = True
        heartbeat.current.injected.append("fault")

    def nest(context: RankContext) -> tuple[bool, bool, bool, list[str]]:
        for inner in (agree, lambda context: None):
            mjtrain.launch(inner, launch=CPU)
        now = heartbeat.current
        return now.stop_agreed, now.paused, now.pause_requested, now.injected

    assert mjtrain.launch(nest, launch=CPU) == (True, True, True, ["fault"])


def test_the_callers_thread_count_comes_back() -> None:
    before = torch.get_num_threads()
    mjtrain.launch(lambda context: None, launch=LaunchConfig(gpu_ids=None, num_threads=before + 1))
    assert torch.get_num_threads() == before


def test_the_callers_environment_variables_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MJTRAIN_TEST_OLD", "old")
    monkeypatch.delenv("MJTRAIN_TEST_NEW", raising=False)

    def change(context: RankContext) -> None:
        os.environ.update(MJTRAIN_TEST_OLD="changed", MJTRAIN_TEST_NEW="new")

    mjtrain.launch(change, launch=CPU)
    assert os.environ["MJTRAIN_TEST_OLD"] == "old"
    assert "MJTRAIN_TEST_NEW" not in os.environ


def test_a_rank_of_torchrun_gives_environment_variables_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
    for name, value in {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    before = dict(os.environ)
    seen = mjtrain.launch(lambda context: os.environ["GLOO_SOCKET_IFNAME"], launch=replace(CPU, interface="lo"))
    assert seen == "lo"
    assert dict(os.environ) == before


def test_a_second_thread_is_refused_while_the_first_one_runs() -> None:
    began, may_end = threading.Event(), threading.Event()
    returned: list[int] = []

    def wait(context: RankContext) -> int:
        began.set()
        assert may_end.wait(patience(30.0))
        return 7

    def quit(context: RankContext) -> None:
        os._exit(3)

    first = threading.Thread(target=lambda: returned.append(mjtrain.launch(wait, launch=CPU)))
    first.start()
    try:
        assert began.wait(patience(30.0))
        with pytest.raises(RequestError, match="another thread of this process trains or plays"):
            mjtrain.launch(lambda context: None, launch=CPU)
        with pytest.raises(RequestError, match="another thread"):  # before the task is checked, which draws numbers
            mjtrain.train("Cartpole-Balance", launch=CPU, num_envs=0)
        forked = multiprocessing.get_context("fork").Process(
            target=mjtrain.launch, args=(quit,), kwargs={"launch": CPU}
        )
        forked.start()
        forked.join(patience(30.0))
        forked.kill()
        assert forked.exitcode == 3
    finally:
        may_end.set()
        first.join()
    assert returned == [7]
    assert mjtrain.launch(lambda context: 8, launch=CPU) == 8


def test_two_ranks_are_two_synchronised_processes() -> None:
    def look(context: RankContext, offset: int) -> list[dict]:
        ones = torch.tensor([float(context.rank + offset)])
        dist.all_reduce(ones)
        mine = {
            "pid": os.getpid(),
            "context": context,
            "sum": ones.item(),
            "draw": torch.rand(1).item(),
            "threads": torch.get_num_threads(),
            "backend": dist.get_backend(),
            "visible": os.environ["CUDA_VISIBLE_DEVICES"],
        }
        of_all_ranks: list = [None] * context.world_size
        dist.all_gather_object(of_all_ranks, mine)
        return of_all_ranks

    ranks = mjtrain.launch(look, 5, launch=TWO)
    assert len({rank["pid"] for rank in ranks} | {os.getpid()}) == 3
    assert [rank["context"].rank for rank in ranks] == [0, 1]
    assert [rank["context"].seed for rank in ranks] == [10, 11]
    assert [rank["sum"] for rank in ranks] == [11.0, 11.0]
    assert ranks[0]["draw"] != ranks[1]["draw"]
    assert {rank["backend"] for rank in ranks} == {"gloo"}
    assert {rank["threads"] for rank in ranks} == {ranks[0]["context"].num_threads}
    assert {rank["visible"] for rank in ranks} == {""}


def test_ranks_meet_in_a_temporary_folder_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not a URL, where a question mark begins a query and a hash the name of a part."""
    (folder := tmp_path / "a?b#c%41").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def count(context: RankContext) -> int:
        dist.all_reduce(ranks := torch.ones(()))
        return int(ranks)

    assert mjtrain.launch(count, launch=TWO) == 2
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_each_spawned_rank_sees_its_own_gpu() -> None:
    """The ranks are on the CPU and use none of them; what counts is the variable, which is set before CUDA starts."""

    def look(context: RankContext) -> list[str]:
        seen: list[Any] = [None] * context.world_size
        dist.all_gather_object(seen, os.environ["CUDA_VISIBLE_DEVICES"])
        return seen

    plan = replace(make_plan(TWO), gpus=("MIG-first", "GPU-second"))
    assert run_plan(LaunchRequest(plan=plan, fn=look), rendezvous(plan)) == ["MIG-first", "GPU-second"]


class _Failure(Exception):
    pass


def test_the_first_exception_of_any_rank_is_raised_here(tmp_path: Path) -> None:
    def fail(context: RankContext, marker: Path) -> None:
        marker.with_name(f"pid{context.rank}").write_text(str(os.getpid()))
        if context.rank == 1:
            raise _Failure("the arm fell off")
        dist.barrier()  # never comes about

    with pytest.raises(_Failure, match="the arm fell off") as caught:
        mjtrain.launch(fail, tmp_path / "x", launch=TWO)
    note = "".join(caught.value.__notes__)
    assert f"FAILED: rank 1 on host {socket.gethostname()} in phase run: _Failure: the arm fell off" in note
    assert "the arm fell off" in note
    for rank in (0, 1):
        pid = int((tmp_path / f"pid{rank}").read_text())
        assert not Path(f"/proc/{pid}").exists()


def test_an_exception_that_cannot_travel_is_described() -> None:
    def fail(context: RankContext) -> None:
        class Unpicklable(Exception):
            def __reduce__(self) -> str:
                raise TypeError("no")

        raise Unpicklable("a socket inside\nand a lock")

    with pytest.raises(mjtrain.RankFailedError, match="a socket inside") as caught:
        mjtrain.launch(fail, launch=TWO)
    assert str(caught.value).endswith("Unpicklable: a socket inside")
    assert "and a lock" in caught.value.__notes__[0]


@pytest.mark.parametrize("how", [CPU, TWO], ids=["in this process", "spawned"])
def test_a_rank_can_end_what_it_has_forked(how: LaunchConfig) -> None:
    join_s = patience(10)

    def fork(context: RankContext) -> set[int | None]:
        processes = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,)) for _ in range(20)]
        for process in processes:
            process.start()
            process.terminate()  # before it has run at all, most of the time
        for process in processes:
            process.join(join_s)
        return {process.exitcode for process in processes}

    assert mjtrain.launch(fork, launch=how) == {-signal.SIGTERM}


def test_a_program_with_many_open_files_starts_ranks() -> None:
    with many_open_files():
        assert mjtrain.launch(lambda context: 7, launch=replace(CPU, max_restarts=1)) == 7


def test_a_function_is_started_again() -> None:
    def fail_twice(context: RankContext) -> tuple[int, int]:
        if context.restarts < 2:
            os._exit(3)
        return context.restarts, os.getpid()

    restarts, pid = mjtrain.launch(fail_twice, launch=LaunchConfig(gpu_ids=None, max_restarts=2))
    assert restarts == 2
    assert pid != os.getpid()


def test_a_killed_rank_is_described() -> None:
    def die(context: RankContext) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(mjtrain.RankFailedError) as caught:
        mjtrain.launch(die, launch=LaunchConfig(gpu_ids=None, max_restarts=0, num_workers=2))
    error = caught.value
    assert error.rank in (0, 1)
    assert (error.host, error.signal, error.exit_code) == (socket.gethostname(), signal.SIGKILL, None)


def test_an_argument_that_cannot_travel_is_the_callers_error() -> None:
    with pytest.raises(TypeError, match="pickle"):
        mjtrain.launch(lambda context, lock: None, threading.Lock(), launch=TWO)


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_log_folder_that_cannot_be_written_is_found_before_anything_starts(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    launch = replace(TWO, torchrunx_log_dir=str(tmp_path / name))
    with pytest.raises(RequestError, match=r"--torchrunx-log-dir .*cannot be written"):
        mjtrain.launch(lambda context: None, launch=launch)


@pytest.mark.parametrize("gpu_ids", [0, "0", "first", (0.5,)])
def test_gpu_ids_of_another_kind_are_named(gpu_ids: Any) -> None:
    with pytest.raises(RequestError, match=r"--gpu-ids .*give a tuple of indices"):
        mjtrain.launch(lambda context: None, launch=LaunchConfig(gpu_ids=gpu_ids))


@pytest.mark.supports("launch")
@pytest.mark.gpu
def test_a_gpu_rank_is_pinned() -> None:
    def look(context: RankContext) -> tuple[str, int]:
        return str(wp.get_device()), torch.cuda.current_device()

    assert mjtrain.launch(look, launch=LaunchConfig(gpu_ids=(0,))) == ("cuda:0", 0)


@pytest.mark.supports("launch")
@pytest.mark.gpu
def test_a_spawned_gpu_rank_sees_one_gpu() -> None:
    def look(context: RankContext) -> tuple[str, int, int]:
        return context.device, torch.cuda.device_count(), torch.cuda.current_device()

    assert mjtrain.launch(look, launch=LaunchConfig(gpu_ids=(0,), max_restarts=1)) == ("cuda:0", 1, 0)
