"""Files of metrics that are lost for a while: a disk that is full, a file that is deleted."""

import errno
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mjtrain.api import make_train_config
from mjtrain.launcher import NotSavedError
from mjtrain.runtime.errors import OutsideError
from mjtrain.runtime.event_log import write_event
from mjtrain.sim.drawing.video import Video
from mjtrain.training.open_run import naming_last_checkpoint, saved_iteration
from mjtrain.training.reporting import report as report_module
from mjtrain.training.reporting.report import JsonlWriter, RunReport, TensorBoardWriter
from mjtrain.training.reporting.writer import Writer, WriterError
from support.frozen import dead_file_system, full_disk
from support.machine import wait_until


def row_of(iteration: int) -> dict[str, float | None]:
    return {"iteration": iteration, "env_steps_per_second": 1.0, "mean_reward": None, "mean_episode_length": None}


def test_tensorboard_comes_back_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = TensorBoardWriter(tmp_path, 0)
    errors: list[OSError] = []

    def write(iteration: int) -> None:
        try:
            writer.write({"iteration": iteration, **{f"metric_{number}": float(iteration) for number in range(30)}})
        except OSError as error:
            errors.append(error)

    write(1)
    writer._writer.flush()
    with full_disk():
        writer._writer._get_file_writer().event_writer._async_writer._worker._next_flush_time = 0  # not in ten seconds
        iterations = itertools.count(2)
        wait_until(lambda: write(next(iterations)) or errors, "TensorBoard's thread has failed")
    num_files = len(list(tmp_path.glob("events.*")))
    write(300)
    assert len(list(tmp_path.glob("events.*"))) == num_files  # too soon for another file
    monkeypatch.setattr(report_module, "REOPEN_S", 0.0)
    writer._reopen_at_s = 0.0
    errors.clear()
    write(301)
    writer.close()
    assert errors == []
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("metric_3")][-1] == 301
    assert "Traceback" not in capfd.readouterr().err


def test_metrics_go_on_in_a_file_that_has_replaced_theirs(tmp_path: Path) -> None:
    """As `sed -i`, an editor or rsync replace it; and an event may have made the file again after it was deleted."""
    path = tmp_path / "metrics.jsonl"
    writer = JsonlWriter(path, 0)
    for iteration in (1, 2):
        writer.write({"iteration": iteration, "loss": 0.5})
    edited = tmp_path / "edited"
    edited.write_text(path.read_text().partition("\n")[0].replace("0.5", "0.7") + "\n")
    edited.replace(path)
    writer.write({"iteration": 3, "loss": 0.5})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["iteration"], row["loss"]) for row in rows] == [(1, 0.7), (2, 0.5), (3, 0.5)]
    path.unlink()
    write_event(tmp_path, "uploaded")
    writer.write({"iteration": 4, "loss": 0.5})
    writer.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row.get("iteration", "event") for row in rows] == [1, 2, 3, "event", 4]


def test_metrics_that_were_deleted_are_written_again(tmp_path: Path) -> None:
    """Those of a run directory that was renamed stay with it, and nothing appears under its old name."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    path = run_dir / "metrics.jsonl"
    writer = JsonlWriter(path, 0)
    writer.write({"iteration": 1})
    path.unlink()
    writer.write({"iteration": 2})
    assert [json.loads(line)["iteration"] for line in path.read_text().splitlines()] == [1, 2]
    run_dir.rename(tmp_path / "renamed")
    writer.write({"iteration": 3})
    writer.close()
    assert not run_dir.exists()
    assert (tmp_path / "renamed" / "metrics.jsonl").read_text().count("iteration") == 3


def test_a_restart_on_a_full_disk_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It begins without the lines after the restored iteration, and each file that cannot be written is said once."""
    path = tmp_path / "metrics.jsonl"
    with JsonlWriter(path, 0)._file as file:
        file.write(b"".join(b'{"iteration": %d}\n' % iteration for iteration in (1, 2, 3)))
    with full_disk(), RunReport(make_train_config("Cartpole-Balance"), tmp_path, 2, 6) as report:
        for iteration in (3, 4):
            report.update(row_of(iteration))
            report.add_checkpoint(tmp_path / f"model_{iteration}.pt")
    assert path.read_text() == '{"iteration": 1}\n{"iteration": 2}\n'
    said = capsys.readouterr().out
    for name in ("JsonlWriter", "TensorBoardWriter"):
        assert said.count(f"{name} cannot write (File too large)") == 1


def test_a_target_that_fails_for_another_reason_is_said_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A video that cannot be shown says nothing about metrics."""
    is_full = False

    class Service(Writer):
        def write(self, metrics: dict[str, Any]) -> None:
            if is_full:
                raise OSError(errno.ENOSPC, "No space left on device")

        def add_video(self, video: Video) -> None:
            raise WriterError("no codec")

        def close(self) -> None:
            self.write({})

    video = Video(iteration=1, path=tmp_path / "1.mp4", gif=None, cpu_s=0.0)
    with RunReport(make_train_config("Cartpole-Balance", logger="none"), tmp_path, 0, 9) as report:
        report._writers.append(Service())
        for iteration in range(1, 7):
            is_full = iteration in (3, 4, 6)
            report.add_videos([video])
            report.update(row_of(iteration))
    said = [line for line in capsys.readouterr().out.splitlines() if "Service cannot write" in line]
    reasons = [line.partition("(")[2].partition(")")[0] for line in said]
    assert reasons == ["no codec", "No space left on device", "No space left on device"]


def test_lines_are_removed_without_room_for_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iteration": 2}\nbroken\n{"event": "restart"}\n')

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report_module, "write_whole", refuse)
    JsonlWriter(path, 1).close()
    assert path.read_text() == '{"iteration": 1}\n{"event": "restart"}\n'


def test_metrics_that_have_become_read_only_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # another user may not come here from the root
    path, user = Path("run", "metrics.jsonl"), os.geteuid()
    path.parent.mkdir()
    path.write_text('{"iteration": 1}\n{"iteration": 2}\n')
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        os.seteuid(65534 if user == 0 else user)  # root may write every file
        with pytest.raises(OutsideError) as error:
            JsonlWriter(path, 1)
    finally:
        os.seteuid(user)
        path.parent.chmod(0o755)
    assert str(error.value) == "run/metrics.jsonl: cannot be written (Permission denied)"


def test_tensorboard_does_not_make_a_run_directory_that_is_missing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    writer = TensorBoardWriter(run_dir, 0)
    run_dir.rename(tmp_path / "renamed")
    writer._error = OSError()
    with pytest.raises(FileNotFoundError):
        writer.write({"iteration": 1, "loss": 0.5})
    assert not run_dir.exists()


def test_a_run_directory_that_cannot_be_reached_for_a_while(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    gif = run_dir / ".iteration_0.gif"
    gif.touch()
    with RunReport(make_train_config("Cartpole-Balance", logger="none"), run_dir, 0, 6) as report:
        report.update(row_of(1))
        with dead_file_system(run_dir):
            report.add_videos([Video(path=run_dir / "iteration_0.mp4", gif=gif, iteration=0, cpu_s=0.0)])
            report.update(row_of(2))
            report.update(row_of(3))
            assert saved_iteration(run_dir) == 0
            with pytest.raises(NotSavedError, match=f"{run_dir} cannot be reached"), naming_last_checkpoint(run_dir):
                raise NotSavedError(signal.SIGTERM, 1.0)
        report.update(row_of(4))
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert "cannot be reached (Transport endpoint is not connected); training continues" in warning


def test_rewards_that_earlier_starts_earned_are_not_called_unearned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_train_config("Cartpole-Balance", logger="none")
    early = {"reward/upright": 0.5, "reward/centered": 0.0, "mean_reward": 0.5}
    with RunReport(config, tmp_path, 0, 3) as report:
        report.update({**row_of(1), **early})
    with RunReport(config, tmp_path, 1, 3) as report:  # no episode of another reward has ended
        report.update({**row_of(2), **early, "reward/upright": 0.0})
    said = [line for line in capsys.readouterr().out.splitlines() if "earned anything" in line]
    assert said == ["warning: no episode of this training earned anything of --env.rewards: centered"] * 2
