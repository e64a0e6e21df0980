import json
from pathlib import Path

import pytest

from mjtrain.launcher import RankFailedError
from mjtrain.reporting.events import end_recorded


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


def test_a_run_that_has_lost_its_directory_ends_as_it_would(tmp_path: Path) -> None:
    with end_recorded(tmp_path / "gone"):
        pass
