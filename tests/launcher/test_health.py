"""Who is to blame when ranks fall silent."""

import socket
from typing import Any

import pytest

from mjtrain.launcher.ipc.messages import Sender
from mjtrain.launcher.job.health import RankState, find_silence


def member(rank: int, **fields: Any) -> RankState:
    ours, _ = socket.socketpair()
    defaults = {"pid": 1, "host": "here", "speaker": Sender(ours), "heard_s": 100.0, "progressed_s": 100.0}
    return RankState(rank=rank, **{**defaults, **fields})


# now is 105 and the time-out is 10: since 100 all is well, since 90 it is not
@pytest.mark.parametrize(
    ("members", "culprits", "reason"),
    [
        ([{}, {}], None, ""),
        ([{}, {"heard_s": 90.0}], [1], "no sign of life for 10 s"),
        ([{}, {"heard_s": 90.0, "done": True}], None, ""),
        ([{}, {"progressed_s": 90.0}], [1], "no progress for 10 s"),
        ([{"progressed_s": 90.0, "waits": True}, {}], None, ""),
        ([{"progressed_s": 90.0, "waits": True}, {"progressed_s": 90.0}], [1], "no progress"),
        ([{"progressed_s": 90.0, "waits": True}] * 2, [0, 1], "waits for ranks that do not come"),
        ([{"progressed_s": 90.0, "waits": True}, {"done": True}], [0], "waits for ranks that do not come"),
        ([{"progressed_s": 90.0}, {"progressed_s": 80.0, "heard_s": 80.0}], [1], "no sign of life"),
    ],
)
def test_who_is_to_blame(members: list[dict[str, Any]], culprits: list[int] | None, reason: str) -> None:
    silence = find_silence([member(rank, **fields) for rank, fields in enumerate(members)], 10.0, 105.0)
    if culprits is None:
        assert silence is None
    else:
        assert silence is not None
        assert [culprit.rank for culprit in silence.culprits] == culprits
        assert reason in silence.reason


def test_progress_is_a_count_that_changes() -> None:
    one = member(0)
    one.take_beat({"progress": 1, "phase": "rollout", "waits": False}, 200.0)
    one.take_beat({"progress": 1, "phase": "rollout", "waits": True}, 300.0)
    assert (one.progressed_s, one.phase, one.waits) == (200.0, "rollout", True)
