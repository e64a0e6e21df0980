"""Faults that --inject-fault asks for: what it takes, which cannot happen, and when they happen."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mjtrain import GymnasiumConfig, LaunchConfig, launch
from mjtrain.api import make_train_config
from mjtrain.config import TrainConfig
from mjtrain.launcher.faults import Fault, InjectedError, Injector, find_launch_problems, make_heartbeat, parse_faults
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.heartbeat import Heartbeat
from mjtrain.runtime.rank import RankContext
from mjtrain.training.preflight.config_check import find_training_problems


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "rank=1,phase=rollout,iteration=20,kind=sigkill",
            Fault(kind="sigkill", phase="rollout", rank=1, iteration=20),
        ),
        ("kind=raise,phase=build", Fault(kind="raise", phase="build", rank=0)),
        (
            "rank=all,phase=update,step=3,kind=raise,times=2",
            Fault(kind="raise", phase="update", rank=None, step=3, times=2),
        ),
        (" rank = 0 , kind=slow,phase=save,seconds=0.25", Fault(kind="slow", phase="save", seconds=0.25)),
        ("phase=update,kind=exit,status=3", Fault(kind="exit", phase="update", status=3)),
    ],
)
def test_a_fault_is_read_and_written(text: str, fault: Fault) -> None:
    assert parse_faults([text]) == (fault,)
    assert parse_faults([str(fault)]) == (fault,), "what it is called can be given again"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is not KEY=VALUE; give such as rank=1,phase=rollout,iteration=20,kind=sigkill"),
        ("sigkill", "sigkill is not KEY=VALUE"),
        ("kind=sigkill,phase=", "phase= is not KEY=VALUE"),
        ("kind=sigkil,phase=save", "unknown kind sigkil; did you mean sigkill?"),
        (
            "kind=fire,phase=save",
            "unknown kind fire; there are sigkill, sigsegv, sigstop, raise, hang, exit, oom, nan,",
        ),
        ("kind=raise,phase=save,iterations=3", "unknown key iterations; did you mean iteration?"),
        ("kind=raise", "phase is missing"),
        ("phase=save", "kind is missing"),
        ("kind=raise,phase=save,phase=build", "phase is given twice; a second fault is a separate word"),
        ("kind=raise,phase=save,iteration=0", "iteration must be a whole number, at least 1"),
        ("kind=raise,phase=save,times=often", "times must be a whole number, at least 1"),
        ("kind=raise,phase=save,rank=-1", "rank must be a whole number, at least 0, or all"),
        ("kind=exit,phase=save,status=256", "status must be a whole number, 0 to 255"),
        ("kind=raise,phase=save,status=3", "status is of kind=exit only"),
        ("kind=hang,phase=save,seconds=3", "seconds is of kind=slow only"),
        ("kind=slow,phase=save,seconds=soon", "seconds must be a number above 0"),
        ("kind=slow,phase=save,seconds=inf", "seconds must be a number above 0"),
    ],
)
def test_what_is_no_fault_is_refused(text: str, says: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_faults([text])
    assert str(error.value).startswith(f"--inject-fault {text}: ")
    assert says in str(error.value)


def problems_of(text: str, world_size: int = 2, *, supervised: bool = True, by_network: bool = True) -> list[str]:
    faults = parse_faults([text])
    return list(find_launch_problems(faults, world_size=world_size, supervised=supervised, by_network=by_network))


def test_what_cannot_happen_to_these_ranks() -> None:
    assert problems_of("rank=1,phase=run,kind=network") == []
    assert problems_of("rank=all,phase=run,kind=sigstop") == []
    assert "there are ranks 0 to 1" in problems_of("rank=2,phase=run,kind=raise")[0]
    assert "there is rank 0 only" in problems_of("rank=1,phase=run,kind=raise", 1)[0]
    assert "one rank alone has no connections" in problems_of("phase=run,kind=network", 1)[0]
    assert "NCCL uses no network" in problems_of("phase=run,kind=network", by_network=False)[0]
    assert "--max-restarts 1" in problems_of("phase=run,kind=sigstop", 1, supervised=False)[0]


TASK = make_train_config("Cartpole-Balance", max_iterations=90)
EVALUATED = replace(TASK, run=replace(TASK.run, eval_interval=20))


@pytest.mark.parametrize(
    ("text", "config", "says"),
    [
        ("rank=1,phase=rollout,iteration=90,step=24,kind=sigkill", TASK, None),
        ("rank=1,phase=update,step=2,kind=sigkill", TASK, None),
        ("rank=1,phase=build,kind=raise,times=2", TASK, None),
        ("phase=save,iteration=50,kind=disk-full", TASK, None),
        ("phase=save,iteration=90,kind=disk-full", TASK, None),
        ("phase=evaluation,iteration=40,kind=raise", EVALUATED, None),
        ("phase=save,iteration=7,kind=raise", EVALUATED, None),  # it may be the best
        ("phase=rolout,kind=raise", TASK, "a training has no phase rolout; did you mean rollout?"),
        ("phase=rollout,iteration=91,kind=raise", TASK, "the run ends with iteration 90"),
        ("phase=rollout,step=25,kind=raise", TASK, "a rollout has 24 steps (--agent.num-steps-per-env)"),
        ("phase=report,step=1,kind=raise", TASK, "phase=report has no steps here; leave out step"),
        ("phase=build,iteration=1,kind=raise", TASK, "phase=build comes once, before the first iteration"),
        ("phase=save,iteration=7,kind=raise", TASK, "iteration 7 is not saved (--agent.save-interval 50); 50 is"),
        ("phase=save,iteration=51,kind=raise", TASK, "51 is not saved (--agent.save-interval 50); 90 is"),
        ("phase=evaluation,kind=raise", TASK, "needs evaluations; give --eval-interval too"),
        ("phase=evaluation,iteration=7,kind=raise", EVALUATED, "is not evaluated (--eval-interval 20); 20 is"),
        ("phase=rollout,kind=disk-full", TASK, "kind=disk-full happens in phase=save"),
        ("rank=1,phase=save,kind=disk-full", TASK, "only rank 0 writes checkpoints; give rank=0"),
        ("phase=save,kind=nan", TASK, "kind=nan happens in phase=rollout or phase=update"),
        (
            "phase=rollout,kind=nan",
            replace(TASK, env=GymnasiumConfig(id="CartPole-v1")),
            "gymnasium:CartPole-v1 has no worlds of mjtrain's; give phase=update",
        ),
    ],
)
def test_what_cannot_happen_in_this_training(text: str, config: TrainConfig, says: str | None) -> None:
    found = list(find_training_problems(parse_faults([text]), config, 2))
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


def test_an_update_of_one_rank_has_no_steps() -> None:
    faults = parse_faults(["phase=update,step=1,kind=raise"])
    assert "phase=update has no steps here" in next(find_training_problems(faults, TASK, 1))


def test_a_function_has_no_checkpoints() -> None:
    config = LaunchConfig(gpu_ids=None, inject_fault=("phase=save,kind=disk-full",))
    with pytest.raises(RequestError, match="kind=disk-full is of trainings only"):
        launch(lambda _: None, launch=config)


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
