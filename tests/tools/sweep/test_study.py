"""The study in its file: killed at any moment, opened again, and what it suggests."""

import math
import os
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest

from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.tools.sweep import run_sweep
from mjtrain.tools.sweep.plan import SweepPlan
from mjtrain.tools.sweep.run_sweep import Claims
from mjtrain.tools.sweep.space import parse_space
from mjtrain.tools.sweep.study import LostTrialError, Study, Trial, plot_study
from support.sweep_plans import make_plan

SPACE = parse_space([["rate", "log", "1e-4", "1e-2"], ["layers", "int", "1", "3"], ["net", "choice", "64 64", "32"]])


def open_study(folder: Path, **options: Any) -> Study:
    return Study(make_plan(folder, **{"parameters": SPACE} | options))


def prune_hopeless(study: Study) -> None:
    for number in study.hopeless():
        study.prune(number)


@pytest.mark.parametrize("lost", ["", "claims", "study.jsonl"])
def test_a_folder_that_is_lost_ends_the_sweep_in_one_line(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(tmp_path / "search", parameters=SPACE)
    path = plan.folder / lost

    class Losing(Study):
        """A study whose folder is renamed when it has been opened."""

        def __init__(self, plan: SweepPlan) -> None:
            super().__init__(plan)
            path.rename(tmp_path / "elsewhere")

    monkeypatch.setattr(run_sweep, "Study", Losing)
    with pytest.raises(OutsideError) as error:
        run_sweep.run_sweep(plan)
    hint = "rerun the same command to resume the sweep when it is back"
    assert str(error.value) == f"{path}: is missing or cannot be reached; {hint}"
    assert not path.exists()


def test_what_ended_is_kept_and_what_did_not_is_taken_up(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    done, wrong, running = study.ask(), study.ask(), study.ask()
    done.end("complete", 2.5, env_steps=7, seed_values=[2.0, 3.0], runs=["a"])
    wrong.end("failed", cause="the arm fell off", env_steps=3)
    running.report(1.5, 5)
    study = open_study(tmp_path)
    (number,) = study.ready()
    again = study.take_up(number)
    assert (again.number, again.params, again.last_reported, again.was_begun) == (2, running.params, 5, True)
    first, second, third = study.results()
    assert (first.state, first.value, first.seed_values, first.env_steps) == ("complete", 2.5, [2.0, 3.0], 7)
    assert (second.state, second.value, second.cause, second.env_steps) == ("failed", None, "the arm fell off", 3)
    assert (third.state, third.value) == ("running", None)
    again.end("pruned")
    assert (study.results()[2].state, study.results()[2].value) == ("pruned", 1.5)


def test_a_study_of_something_else_is_refused(tmp_path: Path) -> None:
    open_study(tmp_path)
    with pytest.raises(RequestError, match=r"holds a sweep with --seeds-per-trial 1, not 2; give another --sweep-dir"):
        open_study(tmp_path, seeds_per_trial=2)
    with pytest.raises(
        RequestError, match=r"holds a sweep with flags of train \(none\), not --num-envs 8; give another"
    ):
        open_study(tmp_path, train_flags=("--num-envs", "8"))
    open_study(tmp_path, trials=20)


@pytest.mark.parametrize("line", [b"garbage\n", b"\xff\xfe\x00\n", b'{"a": 1}\n', b"7\n"])
def test_a_line_of_something_else_is_named(line: bytes, tmp_path: Path) -> None:
    open_study(tmp_path)
    with (tmp_path / "study.jsonl").open("ab") as file:
        file.write(line)
    with pytest.raises(RequestError, match=r"--sweep-dir .*: its study.jsonl is damaged \(\w+: .*\); restore it from"):
        open_study(tmp_path)


def test_a_trial_with_a_record_of_something_else_is_named(tmp_path: Path) -> None:
    open_study(tmp_path).ask().set_user_attr("causd", "x")
    with pytest.raises(RequestError, match=r"--sweep-dir .*: its study.jsonl has causd of a trial, which this version"):
        open_study(tmp_path)


@pytest.mark.parametrize("name", ["study.jsonl", "sweep.json", "sweep.png"])
def test_something_else_in_the_place_of_a_file_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for make in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(path.name)):
        make()
        with pytest.raises(RequestError, match=rf"^--sweep-dir .*: its {name} is not a regular file; remove it"):
            open_study(tmp_path)
        path.rename(tmp_path / "aside") if path.is_dir() else path.unlink()


def test_a_journal_may_be_a_link(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    path.symlink_to(tmp_path / "elsewhere.jsonl")  # where the journal is to be written
    open_study(tmp_path)
    assert (tmp_path / "elsewhere.jsonl").read_text()


def test_a_record_of_another_type_is_another_sweep(tmp_path: Path) -> None:
    open_study(tmp_path)._study.set_user_attr("mjtrain", ["task"])
    with pytest.raises(RequestError, match=r"--sweep-dir .*: holds a sweep with .*; give another --sweep-dir"):
        open_study(tmp_path)


def test_every_cut_of_the_file_can_be_gone_on_from(tmp_path: Path) -> None:
    """As if the process had been killed after each byte of its last trial; further trials are whole."""
    study = open_study(tmp_path)
    study.ask().end("complete", 1.0)
    path = tmp_path / "study.jsonl"
    kept = path.stat().st_size
    study.ask().end("complete", 2.0, env_steps=4)
    content = path.read_bytes()
    for size in range(kept, len(content), 37):
        path.write_bytes(content[:size])
        study = open_study(tmp_path)
        for number in study.ready():
            study.take_up(number).end("complete", 2.0)
        while len(study.results()) < 3:
            study.ask().end("complete", 3.0)
        results = open_study(tmp_path).results()
        assert [trial.state for trial in results] == ["complete"] * 3, f"cut after {size} bytes"
        assert results[0].value == 1.0
        assert all(set(trial.params) == {parameter.name for parameter in SPACE} for trial in results)


def test_importances_are_left_out_of_the_picture_as_long_as_nothing_is_known(tmp_path: Path) -> None:
    study = open_study(tmp_path, trials=12)
    study.draw()
    assert not (tmp_path / "sweep.png").exists()

    def draw_plots() -> list[Any]:
        return list(plot_study(study._study, "mean_reward"))

    def list_titles(plots: list[Any]) -> list[str]:
        return [axes.get_title() or axes.get_title(loc="left") for axes in plots]

    others = ["Optimization History Plot", "Intermediate Values Plot", "Parallel Coordinate Plot", *["Slice Plot"] * 3]
    for number in range(12):
        trial = study.ask()
        trial.end("complete", float(trial.params["layers"]))
        if number < 2:
            assert list_titles(draw_plots()) == others
    plots = draw_plots()
    assert list_titles(plots) == [*others[:2], "Hyperparameter Importances", *others[2:]]
    *_, axes = (axes for axes in plots if axes.get_title(loc="left"))
    bars = {label.get_text(): bar.get_width() for label, bar in zip(axes.get_yticklabels(), axes.patches, strict=True)}
    assert max(bars, key=lambda name: bars[name]) == "layers"
    study.draw()
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_random_suggestions_do_not_depend_on_when_the_study_was_opened(tmp_path: Path) -> None:
    (tmp_path / "once").mkdir()
    (tmp_path / "again").mkdir()
    study = open_study(tmp_path / "once")
    at_once = [study.ask().params for _ in range(4)]
    opened = [open_study(tmp_path / "again").ask().params for _ in range(4)]
    assert opened == at_once
    assert len({params["rate"] for params in at_once}) == 4


def test_the_first_suggestions_of_tpe_are_spread_over_all_parameters(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    study = open_study(tmp_path, sampler="tpe", trials=16)
    found = [study.ask().params for _ in range(8)]
    assert [params["net"] for params in found].count("32") == 4
    for net in ("32", "64 64"):  # two rates in each half of the range, whose middle is 1e-3
        rates = [params["rate"] for params in found if params["net"] == net]
        assert sum(float(rate) < 1e-3 for rate in rates) == 2
    assert {params["layers"] for params in found} == {1, 2, 3}
    opened = [open_study(tmp_path / "other", sampler="tpe", trials=16).ask().params for _ in range(2)]
    assert opened == found[:2]
    assert open_study(tmp_path / "other", sampler="tpe", trials=16, seed=1).ask().params not in found


def test_tpe_learns_from_the_first_ones(tmp_path: Path) -> None:
    values = []
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        study = open_study(tmp_path / str(seed), sampler="tpe", pruner="none", trials=40, seed=seed)
        for _ in range(40):
            trial = study.ask()
            is_wide, rate = trial.params["net"] == "64 64", float(trial.params["rate"])
            trial.end("complete", float(is_wide) - abs(math.log10(rate / 3e-3)))
        values.append([trial.value or 0.0 for trial in study.results()])
    first, later = (sum(sum(each[part]) for each in values) for part in (slice(10), slice(10, 40)))
    assert later / 90 > first / 30 + 0.2


def test_a_grid_has_each_combination_once(tmp_path: Path) -> None:
    study = open_study(tmp_path, parameters=SPACE[1:], sampler="grid", pruner="none", trials=6)
    combinations = set()
    for _ in range(6):
        trial = study.ask()
        combinations.add(tuple(trial.params.values()))
        trial.end("complete", 1.0)
    assert len(combinations) == 6


@pytest.mark.parametrize("maximize", [True, False])
def test_asha_pauses_trials_and_lets_the_best_go_on(tmp_path: Path, maximize: bool) -> None:
    sign = 1.0 if maximize else -1.0

    def arrive(study: Study, value: float) -> Trial:
        trial = study.ask()
        trial.report(sign * value, 21)
        assert not trial.should_prune()  # before a quarter of the iterations
        trial.report(sign * value, 22)
        return trial

    study = open_study(tmp_path, direction="maximize" if maximize else "minimize")
    for value in (2.0, 4.0, 3.0):
        trial = arrive(study, value)
        assert trial.should_prune()  # too few to compare it with
        trial.record(env_steps=7)
    assert study.ready() == []
    assert arrive(study, 1.0).should_prune()
    assert study.ready() == [1]  # the best of four, which was the second to come

    study = open_study(tmp_path, direction="maximize" if maximize else "minimize")  # as after a kill
    assert study.ready() == [1]
    promoted = study.take_up(1)
    assert (promoted.was_begun, promoted.should_prune()) == (True, False)
    assert study.ready() == [1]  # for whoever finds that nobody runs it
    for value in (2.5, 2.6, float("nan")):
        assert arrive(study, value).should_prune()
    best = arrive(study, 5.0)
    assert not best.should_prune()  # among the best two of eight at once
    assert {result.state for result in study.results()} == {"paused", "running"}
    prune_hopeless(study)
    assert [result.state for result in study.results()].count("paused") == 6  # one is still to come
    arrive(study, 0.5).end("failed", cause="the arm fell off")
    prune_hopeless(study)
    promoted.end("complete", sign * 9.0)
    best.end("complete", sign * 10.0)
    results = study.results()
    assert [result.state for result in results] == [
        *("pruned", "complete", "pruned", "pruned", "pruned", "pruned", "pruned", "complete", "failed"),
    ]
    assert (results[0].value, results[0].env_steps) == (sign * 2.0, 7)
    assert study.ready() == []


def test_asha_lets_the_best_of_a_few_go_on_when_no_other_will_come(tmp_path: Path) -> None:
    study = open_study(tmp_path, trials=2)
    first, second = study.ask(), study.ask()
    first.report(1.0, 30)
    assert first.should_prune()
    prune_hopeless(study)
    assert study.ready() == [1]
    second.report(0.5, 22)
    assert second.should_prune()
    prune_hopeless(study)
    assert study.ready() == [0]
    assert [result.state for result in study.results()] == ["paused", "pruned"]


def test_asha_lets_no_more_than_a_quarter_of_those_that_have_come_go_on(tmp_path: Path) -> None:
    """Each trial is better than those before it, so each is among the best quarter when it arrives."""
    study = open_study(tmp_path, trials=10)
    went_on = []
    for number in range(9):
        trial = study.ask()
        trial.report(float(number), 22)
        if not trial.should_prune():
            went_on.append(number)
    assert went_on == [3, 7]
    assert study.ready() == [3, 7]  # for whoever finds that nobody runs them
    study.ask().report(-1.0, 22)
    assert study.ready() == [3, 7, 8]  # of all that were to come, the best quarter continues


def test_asha_lets_one_trial_continue_if_two_processes_judge_theirs_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second judges its trial, the better one, while the first is about to record that its own continues."""
    studies = [open_study(tmp_path, trials=20) for _ in range(2)]
    for value in (3.0, 2.0, 1.0):
        trial = studies[0].ask()
        trial.report(value, 22)
        assert trial.should_prune()
    mine, theirs = (study.ask() for study in studies)
    for trial in (mine, theirs):
        trial.alone = Claims(tmp_path / "claims", needs_locks=True).alone
    mine.report(4.0, 22)
    answers: list[bool] = []

    def judge() -> None:
        theirs.report(5.0, 22)
        answers.append(theirs.should_prune())

    other = threading.Thread(target=judge)
    record = mine.study._storage.set_trial_user_attr

    def record_late(*args: Any) -> None:
        other.start()
        other.join(timeout=1.0)
        record(*args)

    monkeypatch.setattr(mine.study._storage, "set_trial_user_attr", record_late)
    assert not mine.should_prune()
    other.join()
    assert answers == [True]


def test_tpe_learns_from_trials_that_wait(tmp_path: Path) -> None:
    """All of ten wait; the better half of them is where rates are high."""
    rates = []
    for seed in range(6):
        (tmp_path / str(seed)).mkdir()
        study = open_study(tmp_path / str(seed), sampler="tpe", trials=100, seed=seed)
        for _ in range(16):
            trial = study.ask()
            rate = float(trial.params["rate"])
            trial.report(math.log10(rate), 22)
            trial.should_prune()
            rates.append(math.log10(rate))
    first, later = ([rate for k, rate in enumerate(rates) if (k % 16 >= 10) is is_later] for is_later in (False, True))
    assert sum(later) / len(later) > sum(first) / len(first) + 0.4


def test_asha_compares_at_each_rung(tmp_path: Path) -> None:
    study = open_study(tmp_path, trials=16, min_iterations=5)
    trials = [study.ask() for _ in range(16)]
    for number, trial in enumerate(trials):
        trial.report(float(number), 5)
    assert study.ready() == [15, 14, 13, 12]
    for number in study.ready():
        trial = study.take_up(number)
        trial.report(float(-number), 20)
        assert trial.should_prune() is (number != 12)  # alone the last of four knows that it is the best
    prune_hopeless(study)
    assert study.ready() == [12]
    assert study.results()[12].state == "running"
    assert [result.state for result in study.results()].count("pruned") == 15


def test_median_compares_trials_whose_metric_begins_at_different_iterations(tmp_path: Path) -> None:
    """No episode may have ended in the first ones; of long runs, not every iteration is reported."""
    study = open_study(tmp_path, pruner="median", max_iterations=300)

    def run(value: float, begin: int) -> tuple[Trial, int]:
        trial, iteration = study.ask(), 0
        for iteration in range(begin, 301):
            if trial.is_due(iteration, 3):
                trial.report(value, iteration)
                if trial.should_prune():
                    break
        return trial, iteration

    for begin in (3, 4, 6, 10):
        run(1.0, begin)[0].end("complete", 1.0)
    for begin in (3, 4, 5):
        assert run(0.5, begin)[1] == 24  # the first one after --min-iterations, 22


def test_a_trial_that_was_lost_is_not_ended(tmp_path: Path) -> None:
    study = optuna.create_study()
    frozen = study.ask()._cached_frozen_trial
    trial = Trial(study, frozen, was_begun=True)
    trial.is_ours = lambda: False
    with pytest.raises(LostTrialError, match="trial 0: another process has it now"):
        trial.end("complete", 1.0, env_steps=5)
    (kept,) = study.trials
    assert (kept.state.name, kept.user_attrs) == ("RUNNING", {})
