from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mjtrain.config import LearnerConfig, to_plain
from mjtrain.runs.run_dir import save_params
from mjtrain.runtime import files
from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.tools.plotting import (
    Group,
    RunCurves,
    average,
    draw_curves,
    group_runs,
    load_curves,
    make_figure,
    resolve_metrics,
    x_values,
)


def make_run(values: list[float | None], seconds: float = 1.0, **settings: Any) -> RunCurves:
    rows = [
        {
            "iteration": at + 1,
            "env_steps_total": 100 * (at + 1),
            "collect_time_s": seconds / 2,
            "learn_time_s": seconds / 4,
            "wait_time_s": seconds / 4,
            "mean_reward": value,
            "reward/upright": at,
        }
        for at, value in enumerate(values)
    ]
    return RunCurves(name="a run", rows=rows, settings={"task": "Cart", **settings})


def test_axes() -> None:
    rows = make_run([0, 0, 0], seconds=2.0).rows
    assert x_values(rows, "iterations").tolist() == [1, 2, 3]
    assert x_values(rows, "env-steps").tolist() == [100, 200, 300]
    assert x_values(rows, "wall-time").tolist() == [2, 4, 6]


def test_mean_and_band_over_runs_of_different_lengths() -> None:
    curve = average([make_run([None, 2, 4]), make_run([1, 4, 8, 10])], "mean_reward", "iterations")
    assert curve.x.tolist() == [1, 2, 3, 4]
    assert curve.mean.tolist() == [1, 3, 6, 10]
    assert curve.std.tolist() == [0, 1, 2, 0]


def test_runs_of_different_speed_are_interpolated() -> None:
    curve = average([make_run([1, 2, 3], seconds=1), make_run([10, 20], seconds=2)], "mean_reward", "wall-time")
    assert curve.x.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(curve.mean, [1, (2 + 10) / 2, (3 + 15) / 2, 20])


def test_seeds_are_grouped_and_groups_are_named_by_what_differs() -> None:
    slow, fast = {"agent.algorithm.learning_rate": 1e-4}, {"agent.algorithm.learning_rate": 1e-3}
    groups = group_runs([make_run([1], **slow), make_run([2], **fast), make_run([3], **slow)])
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("agent.algorithm.learning_rate 0.0001 (2 runs)", 2),
        ("agent.algorithm.learning_rate 0.001", 1),
    ]
    assert [group.label for group in group_runs([make_run([1]), make_run([2])])] == ["Cart (2 runs)"]
    assert [group.label for group in group_runs([make_run([1]), make_run([1], task="Dog", other=1)])] == ["Cart", "Dog"]


def test_learners_and_their_settings_are_apart(tmp_path: Path) -> None:
    """A run that recorded no learner is one of the default."""
    launch = {"task": "Cart", "run": {"num_envs": 8}, "plan": {"ranks": [0]}}
    learners = {
        "early": None,
        "usual": LearnerConfig(),
        "skrl": LearnerConfig(name="skrl"),
        "slow": LearnerConfig(name="skrl", settings={"learning_rate": 1e-4}),
    }
    for name, learner in learners.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"iteration": 1, "mean_reward": 1.0}\n')
        save_params(tmp_path / name, env={"step_dt": 0.02}, agent={"seed": 1}, launch=launch)
        if learner is not None:
            save_params(tmp_path / name, learner=to_plain(learner))
    groups = group_runs([load_curves(tmp_path / name) for name in learners])
    assert [group.label for group in groups] == [
        "learner.name rsl_rl, learner.settings.learning_rate None (2 runs)",
        "learner.name skrl, learner.settings.learning_rate None",
        "learner.name skrl, learner.settings.learning_rate 0.0001",
    ]


def test_an_engine_that_was_chosen_is_the_same_as_one_that_was_named(tmp_path: Path) -> None:
    for name, engine, device in (("a", "auto", "cpu"), ("b", "native", "cpu"), ("c", "auto", "cuda:0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"iteration": 1, "mean_reward": 1.0}\n')
        launch = {"task": "Cart", "run": {"engine": engine}, "plan": {"ranks": [{"device": device}]}}
        save_params(tmp_path / name, env={"robot": {"file": "cart.xml"}}, agent={}, launch=launch)
    groups = group_runs([load_curves(tmp_path / name) for name in "abc"])
    assert [group.label for group in groups] == ["engine native (2 runs)", "engine warp"]
    save_params(tmp_path / "a", launch={"task": "Cart", "run": {"engine": "auto"}, "plan": {"ranks": []}})
    assert load_curves(tmp_path / "a").settings == {"run": "a"}, "edited by hand"


def test_a_task_file_is_one_task_however_it_was_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file of the same name is another task."""
    monkeypatch.chdir(tmp_path)
    spelled = {"a": "cart.py", "b": "./cart.py", "c": f"{tmp_path}/logs/../cart.py", "d": "other/cart.py"}
    for name, file in spelled.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"iteration": 1, "mean_reward": 1.0}\n')
        launch = {"task": f"{file}:make", "task_file": str(Path(file).absolute()), "run": {}, "plan": {"ranks": [0]}}
        save_params(tmp_path / name, env={}, agent={}, launch=launch)
    groups = group_runs([load_curves(tmp_path / name) for name in spelled])
    assert [group.label for group in groups] == ["cart.py:make (3 runs)", "other/cart.py:make"]


def test_metrics_by_name_and_pattern() -> None:
    runs = [make_run([1, 2])]
    assert resolve_metrics(["mean_reward", "reward/*"], runs) == ["mean_reward", "reward/upright"]
    with pytest.raises(RequestError, match=r"--y mean_rewrd: no run has such numbers; did you mean mean_reward\?"):
        resolve_metrics(["mean_rewrd"], runs)


@pytest.mark.parametrize("num_metrics", [1, 4])
def test_a_legend_of_long_settings_covers_nothing(num_metrics: int) -> None:
    setting = "--load logs/g1_make_task/2026-11-25_09-12-44_standing_first_with_small_tolerance/model_171.pt"
    runs = [make_run([1.0, 2.0], load=f"{setting} --env.rewards.track.params.tolerance {seed}") for seed in (1, 2)]
    metrics = ["mean_reward"] * num_metrics
    figure = make_figure(group_runs(runs), metrics, "iterations")
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.width
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert legend.y0 >= 0
    for axes in shown:
        box = axes.get_tightbbox()
        assert box is not None
        assert box.y0 >= legend.y1
        assert box.x0 >= 0
        assert axes.get_window_extent().width > 0.5 * figure.bbox.width / min(num_metrics, 3)


def test_a_full_disk_leaves_the_picture_before(tmp_path: Path) -> None:
    groups = [Group(label="one", runs=(make_run([1, 2, 3]),))]
    picture, link = tmp_path / "curves.png", tmp_path / "link.png"
    link.symlink_to(picture)
    draw_curves(groups, ["mean_reward"], "iterations", link)
    before = picture.read_bytes()
    assert before.startswith(b"\x89PNG")
    assert link.is_symlink()
    files.full.add(picture)
    with pytest.raises(OutsideError, match=r"--out \S*link\.png: cannot be written \(No space left on device\)"):
        draw_curves(groups, ["reward/upright"], "iterations", link)
    assert picture.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "link.png"]
