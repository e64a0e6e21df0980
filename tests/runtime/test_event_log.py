import json
from pathlib import Path

import pytest

from mjtrain.launcher import RankFailedError
from mjtrain.launcher.failure import Failure
from mjtrain.runtime.event_log import end_recorded, mark_injected, write_event


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (None, {"how": "done"}),
        (KeyboardInterrupt(), {"how": "stopped", "signal": "SIGINT"}),
        (SystemExit(143), {"how": "stopped", "signal": "SIGTERM"}),
        (ValueError("the arm\nfell off"), {"how": "failed", "cause": "ValueError: the arm"}),
        (RankFailedError("rank 1 on host a: was killed"), {"how": "failed", "cause": "rank 1 on host a: was killed"}),
        (ZeroDivisionError(), {"how": "failed", "cause": "ZeroDivisionError"}),
    ],
)
def test_the_end_of_a_run_is_recorded(error: BaseException | None, event: dict[str, str], tmp_path: Path) -> None:
    def run() -> None:
        with end_recorded(tmp_path):
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    found = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert found.pop("time") > 0
    assert found == {"event": "end", **event}


def test_an_exception_after_an_injected_fault_is_marked(tmp_path: Path) -> None:
    """The launcher says so in its note on the exception."""
    error = ValueError("the arm fell off")
    failure = Failure(summary="ValueError: the arm fell off", rank=1, host="a", phase="update")
    failure = failure.after_faults(["rank=1,phase=update,kind=raise"])
    error.add_note(failure.describe())
    with pytest.raises(ValueError, match="fell off"), end_recorded(tmp_path):
        raise error
    cause = json.loads((tmp_path / "metrics.jsonl").read_text())["cause"]
    assert cause == "ValueError: the arm fell off; after injected fault rank=1,phase=update,kind=raise"


def test_faults_since_the_last_start_mark_the_next_one(tmp_path: Path) -> None:
    assert mark_injected(tmp_path) == ""
    for fault in ("one", "two", "two"):
        write_event(tmp_path, "fault", fault=fault)
    assert mark_injected(tmp_path) == "; after injected fault one and two"
    write_event(tmp_path, "restart", cause="known")
    assert mark_injected(tmp_path) == ""


def test_a_run_that_has_lost_its_directory_ends_as_it_would(tmp_path: Path) -> None:
    with end_recorded(tmp_path / "gone"):
        pass
