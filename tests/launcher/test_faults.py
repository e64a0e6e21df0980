"""When faults happen: at their place, once, and not again after a restart unless that was asked for."""

import json
import time
from pathlib import Path

import pytest

from mjtrain.launcher.faults import InjectedError, Injector, make_heartbeat, parse_faults
from mjtrain.runtime import heartbeat
from mjtrain.runtime.heartbeat import Heartbeat
from mjtrain.runtime.rank import RankContext


@pytest.fixture(autouse=True)
def own_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "current", heartbeat.Heartbeat())


def begin(texts: list[str], folder: Path | None = None, rank: int = 0, restarts: int = 0) -> list[str]:
    """Be a rank that is started; return what it will announce."""
    announced: list[str] = []
    context = RankContext(rank=rank, world_size=3, restarts=restarts)
    run_dir = None if folder is None else str(folder)
    heartbeat.current = make_heartbeat(parse_faults(texts), context, run_dir, announced.append)
    return announced


def train(num_steps: int = 3) -> str:
    """Go through four iterations; return where the fault happened."""
    place = "start"
    try:
        for phase in ("start", "build"):
            place = phase
            heartbeat.beat(phase)
        for iteration in range(1, 5):
            for phase in ("rollout", "update"):
                place = f"{phase} {iteration}"
                heartbeat.beat(phase, iteration=iteration if phase == "rollout" else None)
                for step in range(1, num_steps + 1):
                    place = f"{phase} {iteration}.{step}"
                    heartbeat.beat()
    except InjectedError:
        return place
    return "nowhere"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("phase=build,kind=raise", "build"),
        ("phase=rollout,kind=raise", "rollout 1"),
        ("phase=rollout,iteration=3,kind=raise", "rollout 3"),
        ("phase=rollout,iteration=3,step=2,kind=raise", "rollout 3.2"),
        ("phase=rollout,iteration=3,step=4,kind=raise", "nowhere"),
        ("phase=update,iteration=2,kind=raise", "update 2"),
        ("rank=all,phase=update,iteration=2,kind=raise", "update 2"),
        ("rank=1,phase=update,iteration=2,kind=raise", "nowhere"),
    ],
)
def test_it_happens_at_its_place(text: str, place: str) -> None:
    announced = begin([text])
    assert train() == place
    assert announced == ([] if place == "nowhere" else [str(*parse_faults([text]))])
    assert heartbeat.current.injected == announced


def test_a_rank_to_which_nothing_happens_has_a_plain_heartbeat() -> None:
    for texts in ([], ["rank=1,phase=update,kind=raise"]):
        begin(texts)
        assert type(heartbeat.current) is Heartbeat


def test_what_a_rank_is_asked_to_do_still_reaches_it() -> None:
    begin(["phase=update,iteration=9,kind=raise"])
    assert isinstance(heartbeat.current, Injector)
    heartbeat.current.stop_signal = 15
    assert heartbeat.stop_requested()
    before = heartbeat.current.beats
    heartbeat.beat("rollout", iteration=1, warming_up=True)
    heartbeat.beat()
    now = heartbeat.current
    assert (now.phase, now.iteration, now.warming_up, now.beats - before) == ("rollout", 1, True, 2)


def test_it_happens_once_in_a_run(tmp_path: Path) -> None:
    """By the run's own record; a second fault is not hindered by the first."""
    texts = ["phase=rollout,iteration=2,kind=raise", "phase=update,iteration=3,kind=raise,times=2"]
    places = []
    for restarts in range(4):
        begin(texts, tmp_path, restarts=restarts)
        places.append(train())
    assert places == ["rollout 2", "update 3", "update 3", "nowhere"]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["event"], row["injected"], row["fault"]) for row in rows] == [
        ("fault", True, f"rank=0,{text}") for text in (texts[0], texts[1], texts[1])
    ]
    assert [(row["rank"], row["phase"], row["iteration"], row["kind"]) for row in rows] == [
        (0, "rollout", 2, "raise"),
        (0, "update", 3, "raise"),
        (0, "update", 3, "raise"),
    ]


def test_every_rank_has_its_own_count(tmp_path: Path) -> None:
    text = "rank=all,phase=update,kind=raise"
    for rank in (0, 1):
        begin([text], tmp_path, rank=rank)
        assert train() == "update 1"
        begin([text], tmp_path, rank=rank)
        assert train() == "nowhere"


def test_a_function_has_no_record_and_counts_its_starts() -> None:
    places = []
    for restarts in range(3):
        begin(["phase=rollout,iteration=1,kind=raise,times=2"], restarts=restarts)
        places.append(train())
    assert places == ["rollout 1", "rollout 1", "nowhere"]


def test_without_iterations_it_is_how_many_times_the_phase_has_begun() -> None:
    begin(["phase=work,iteration=3,kind=raise"])
    heartbeat.beat("work")
    heartbeat.beat("work")
    with pytest.raises(InjectedError):
        heartbeat.beat("work")


def test_slow_lasts() -> None:
    announced = begin(["phase=rollout,iteration=2,kind=slow,seconds=0.05"])
    took_s = {}
    for iteration in (1, 2, 3):
        began = time.monotonic()
        heartbeat.beat("rollout", iteration=iteration)
        heartbeat.beat("update")
        took_s[iteration] = time.monotonic() - began
    assert min(took_s[2], took_s[3]) >= 0.05
    assert len(announced) == 1
