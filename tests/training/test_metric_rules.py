"""When a run ends early, and which checkpoint is the best."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig, LearnerConfig, RunConfig, SymmetryConfig
from mjtrain.env.catalog import load_task
from mjtrain.runtime.errors import RequestError
from mjtrain.training.metric_rules import Ranking, find_ranking, find_rule_problems, parse_stop_condition
from mjtrain.training.request import resolve_training


@pytest.mark.parametrize(
    ("text", "met", "not_met"),
    [
        ("kl>=0.5", (0.5, 0.6), (0.4, None, math.nan)),
        ("kl > 5e-1", (0.6, math.inf), (0.5, None, math.nan)),
        (" kl<=-2", (-2, -3.0), (-1.0, None, math.nan)),
        ("kl<0", (-1,), (0, None, math.nan)),
    ],
)
def test_a_condition_is_met_or_not(text: str, met: tuple[float, ...], not_met: tuple[float | None, ...]) -> None:
    condition = parse_stop_condition(text)
    assert all(condition.is_met({"kl": value}) for value in met)
    assert not any(condition.is_met({"kl": value}) for value in not_met)
    assert not condition.is_met({"iteration": 3})


@pytest.mark.parametrize("text", ["env_steps_total>=12345678", "mean_reward>=0.9999999", "kl<-0.5", "kl<=1e-09"])
def test_a_condition_is_shown_as_it_was_given(text: str) -> None:
    assert str(parse_stop_condition(text)) == text


@pytest.mark.parametrize("text", ["kl", "kl=3", "kl==3", ">3", "kl>", "kl>three", "kl>nan", "kl>=3>=2", ""])
def test_anything_else_is_no_condition(text: str) -> None:
    with pytest.raises(RequestError, match="give a metric, one of >= > <= <, and a number"):
        parse_stop_condition(text)


@pytest.mark.parametrize(
    ("run", "ranking"),
    [
        (RunConfig(), None),
        (RunConfig(eval_interval=5), Ranking(metric="eval/return")),
        (RunConfig(best_metric="mean_reward"), Ranking(metric="mean_reward")),
        (RunConfig(eval_interval=5, best_metric="-eval/length"), Ranking(metric="eval/length", smaller_is_better=True)),
        (RunConfig(best_metric="loss/value"), Ranking(metric="loss/value", smaller_is_better=True)),
        (RunConfig(best_metric="+loss/value"), Ranking(metric="loss/value")),
        (RunConfig(best_metric="eval/error/aim/miss"), Ranking(metric="eval/error/aim/miss", smaller_is_better=True)),
    ],
)
def test_what_ranks_checkpoints(run: RunConfig, ranking: Ranking | None) -> None:
    assert find_ranking(run) == ranking


def test_an_algorithm_of_ones_own_names_its_losses() -> None:
    config = make_train_config("Cartpole-Balance", stop_when=("loss/mine<1", "loss/value<1"))
    assert [line.partition(";")[0] for line in find_rule_problems(config)] == [
        "--stop-when loss/mine<1: unknown metric loss/mine"
    ]
    algorithm = replace(config.agent.algorithm, class_name="my_robots.ppo:MyPpo")
    assert not list(find_rule_problems(replace(config, agent=replace(config.agent, algorithm=algorithm))))


@pytest.mark.parametrize(
    ("settings", "unknown"),
    [
        ({}, ["loss/rnd", "loss/mine"]),
        ({"algorithm": {"rnd_cfg": None}}, ["loss/rnd", "loss/mine"]),
        ({"algorithm": {"rnd_cfg": {"weight": 1.0}}}, ["loss/mine"]),
        ({"algorithm": {"class_name": "my_robots.ppo:MyPpo"}}, []),
        ({"algorithm": "PPO"}, ["loss/rnd", "loss/mine"]),
    ],
)
def test_losses_follow_from_the_learner_config(settings: dict[str, Any], unknown: list[str]) -> None:
    config = make_train_config("Cartpole-Balance", stop_when=("loss/rnd<1",), best_metric="loss/mine")
    problems = find_rule_problems(replace(config, learner=LearnerConfig(settings=settings)))
    assert [problem.partition("unknown metric ")[2].partition(";")[0] for problem in problems] == unknown


def test_a_symmetry_has_a_loss() -> None:
    config = make_train_config("Quadruped-Velocity-Flat", stop_when=("loss/symmetry<1",))
    assert [str(problem).partition(";")[0] for problem in find_rule_problems(config)] == [
        "--stop-when loss/symmetry<1: unknown metric loss/symmetry"
    ]
    symmetry = SymmetryConfig(use_mirror_loss=True)
    agent = replace(config.agent, algorithm=replace(config.agent.algorithm, symmetry_cfg=symmetry))
    assert list(find_rule_problems(replace(config, agent=agent))) == []


@pytest.mark.usefixtures("short_trial")
def test_another_learner_names_its_losses() -> None:
    on_cpu = LaunchConfig(gpu_ids=None)
    with pytest.raises(RequestError, match="unknown metric loss/bounds"):
        resolve_training(make_train_config("Cartpole-Balance", stop_when=("loss/bounds<1",)), on_cpu)
    config = make_train_config("Cartpole-Balance", stop_when=("loss/bounds<1",), learner="rl_games")
    assert resolve_training(config, on_cpu).config.run.stop_when == ("loss/bounds<1",)


@pytest.mark.usefixtures("short_trial")
def test_a_loss_that_another_algorithm_does_not_report_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = load_task("Cartpole-Balance").agent
    mjtrain.train(
        "Cartpole-Balance",
        agent=replace(agent, algorithm=replace(agent.algorithm, class_name="rsl_rl.algorithms:PPO")),
        num_envs=2,
        max_iterations=2,
        stop_when=("loss/values<0", "loss/value<0"),
        best_metric="loss/mine",
        launch=LaunchConfig(gpu_ids=None, num_threads=1),
        log_root=str(tmp_path),
        logger="none",
    )
    said = [line for line in "".join(capsys.readouterr()).splitlines() if "iteration 1 has no" in line]
    assert [line.partition(": ")[2].partition(";")[0] for line in said] == [
        "--stop-when loss/values<0: iteration 1 has no loss/values",
        "--best-metric loss/mine: iteration 1 has no loss/mine",
    ], said


def test_environments_of_others_say_what_they_log_only_while_they_run() -> None:
    for task, known in (("gymnasium:Pendulum-v1", True), ("Cartpole-Balance", False)):
        problems = list(find_rule_problems(make_train_config(task, stop_when=("log/Metrics/distance<1",))))
        assert (problems == []) is known, problems


def test_only_what_is_better_is_better() -> None:
    larger, smaller = Ranking(metric="kl"), Ranking(metric="kl", smaller_is_better=True)
    assert larger.is_better(-1.0, None)
    assert larger.is_better(2.0, 1.0)
    assert smaller.is_better(1.0, 2.0)
    for ranking in (larger, smaller):
        assert not ranking.is_better(1.0, 1.0)
        assert not ranking.is_better(None, None)
        for value in (math.nan, math.inf, -math.inf):
            assert not ranking.is_better(value, None)
    assert not larger.is_better(1.0, 2.0)
