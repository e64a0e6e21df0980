"""Which ranks are to blame when a job hangs, or when several fail."""

import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from mjtrain.launcher.ipc.messages import Sender
from mjtrain.launcher.job.diagnosis import Diagnosis, RankState, find_hang


def state(rank: int, **fields: Any) -> RankState:
    ours, _ = socket.socketpair()
    defaults = {"pid": 1, "host": "here", "sender": Sender(ours), "heard_s": 100.0, "progressed_s": 100.0}
    return RankState(rank=rank, **{**defaults, **fields})


# now is 105 and the time-out is 10: since 100 all is well, since 90 it is not
@pytest.mark.parametrize(
    ("states", "culprits", "reason"),
    [
        ([{}, {}], None, ""),
        ([{}, {"heard_s": 90.0}], [1], "no heartbeat for 10 s"),
        ([{}, {"heard_s": 90.0, "done": True}], None, ""),
        ([{}, {"progressed_s": 90.0}], [1], "no progress for 10 s"),
        ([{"progressed_s": 90.0, "waits": True}, {}], None, ""),
        ([{"progressed_s": 90.0, "waits": True}, {"progressed_s": 90.0}], [1], "no progress"),
        ([{"progressed_s": 90.0, "waits": True}] * 2, [0, 1], "all ranks wait for others"),
        ([{"progressed_s": 90.0, "waits": True}, {"done": True}], [0], "all ranks wait for others"),
        ([{}, {"overdue": "no progress for 3 s: phase rollout"}], [1], "no progress for 3 s: phase rollout"),
        ([{"progressed_s": 90.0, "waits": True}, {"overdue": "no progress for 3 s"}], [1], "no progress for 3 s"),
        ([{}, {"overdue": "no progress for 3 s", "done": True}], None, ""),
        ([{"progressed_s": 90.0}, {"progressed_s": 80.0, "heard_s": 80.0}], [1], "no heartbeat"),
        ([{"progressed_s": 94.9}, {"progressed_s": 94.9, "heard_s": 95.5}], [1], "no heartbeat"),
    ],
)
def test_the_ranks_to_blame(states: list[dict[str, Any]], culprits: list[int] | None, reason: str) -> None:
    hang = find_hang([state(rank, **fields) for rank, fields in enumerate(states)], 10.0, 105.0)
    if culprits is None:
        assert hang is None
    else:
        assert hang is not None
        assert [culprit.rank for culprit in hang.culprits] == culprits
        assert reason in hang.reason
        assert hang.all_wait == ("all ranks wait" in reason)


def test_progress_is_a_count_that_changes() -> None:
    one = state(0)
    one.take_beat({"progress": 1, "phase": "rollout", "waits": False, "overdue": ""}, 200.0)
    one.take_beat({"progress": 1, "phase": "rollout", "waits": True, "overdue": ""}, 300.0)
    assert (one.progressed_s, one.phase, one.waits) == (200.0, "rollout", True)


@pytest.mark.parametrize("after", ["", "and a second line of it\n", "  File y\nx.py:1: UserWarning: leaked\n"])
def test_the_exception_of_a_process_that_starts_the_ranks_is_in_the_summary(tmp_path: Path, after: str) -> None:
    stack = "Traceback (most recent call last):\n  File x\n"
    (tmp_path / "here.log").write_text(f"{stack}ValueError: first\n\n{stack}OSError: Too many open files\n{after}")
    with contextlib.closing(Diagnosis(tmp_path, None, {}, {}, "here")) as diagnosis:
        failure = diagnosis.explain(1, agent_lost=False)
    how = "the process that starts its ranks exited with status 1 before finishing"
    assert failure.summary == f"{how}: OSError: Too many open files"


def test_a_rank_that_misses_others_is_not_to_blame_where_another_one_fails(tmp_path: Path) -> None:
    report = {"traceback": "", "phase": "update", "retry": True}
    missing = {**report, "summary": "connection closed by peer", "complaint": True, "time_s": 99.0}
    leaving = {**report, "summary": "no process group", "complaint": False, "time_s": 99.1}
    states = {0: state(0, report=leaving), 1: state(1, report=missing)}
    with contextlib.closing(Diagnosis(tmp_path, None, states, {}, "here")) as diagnosis:
        failure = diagnosis.explain(None, agent_lost=False)
    assert (failure.rank, failure.summary, failure.is_attributed) == (0, "no process group", True)


def test_a_log_folder_that_was_deleted_does_not_replace_the_cause(tmp_path: Path) -> None:
    with contextlib.closing(Diagnosis(tmp_path, tmp_path / "gone", {}, {}, "host")) as diagnosis:
        failure = diagnosis.explain_start("the spawner ended")
    assert failure.summary == "the spawner ended"
    assert "cannot be read: No such file" in failure.detail
