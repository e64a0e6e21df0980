"""What counts as progress of a rank."""

import threading

import pytest

from mjtrain import heartbeat
from mjtrain.launcher.rank.progress import Progress


@pytest.fixture(autouse=True)
def own_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "current", heartbeat.Heartbeat())


def counts_stack(progress: Progress) -> bool:
    """Whether another line of this function is progress."""
    before = progress.look()["progress"]
    return progress.look()["progress"] > before


def test_the_stack_counts_until_the_first_beat_and_while_warming_up() -> None:
    progress = Progress(threading.get_ident())
    assert counts_stack(progress)
    heartbeat.beat("build", warming_up=True)
    assert counts_stack(progress)
    heartbeat.beat()
    assert counts_stack(progress), "more of the same phase"
    heartbeat.beat("rollout")
    assert not counts_stack(progress)


def test_beats_count_always() -> None:
    progress = Progress(threading.get_ident())
    for phase, warming_up in ((None, False), ("build", True), ("rollout", False), (None, False)):
        before = progress.look()["progress"]
        heartbeat.beat(phase, warming_up=warming_up)
        assert progress.look()["progress"] > before
