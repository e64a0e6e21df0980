import json

import numpy as np

from mjtrain.runs.metrics import parse_metrics, to_arrays


def test_torn_lines_events_and_repeated_iterations() -> None:
    lines = [json.dumps({"iteration": at, "try": 1}) for at in (1, 2, 3, 4)]
    lines += ['{"iteration": 5, "tr']
    lines += [json.dumps({"event": "restart", "iteration": 2}), json.dumps({"event": "other"})]
    lines += [json.dumps({"iteration": at, "try": 2}) for at in (3, 4)]
    rows, restarts = parse_metrics(lines)
    assert [(row["iteration"], row["try"]) for row in rows] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert restarts == (2,)


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
