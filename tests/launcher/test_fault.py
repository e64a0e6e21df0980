"""What --inject-fault takes, and which faults cannot happen."""

from dataclasses import replace

import pytest

from mjtrain import GymnasiumConfig, LaunchConfig, launch
from mjtrain.api import make_train_config
from mjtrain.config import TrainConfig
from mjtrain.launcher.faults import Fault, find_launch_problems, parse_faults
from mjtrain.runtime.errors import RequestError
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
