"""Which cores and GPUs the trials of a sweep use."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mjtrain
from mjtrain.cli.train import read_command
from mjtrain.runtime.errors import RequestError
from mjtrain.tools.sweep.plan import Slot, resolve_slots, resolve_sweep
from mjtrain.tools.sweep.space import parse_space
from mjtrain.training.request import resolve_training
from support.students import write_student_task
from support.sweep_plans import make_options, make_plan


def resolve(cores: Sequence[int] = range(4), gpus: Sequence[str] = (), **options: Any) -> tuple[Slot, ...]:
    return resolve_slots(make_options(**{"trials": 20, "gpus_per_trial": 0} | options), cores, gpus)


@pytest.mark.parametrize(
    ("options", "cores", "gpus"),
    [
        ({}, [(0,), (1,), (2,), (3,)], [()] * 4),
        ({"cores": (3, 5)}, [(3,), (5,)], [()] * 2),
        ({"cores": range(64)}, [tuple(range(8 * slot, 8 * slot + 8)) for slot in range(8)], [()] * 8),
        ({"jobs": 2}, [(0, 1), (2, 3)], [()] * 2),
        ({"cores_per_trial": 2}, [(0, 1), (2, 3)], [()] * 2),
        ({"cores_per_trial": 3}, [(0, 1, 2)], [()]),
        ({"trials": 1}, [(0, 1, 2, 3)], [()]),
        ({"gpus": ("0", "1"), "gpus_per_trial": 1}, [(0, 1), (2, 3)], [("0",), ("1",)]),
        ({"gpus": ("0", "1"), "gpus_per_trial": 2}, [(0, 1, 2, 3)], [("0", "1")]),
        ({"gpus": ("MIG-a", "MIG-b", "MIG-c"), "gpus_per_trial": 1, "jobs": 2}, None, [("MIG-a",), ("MIG-b",)]),
        ({"gpus": tuple(map(str, range(16))), "gpus_per_trial": 1, "cores": range(32)}, None, None),
    ],
)
def test_the_machine_is_divided(options: dict[str, Any], cores: Any, gpus: Any) -> None:
    slots = resolve(**options)
    if cores is not None:
        assert [slot.cores for slot in slots] == cores
    if gpus is not None:
        assert [slot.gpus for slot in slots] == gpus
    else:
        assert len(slots) == 16
    used = [core for slot in slots for core in slot.cores]
    assert len(used) == len(set(used))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"jobs": 5}, "--jobs 5: 4 cores can run 4 trials side by side"),
        ({"jobs": 3, "cores_per_trial": 2}, "--jobs 3: 4 cores can run 2 trials side by side"),
        ({"cores_per_trial": 5}, "--cores-per-trial 5: 4 cores can be used here"),
        ({"gpus_per_trial": 1}, "--gpus-per-trial 1: no GPU is visible here; 0 trains on the CPU"),
        ({"gpus": ("0",), "gpus_per_trial": 2}, "--gpus-per-trial 2: 1 GPU is visible here"),
        ({"gpus": ("0",), "gpus_per_trial": 1, "jobs": 2}, "--jobs 2: 4 cores and 1 GPU can run 1 trial side by side"),
    ],
)
def test_what_is_not_there_is_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as error:
        resolve(**options)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("gpus", "flags"), [((), " --gpu-ids None"), (("3",), ""), (("3", "5"), " --gpu-ids 0 1")], ids=["cpu", "1", "2"]
)
def test_the_best_command_trains_on_the_gpus_of_a_trial(tmp_path: Path, gpus: tuple[str, ...], flags: str) -> None:
    plan = make_plan(tmp_path, slots=(Slot(cores=(0,), gpus=gpus),))
    assert plan.best_command({}) == f"train X{flags}"


def test_all_trials_learn_from_one_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials write below the sweep's folder, where no teacher is."""
    monkeypatch.chdir(tmp_path)
    student, teacher = write_student_task(tmp_path)

    def resolve_teacher_of(*flags: str) -> str:
        searched = parse_space([("max-iterations", "choice", "2", "3")])
        request = make_options(task=student, parameters=searched, trials=1, gpus_per_trial=0, train_flags=flags)
        plan = resolve_sweep(request, lambda words: read_command(words)[:2])
        trial = read_command(plan.train_arguments({searched[0].name: "3"}, 0, "trial"))[:2]
        return getattr(resolve_training(*trial).config.agent.algorithm, "teacher_run", "")

    words = f"--teacher auto: no run of {teacher} below logs is finished, and a sweep does not train it; run `mjtrain "
    with pytest.raises(RequestError, match=f"^{re.escape(words)}train {re.escape(teacher)}` first$"):
        resolve_teacher_of()
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    run_dir = mjtrain.train(teacher, launch=launch, logger="none").run_dir
    for flags in ((), ("--teacher", "auto")):
        assert resolve_teacher_of(*flags) == str(run_dir / "model_1.pt")
