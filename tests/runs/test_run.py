import json
from pathlib import Path

import numpy as np

from mjtrain.runs.run import parse_metrics, read_metrics, to_arrays
from mjtrain.runtime.event_log import read_lines, write_event


def test_torn_lines_events_and_repeated_iterations() -> None:
    lines = [json.dumps({"iteration": at, "try": 1}) for at in (1, 2, 3, 4)]
    lines += ['{"iteration": 5, "tr']
    lines += [json.dumps({"event": "restart", "iteration": 2}), json.dumps({"event": "other"})]
    lines += [json.dumps({"iteration": at, "try": 2}) for at in (3, 4)]
    rows, restarts = parse_metrics(lines)
    assert [(row["iteration"], row["try"]) for row in rows] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert restarts == (2,)


def test_broken_lines_are_skipped_and_the_complete_ones_counted(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == ([], ())
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"iteration": 1}\n{"iterat\n\xff\xfe\n3\n{"other": 1}\n{"iteration": 2}\n{"iteration": 3, "cut')
    lines = read_lines(tmp_path)
    assert [row["iteration"] for row in lines] == [1, 2]
    assert lines.skipped == 4
    write_event(tmp_path, "restart", iteration=1)  # completes the line that was cut short
    lines = read_lines(tmp_path)
    assert [row.get("event") for row in lines] == [None, None, "restart"]
    assert lines.skipped == 5
    assert read_metrics(tmp_path) == ([{"iteration": 1}, {"iteration": 2}], (1,))


def test_numbers_become_arrays_by_key() -> None:
    arrays = to_arrays(
        [
            {"iteration": 1, "mean_reward": None, "name": "x", "by_rank": [1.0, 2.0], "never": None},
            {"iteration": 2, "mean_reward": 0.5, "late": 7, "by_rank": None},
        ]
    )
    assert sorted(arrays) == ["by_rank", "iteration", "late", "mean_reward"]
    np.testing.assert_array_equal(arrays["mean_reward"], [np.nan, 0.5])
    np.testing.assert_array_equal(arrays["late"], [np.nan, 7.0])
    np.testing.assert_array_equal(arrays["by_rank"], [[1.0, 2.0], [np.nan, np.nan]])
    assert to_arrays([]) == {}
