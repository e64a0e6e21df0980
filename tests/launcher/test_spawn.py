"""What happens between two starts of a job."""

import pickle
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mjtrain.config import LaunchConfig
from mjtrain.launcher import NotSavedError, RankFailedError, make_plan
from mjtrain.launcher.base import LaunchRequest
from mjtrain.launcher.failure import Failure, RunResult, list_further
from mjtrain.launcher.rank.spawned import pickle_with_code
from mjtrain.launcher.spawn import _make_log_dir, run_spawned
from mjtrain.runs.training_run import TrainingRun
from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.training.open_run import report_restart
from support.frozen import full_disk

FAILED = Failure(summary="was killed by SIGSEGV", rank=1)


@pytest.mark.parametrize(
    ("host", "more", "expected"),
    [
        (socket.gethostname(), "", []),
        (socket.gethostname(), " (not started again)", [f"rank 5 on host {socket.gethostname()}"]),
        ("nodeb", "", ["rank 5 on host nodeb"]),
        (f"{socket.gethostname()}0", "", [f"rank 5 on host {socket.gethostname()}0"]),
    ],
)
def test_the_report_of_a_refused_request_is_a_line_if_it_says_more(host: str, more: str, expected: list[str]) -> None:
    refused = RequestError("walk.npz: no such file")
    summary = f"RequestError: walk.npz: no such file{more}"
    failure = Failure(summary=summary, detail="Traceback", rank=5, host=host, pickled_error=pickle.dumps(refused))
    error = failure.to_error()
    error.add_note("run.npz: no such file")
    reports = [f"FAILED: {place}: {summary}" for place in expected]
    assert list_further(error) == [*reports, "run.npz: no such file"]


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that stays, as one that the kernel does not let go."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def run(results: list[RunResult], **request: Any) -> Any:
    """Run a job whose starts end so, one after the other."""
    options = {"max_restarts": 1, "torchrunx_log_dir": "", **request.pop("launch", {})}
    plan = make_plan(LaunchConfig(gpu_ids=None, num_workers=2, **options))
    return run_spawned(LaunchRequest(plan=plan, fn=print, **request), lambda *_: results.pop(0))


def test_a_signal_between_two_starts_ends_the_job_as_one_during_a_start() -> None:
    def send(*_: object) -> None:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # which would end this process
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as stop:
        run([RunResult(failure=FAILED)], on_restart=send)
    assert stop.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_cannot_be_ended_delays_the_restart(sleeper: int, capfd: pytest.CaptureFixture[str]) -> None:
    ended = RunResult(value=pickle_with_code("done"))
    results = [RunResult(failure=FAILED, left=(sleeper,)), ended]
    told: list[str] = []

    def see(*_: object) -> None:
        told.append("restart")

    killer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -KILL {sleeper}"])
    assert run(results, on_restart=see) == "done"
    killer.wait()
    assert told == ["restart"]
    assert f"waiting for processes [{sleeper}] of the last start" in capfd.readouterr().err


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_what_cannot_be_ended_does_not_hide_the_cause(sleeper: int, max_restarts: int) -> None:
    with pytest.raises(RankFailedError, match="was killed by SIGSEGV") as failed:
        run(
            [RunResult(failure=FAILED, left=(sleeper,))],
            launch={"max_restarts": max_restarts, "end_timeout_s": 0.2},
        )
    assert f"(processes [{sleeper}] of this job are still in the kernel" in str(failed.value)


def test_a_restart_does_without_log_files_where_none_can_be_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a disk that is full by then. Before the first start it is a wrong request."""
    folder = tmp_path / "torchrunx"
    launch = {"torchrunx_log_dir": str(folder)}

    def break_folder(*_: object) -> None:
        shutil.rmtree(folder)
        folder.write_text("")

    results = [RunResult(failure=FAILED), RunResult(value=pickle_with_code("done"))]
    assert run(results, launch=launch, on_restart=break_folder) == "done"
    assert "this start writes no log files" in capfd.readouterr().err
    with pytest.raises(RequestError, match="--torchrunx-log-dir"):
        run([], launch=launch)


def test_a_working_directory_that_is_deleted_meanwhile_does_not_hide_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a start fails in its imports, however often it is repeated."""
    monkeypatch.chdir(tmp_path)
    plan = make_plan(LaunchConfig(gpu_ids=None, num_workers=2, max_restarts=1, torchrunx_log_dir=""))

    def fail(*_: object) -> RunResult:
        tmp_path.rmdir()
        return RunResult(failure=FAILED)

    words = r"was killed by SIGSEGV \(not started again: the working directory does not exist any more"
    with pytest.raises(RankFailedError, match=words):
        run_spawned(LaunchRequest(plan=plan, fn=print), fail)
    with pytest.raises(RequestError, match="the working directory does not exist any more"):
        run_spawned(LaunchRequest(plan=plan, fn=print), fail)


def test_a_run_directory_that_is_renamed_meanwhile_does_not_begin_again(tmp_path: Path) -> None:
    """Without its checkpoints a restart would begin at iteration 0, in a new directory of the same name."""
    (tmp_path / "run").mkdir()
    on_restart = partial(report_restart, TrainingRun(run_dir=tmp_path / "run"), 1)

    def fail(*_: object) -> RunResult:
        (tmp_path / "run").rename(tmp_path / "moved")
        return RunResult(failure=FAILED)

    plan = make_plan(LaunchConfig(gpu_ids=None, num_workers=2, max_restarts=1, torchrunx_log_dir=""))
    with pytest.raises(RankFailedError, match=r"was killed by SIGSEGV \(not started again: .*/run is missing"):
        run_spawned(
            LaunchRequest(plan=plan, fn=print, crash_dir=tmp_path / "run" / "crash", on_restart=on_restart), fail
        )
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_a_temporary_folder_that_cannot_be_written_is_named() -> None:
    plan = make_plan(LaunchConfig(gpu_ids=None, num_workers=2, torchrunx_log_dir=""))
    with (
        full_disk(0),
        pytest.raises(OutsideError, match=r"TMPDIR /.*/mjtrain-\w+: cannot be written \(File too large\)"),
    ):
        run_spawned(LaunchRequest(plan=plan, fn=print))


def test_a_stop_that_was_not_saved_is_another_error_than_one_that_was() -> None:
    with pytest.raises(NotSavedError) as stop:
        run([RunResult(stop_signal=signal.SIGTERM, not_saved_s=60.0)])
    assert stop.value.code == "stopped by SIGTERM, but not saved within 60 s (--stop-grace-s)"


def test_a_restart_does_without_logs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    log_dir = str(tmp_path / "file" / "logs")
    with pytest.raises(RequestError, match="cannot be written"):
        _make_log_dir(log_dir, is_first=True)
    assert _make_log_dir(log_dir, is_first=False) is None
    assert f"warning: --torchrunx-log-dir {log_dir}: cannot be written" in capsys.readouterr().err
