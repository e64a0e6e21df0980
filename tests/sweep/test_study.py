"""The study in its file: killed at any moment, opened again, and what it suggests."""

from pathlib import Path
from typing import Any

import pytest

from mjtrain.sweep.space import parse_space
from mjtrain.sweep.study import Study, read_identity

SPACE = parse_space([["rate", "log", "1e-4", "1e-2"], ["layers", "int", "1", "3"], ["net", "choice", "64 64", "32"]])


def open_study(folder: Path, *, maximize: bool = True, **options: Any) -> Study:
    study = Study(folder / "study.jsonl", {"task": "X"}, maximize=maximize)
    settings: dict[str, Any] = {"sampler": "random", "pruner": "asha", "seed": 0, "num_trials": 9, "max_iterations": 90}
    study.configure(SPACE, **settings | options)
    return study


def test_what_ended_is_kept_and_what_did_not_is_taken_up(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    done, wrong, running = study.ask(), study.ask(), study.ask()
    done.complete(2.5, {"env_steps": 7, "seed_values": [2.0, 3.0], "runs": ["a"]})
    wrong.fail("the arm fell off", {"env_steps": 3})
    running.report(5, 1.5)
    study = open_study(tmp_path)
    (number,) = study.unfinished()
    again = study.take_up(number)
    assert (again.number, again.params, again.last_reported, again.was_begun) == (2, running.params, 5, True)
    first, second, third = study.results()
    assert (first.state, first.value, first.seed_values, first.env_steps) == ("complete", 2.5, (2.0, 3.0), 7)
    assert (second.state, second.value, second.cause, second.env_steps) == ("failed", None, "the arm fell off", 3)
    assert (third.state, third.curve) == ("running", {5: 1.5})
    assert read_identity(tmp_path / "study.jsonl") == {"task": "X"}


def test_every_cut_of_the_file_can_be_gone_on_from(tmp_path: Path) -> None:
    """As if the process had been killed after each byte of its last trial; further trials are whole."""
    study = open_study(tmp_path)
    study.ask().complete(1.0, {})
    path = tmp_path / "study.jsonl"
    kept = path.stat().st_size
    study.ask().complete(2.0, {"env_steps": 4})
    content = path.read_bytes()
    for size in range(kept, len(content), 37):
        path.write_bytes(content[:size])
        study = open_study(tmp_path)
        for number in study.unfinished():
            study.take_up(number).complete(2.0, {})
        while len(study.results()) < 3:
            study.ask().complete(3.0, {})
        results = open_study(tmp_path).results()
        assert [trial.state for trial in results] == ["complete"] * 3, f"cut after {size} bytes"
        assert results[0].value == 1.0
        assert all(set(trial.params) == {parameter.name for parameter in SPACE} for trial in results)


@pytest.mark.filterwarnings("error::UserWarning")
def test_importances_are_empty_as_long_as_nothing_is_known(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    assert study.importances() == {}
    for number in range(12):
        trial = study.ask()
        trial.complete(float(trial.params["layers"]), {})
        if number < 2:
            assert study.importances() == {}
    found = study.importances()
    assert max(found, key=lambda name: found[name]) == "layers"


def test_random_suggestions_do_not_depend_on_when_the_study_was_opened(tmp_path: Path) -> None:
    (tmp_path / "once").mkdir()
    (tmp_path / "again").mkdir()
    study = open_study(tmp_path / "once")
    at_once = [study.ask().params for _ in range(4)]
    opened = [open_study(tmp_path / "again").ask().params for _ in range(4)]
    assert opened == at_once
    assert len({params["rate"] for params in at_once}) == 4


def test_a_grid_has_each_combination_once(tmp_path: Path) -> None:
    study = Study(tmp_path / "study.jsonl", {}, maximize=True)
    study.configure(SPACE[1:], sampler="grid", pruner="none", seed=0, num_trials=6, max_iterations=1)
    combinations = set()
    for _ in range(6):
        trial = study.ask()
        combinations.add(tuple(trial.params.values()))
        trial.complete(1.0, {})
    assert len(combinations) == 6


@pytest.mark.parametrize(("maximize", "expected"), [(True, [False, True, False]), (False, [False, False, True])])
def test_asha_ends_what_is_not_among_the_best(tmp_path: Path, maximize: bool, expected: list[bool]) -> None:
    study = open_study(tmp_path, maximize=maximize)
    pruned = []
    for value in (2.0, 1.0, 3.0):
        trial = study.ask()
        trial.report(9, value)
        assert not trial.should_prune()  # before a ninth of the iterations
        trial.report(10, value)
        pruned.append(trial.should_prune())
        if pruned[-1]:
            trial.prune({})
    assert pruned == expected
    assert [trial.value for trial in study.results() if trial.state == "pruned"] == [1.0 if maximize else 3.0]
