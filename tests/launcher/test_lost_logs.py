"""Logs that cannot be written or are gone: neither hides what happened, nor makes a right request a wrong one."""

from pathlib import Path

import pytest

from mjtrain.launcher.job.diagnosis import Diagnosis
from mjtrain.launcher.spawn import _make_log_dir
from mjtrain.runtime.errors import RequestError


def test_a_restart_does_without_logs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    log_dir = str(tmp_path / "file" / "logs")
    with pytest.raises(RequestError, match="cannot be written"):
        _make_log_dir(log_dir, is_first=True)
    assert _make_log_dir(log_dir, is_first=False) is None
    assert f"warning: --torchrunx-log-dir {log_dir}: cannot be written" in capsys.readouterr().err


def test_a_log_folder_that_was_deleted_does_not_replace_the_cause(tmp_path: Path) -> None:
    diagnosis = Diagnosis(tmp_path, tmp_path / "gone", {}, {}, "host")
    try:
        failure = diagnosis.explain_start("the spawner ended")
    finally:
        diagnosis.close()
    assert failure.summary == "the spawner ended"
    assert "cannot be read: No such file" in failure.detail
