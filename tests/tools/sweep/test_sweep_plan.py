"""Which cores and GPUs the trials of a sweep use."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mjtrain
from mjtrain.cli.train import read_command
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.machine import available_memory
from mjtrain.tools.sweep.plan import JOURNAL, Slot, SweepPlan, _describe_sweep, resolve_slots, resolve_sweep
from mjtrain.tools.sweep.space import parse_space
from mjtrain.tools.sweep.study import Study
from mjtrain.training.request import resolve_training
from support.students import write_student_task
from support.sweep_plans import make_options, make_plan, plan_sweep


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


@pytest.mark.usefixtures("no_gpu")
def test_memory_for_trials_side_by_side_is_not_asked_of_agents_on_other_machines() -> None:
    task, words = "Cartpole-Balance", ("--max-iterations", "2", "--num-envs")
    memory = resolve_training(*read_command([task, *words, "1000", "--gpu-ids", "None"])[:2]).memory
    assert memory is not None
    num_envs = round(0.7 * 1000 * available_memory() / memory.total_bytes)  # two times this number does not fit
    space = parse_space([["agent.algorithm.learning-rate", "log", "1e-4", "1e-2"]])
    options = {"task": task, "parameters": space, "train_flags": (*words, str(num_envs)), "cores_per_trial": 1}

    def resolve_with(**more: Any) -> SweepPlan:
        return resolve_sweep(make_options(**options, gpus_per_trial=0, **more), lambda words: read_command(words)[:2])

    assert len(resolve_with(wandb="sweep.yaml").slots) > 1, "this test needs two cores"
    with pytest.raises(RequestError, match=r"--jobs \d+: a trial needs .* of .* that are free; give --jobs 1"):
        resolve_with()


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


def train_teacher(teacher: str) -> Path:
    return mjtrain.train(teacher, launch=mjtrain.LaunchConfig(gpu_ids=None, num_threads=1), logger="none").run_dir


def teacher_of(plan: SweepPlan, **params: Any) -> str:
    trial = read_command(plan.train_arguments(params, 0, "trial"))[:2]
    return getattr(resolve_training(*trial).config.agent.algorithm, "teacher_run", "")


@pytest.mark.parametrize("flag", ["teacher", "agent.algorithm.teacher-run"])
def test_a_trial_may_name_its_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    monkeypatch.chdir(tmp_path)
    student, teacher = write_student_task(tmp_path)
    named, found = train_teacher(teacher), train_teacher(teacher)
    plan = plan_sweep(student, (flag, "choice", "auto", str(named)))
    assert "--teacher" not in _describe_sweep(plan)["command"], "it would count before --agent.algorithm.teacher-run"
    assert teacher_of(plan, **{flag: "auto"}) == str(found / "model_1.pt")
    assert teacher_of(plan, **{flag: str(named)}) == str(named / "model_1.pt")
    if flag != "teacher":
        plan = plan_sweep(student, (flag, "choice", "auto", str(named)), flags=("--teacher", "auto"))
        assert teacher_of(plan, **{flag: str(named)}) == str(found / "model_1.pt"), "--teacher counts"


def test_the_longest_of_all_choices_is_how_long_a_run_may_be() -> None:
    assert plan_sweep("Cartpole-Balance", ("max-iterations", "choice", "2", "3", "9", "4")).max_iterations == 9
    choices = [("total-env-steps", "choice", "96", "192", "96000")]  # 2 and 4 iterations of the first two
    flags = ("--num-envs", "2", "--agent.num-steps-per-env", "24")
    assert plan_sweep("Cartpole-Balance", *choices, flags=flags).max_iterations == 4


def test_trials_that_look_for_different_teachers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    student, teacher = write_student_task(tmp_path)
    (tmp_path / "others.py").write_text((tmp_path / "students.py").read_text())
    other = f"{tmp_path}/others.py:make_teacher"
    needed = " and ".join(f"--teacher {run_dir}" for run_dir in sorted(map(str, map(train_teacher, (teacher, other)))))
    with pytest.raises(RequestError, match=f"^--param: trials need {re.escape(needed)}, and a sweep finds one for all"):
        plan_sweep(student, ("agent.algorithm.teacher-task", "choice", teacher, other))


def test_a_sweep_that_is_started_again_keeps_its_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of a version that recorded no teacher takes the present one, and keeps that."""
    monkeypatch.chdir(tmp_path)
    student, teacher = write_student_task(tmp_path)
    first = train_teacher(teacher)
    plan = plan_sweep(student)
    plan.folder.mkdir(parents=True)
    Study(plan)
    newer = train_teacher(teacher)
    plan = plan_sweep(student)
    assert plan.teacher == str(newer)
    assert Study(plan).plan.teacher == str(first)
    journal = plan.folder / JOURNAL
    shutil.rmtree(plan.folder)
    plan.folder.mkdir()
    Study(replace(plan, teacher=None))
    assert "--teacher" not in journal.read_text()
    assert Study(plan).plan.teacher == str(newer)
    assert Study(replace(plan, teacher=str(first))).plan.teacher == str(newer)


def test_all_trials_learn_from_one_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials write below the sweep's folder, where no teacher is."""
    monkeypatch.chdir(tmp_path)
    student, teacher = write_student_task(tmp_path)
    words = f"--teacher auto: no run of {teacher} below logs is finished, and a sweep does not train it; run `mjtrain "
    with pytest.raises(RequestError, match=f"^{re.escape(words)}train {re.escape(teacher)}` first$"):
        plan_sweep(student)
    run_dir = train_teacher(teacher)
    for flags in ((), ("--teacher", "auto")):
        assert teacher_of(plan_sweep(student, flags=flags), **{"max-iterations": "3"}) == str(run_dir / "model_1.pt")
