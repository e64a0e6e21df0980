"""Policies are measured while they train, as play would measure them, and the training does not notice."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import TaskConfig
from mjtrain.evaluation.evaluator import SEED, Evaluator
from mjtrain.learning.library import make_learner
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.training.hooks import HookContext
from mjtrain.training.hooks.after_iteration import EvaluationHook
from mjtrain.training.metric_rules import list_metrics
from mjtrain.training.train_rank import make_env
from support import noisy_task
from support.jobs import LIMIT_S, Job
from support.promises import promised
from support.resuming import assert_same
from support.vision import make_vision_task

NOISY = f"{noisy_task.__file__}:make"
ONE = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1, seed=3)
TWO = replace(ONE, num_workers=2)
TIMES = ("time", "second", "slowest", "by_rank")


def train(task: str | TaskConfig, log_root: Path, launch: mjtrain.LaunchConfig = ONE, **options: Any) -> Path:
    return mjtrain.train(task, log_root=str(log_root), launch=launch, logger="none", **options).run_dir


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "event" not in row]


def without_evaluation(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in row if not key.startswith("eval/") and not any(word in key for word in TIMES)}


def evaluated(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith("eval/")}


def as_metrics(report: dict[str, Any]) -> dict[str, float]:
    """What play reports, by the names that an evaluation has."""
    means = {"return": report["reward"], "length": report["length"]}
    for kind, name in (("reward", "reward_terms"), ("error", "errors"), ("estimate", "estimates"), ("success",) * 2):
        field = {"success": "successes"}.get(name, name)
        means |= {f"{kind}/{term}": spread for term, spread in report[field].items()}
    causes = {name: cause["fraction"] for name, cause in report["terminations"].items()}
    ends = {f"termination/{name}": causes.get(name, 0.0) for name in {*causes, "not_finite", "unfinished"}}
    return {"episodes": report["episodes"], **{name: spread["mean"] for name, spread in means.items()}, **ends}


@pytest.mark.parametrize("launch", [ONE, TWO], ids=["one rank", "two ranks"])
def test_the_training_is_the_same_to_the_bit(launch: mjtrain.LaunchConfig, tmp_path: Path) -> None:
    """Also where terms draw from global generators and count in global variables."""
    plain = train(NOISY, tmp_path / "plain", launch)
    watched = train(NOISY, tmp_path / "watched", launch, eval_interval=1, eval_episodes=5)
    rows = read_rows(watched)
    assert [without_evaluation(row) for row in rows] == read_plain(plain)
    assert_same(*(without_paths(load_checkpoint(run_dir / "model_4.pt", "cpu")) for run_dir in (plain, watched)))
    returns = [row["eval/return"] for row in rows]
    assert len(set(returns)) == 4
    keys = dict.fromkeys(key for row in rows for key in row)  # in some iterations no episode ends
    own = [key for key in keys if key != "eval_time_s" and not any(word in key for word in ("_min_s", "_max_s"))]
    assert set(own) - {"slowest_rank", "busy_time_by_rank_s"} == set(list_metrics(make_train_config(NOISY)))


def read_plain(run_dir: Path) -> list[dict[str, Any]]:
    rows = read_rows(run_dir)
    assert all(not evaluated(row) for row in rows)
    return [without_evaluation(row) for row in rows]


def without_paths(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != "infos"}


@pytest.mark.parametrize("task", ["quadruped", "vision", "recurrent"])
def test_it_measures_what_play_measures(task: str, tmp_path: Path) -> None:
    """The same worlds with the same policy: the numbers of play are those of the evaluation, to the bit."""
    options: dict[str, Any] = {"num_envs": 4, "max_iterations": 2}
    if task == "quadruped":
        trained: Any = mjtrain.api.load_task("Quadruped-Velocity-Flat")
        options["env"] = replace(trained.env, episode_length_s=0.5)
    elif task == "vision":
        trained = make_vision_task()
    else:
        trained = mjtrain.api.load_task("Cartpole-Balance")
        small = {"class_name": "RNNModel", "rnn_hidden_dim": 8, "hidden_dims": (8,)}
        options["agent"] = replace(trained.agent, actor=replace(trained.agent.actor, **small), num_steps_per_env=8)
    run_dir = train(trained, tmp_path, eval_interval=1, eval_episodes=3, **options)
    first, last = read_rows(run_dir)
    assert first["eval/return"] != last["eval/return"]
    report = mjtrain.play(run_dir, checkpoint="model_2.pt", episodes=3, seed=SEED, num_threads=1)
    expected = {f"eval/{name}": value for name, value in as_metrics(report).items()}
    measured = {key: value for key, value in evaluated(last).items() if value is not None}
    assert measured == pytest.approx(expected, abs=1e-12)
    if task == "quadruped":
        assert measured["eval/error/velocity/planar"] > 0


def test_ranks_share_the_episodes(tmp_path: Path) -> None:
    """Of five episodes the first rank plays three and the second two, with seeds of their own."""
    run_dir = train("Cartpole-Balance", tmp_path, TWO, num_envs=8, max_iterations=1, eval_interval=9, eval_episodes=5)
    (row,) = read_rows(run_dir)
    shares = [
        mjtrain.play(run_dir, episodes=episodes, seed=SEED + rank, num_threads=1)
        for rank, episodes in enumerate((3, 2))
    ]
    for name, value in evaluated(row).items():
        of_ranks = [as_metrics(share)[name.removeprefix("eval/")] for share in shares]
        assert value == pytest.approx((3 * of_ranks[0] + 2 * of_ranks[1]) / (5 if "episodes" not in name else 2.6))
    assert row["eval/episodes"] == 5


def test_every_evaluation_begins_in_the_same_worlds() -> None:
    context = RankContext(seed=1)
    config = make_train_config("Quadruped-Velocity-Flat", num_envs=2, eval_interval=1, eval_episodes=4)
    config = replace(config, env=replace(config.env, episode_length_s=0.4))
    env = make_env(context, config)
    learner = make_learner(context, env, config.agent, config.learner)
    evaluator = Evaluator(context, config)
    one, again = (evaluator.evaluate(learner.policy_weights()) for _ in range(2))
    assert one == again
    assert one is not None
    next(learner.iterate(1))
    other = evaluator.evaluate(learner.policy_weights())
    assert other is not None
    assert other["eval/return"] != one["eval/return"]
    fresh = Evaluator(context, config)
    assert fresh.evaluate(learner.policy_weights()) == other
    for each in (evaluator, fresh, env):
        each.close()


def test_a_stop_ends_an_evaluation_and_saves(tmp_path: Path) -> None:
    """Of one episode the first rank plays all. An upload that is then not done in time is not a failure."""
    command = [str(Path(sys.executable).parent / "train"), f"{noisy_task.__file__}:make_slow", "--gpu-ids", "None"]
    command += ["--num-workers", "2", "--num-threads", "1", "--log-root", "logs", "--logger", "none"]
    command += ["--eval-interval", "1", "--eval-episodes", str(noisy_task.EVALUATED)]
    command += ["--checkpoint-url", f"file://{tmp_path}/stored", "--checkpoint-flush-s", "0"]
    job = Job(command, tmp_path)
    job.wait_for_file(tmp_path / noisy_task.MARKER)
    outcome = job.finish(job.kill(signal.SIGTERM))
    assert outcome.status == 128 + signal.SIGTERM
    assert outcome.noticed_s < promised(LIMIT_S)
    (run_dir,) = tmp_path.glob("logs/*/*")
    (row,) = read_rows(run_dir)
    assert not evaluated(row)
    assert load_checkpoint(run_dir / "model_1.pt", "cpu")["iter"] == 1


@pytest.mark.parametrize("iteration", [2, 4], ids=["then it trains", "the final one"])
def test_a_resumed_run_makes_up_for_the_evaluation_that_a_signal_prevented(iteration: int, tmp_path: Path) -> None:
    agent = replace(mjtrain.api.load_task("Cartpole-Balance").agent, save_interval=2)
    options: dict[str, Any] = {"num_envs": 8, "max_iterations": 4, "agent": agent, "resume": "auto"}
    options |= {"eval_interval": 2, "eval_episodes": 3}
    run_dir = train("Cartpole-Balance", tmp_path, **options)
    rows, best = read_rows(run_dir), json.loads((run_dir / "best.json").read_text())
    checkpoint = (run_dir / "model_4.pt").read_bytes()
    # What a signal in the evaluation of this iteration leaves.
    *before, last = rows[:iteration]
    last = {key: value for key, value in last.items() if not key.startswith("eval")}
    lines = [*before, last, {"event": "end", "how": "stopped", "signal": "SIGTERM"}]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run_dir / "best.json").unlink()
    if iteration == 2:
        (run_dir / "model_4.pt").unlink()
    else:
        first = {**best, "value": rows[1]["eval/return"], "iteration": 2}
        (run_dir / "best.json").write_text(json.dumps(first))
    assert train("Cartpole-Balance", tmp_path, **options) == run_dir
    again = read_rows(run_dir)
    assert [without_evaluation(row) for row in again] == [without_evaluation(row) for row in rows]
    assert [evaluated(row) for row in again] == [evaluated(row) for row in rows]
    assert "eval_time_s" in again[iteration - 1]
    assert json.loads((run_dir / "best.json").read_text()) == best
    assert (run_dir / "model_4.pt").read_bytes() == checkpoint


def test_an_evaluation_that_fails_before_the_training_releases_its_worlds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, config = RankContext(), make_train_config("Cartpole-Balance", num_envs=2, eval_interval=2, eval_episodes=2)
    row = {"iteration": 2, "mean_reward": 1.0, "mean_episode_length": 2.0, "env_steps_per_second": 3.0}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
    env = make_env(rank, config)
    learner: Any = make_learner(rank, env, config.agent, config.learner)
    learner.iteration = 2
    shared: dict[str, Any] = {"claim": "", "is_new": False, "last_iteration": 4, "report": None}
    hook = EvaluationHook(
        HookContext(rank_context=rank, config=config, run_dir=tmp_path, env=env, learner=learner, **shared)
    )
    closed, close = [], hook._evaluator.close
    monkeypatch.setattr(hook._evaluator, "close", lambda: closed.append(close()))
    monkeypatch.setattr(learner, "policy_weights", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError), hook:
        pytest.fail("the evaluation was not made up for")
    assert closed == [None]
    env.close()


def test_a_run_ends_early_and_its_best_checkpoint_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Only the newest one is kept, and the best; a resumption knows how good that was."""
    options: dict[str, Any] = {
        "agent": replace(mjtrain.api.load_task(NOISY).agent, save_interval=1),
        "keep_checkpoints": 1,
        "eval_interval": 1,
        "eval_episodes": 4,
        "best_metric": "-eval/length",
    }
    result = mjtrain.train(
        NOISY, stop_when=("mean_reward>1e9", "iteration>=3"), log_root=str(tmp_path), launch=ONE, logger="none",
        **options,
    )  # fmt: skip
    run_dir = result.run_dir
    assert result.ended_by == "--stop-when iteration>=3: 3 after 3 iterations"
    assert result.checkpoint.name == "model_3.pt"
    assert "ends as planned by --stop-when iteration>=3" in capfd.readouterr().out
    (*_, end) = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert (end["how"], end["because"]) == ("done", result.ended_by)
    check_best(run_dir, {3})

    best = json.loads((run_dir / "best.json").read_text())
    (run_dir / "best.json").write_text(json.dumps({**best, "value": -1.0}))  # better than any that follows
    train(NOISY, tmp_path, resume=str(run_dir), max_iterations=5, **options)
    assert json.loads((run_dir / "best.json").read_text())["value"] == -1.0
    assert {path.name for path in run_dir.glob("*.pt")} == {f"model_{best['iteration']}.pt", "model_5.pt"}

    found = mjtrain.Run(run_dir).best_checkpoint
    assert found is not None
    assert found.name == f"model_{best['iteration']}.pt"
    assert mjtrain.play(run_dir, checkpoint="best", episodes=1)["iteration"] == best["iteration"]
    assert mjtrain.load_policy(run_dir, checkpoint="best").iteration == best["iteration"]
    task_of = mjtrain.play(NOISY, checkpoint="best", log_root=str(tmp_path), episodes=1)
    assert task_of["checkpoint"] == str(found)
    assert mjtrain.load_policy(NOISY, checkpoint=f"{run_dir}/best").checkpoint == found
    other = train(NOISY, tmp_path / "other", load=f"{run_dir}/best", max_iterations=1)
    assert str(found) in (other / "params" / "launch.yaml").read_text()
    with pytest.raises(RequestError, match=r"--checkpoint best: no best checkpoint is recorded in .*--eval-interval"):
        mjtrain.play(other, checkpoint="best")
    with pytest.raises(RequestError, match=r"--load .*/best: no best checkpoint is recorded"):
        train(NOISY, tmp_path, load=f"{other}/best")


def test_an_early_end_is_evaluated(tmp_path: Path) -> None:
    run_dir = train(NOISY, tmp_path, eval_interval=100, eval_episodes=2, stop_when=("iteration>=2",))
    assert [bool(evaluated(row)) for row in read_rows(run_dir)] == [False, True]
    assert json.loads((run_dir / "best.json").read_text())["iteration"] == 2


def test_a_run_that_was_killed_after_its_last_save_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    """Without the record of its best checkpoint, its evaluation and its end; a row may also be missing."""
    stop = {"stop_when": ("mean_reward>1e9", "iteration>=2")}
    options: dict[str, Any] = {
        "log_root": str(tmp_path), "launch": TWO, "logger": "none", "best_metric": "iteration", "max_iterations": 9,
        "eval_interval": 100, "eval_episodes": 1,
    }  # fmt: skip
    first = mjtrain.train(NOISY, **stop, **options)
    assert first.ended_by == "--stop-when iteration>=2: 2 after 2 iterations"
    best = json.loads((first.run_dir / "best.json").read_text())
    checkpoint = first.checkpoint.read_bytes()
    (first.run_dir / "best.json").unlink()
    rows = [{key: row[key] for key in row if not key.startswith("eval")} for row in read_rows(first.run_dir)]
    (first.run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    again = mjtrain.train(NOISY, resume=str(first.run_dir), **stop, **options)
    assert again.ended_by == first.ended_by
    assert [(row["iteration"], row.get("eval/episodes")) for row in read_rows(first.run_dir)] == [(1, None), (2, 1)]
    assert again.checkpoint == first.checkpoint
    assert first.checkpoint.read_bytes() == checkpoint
    assert json.loads((first.run_dir / "best.json").read_text()) == best

    other = mjtrain.train(NOISY, resume=str(first.run_dir), stop_when=("iteration>=3",), **options)
    assert other.ended_by == "--stop-when iteration>=3: 3 after 3 iterations"
    (first.run_dir / "metrics.jsonl").unlink()
    without = mjtrain.train(NOISY, resume=str(first.run_dir), stop_when=("iteration>=3",), **options)
    assert without.ended_by == "--stop-when iteration>=3: 4 after 4 iterations"


def check_best(run_dir: Path, others: set[int]) -> None:
    rows = read_rows(run_dir)
    best = min(rows, key=lambda row: row["eval/length"])  # of equal ones the first
    expected = {"metric": "eval/length", "value": best["eval/length"], "iteration": best["iteration"]}
    assert json.loads((run_dir / "best.json").read_text()) == expected
    kept = {int(path.stem.removeprefix("model_")) for path in run_dir.glob("*.pt")}
    assert kept == {best["iteration"], *others}


def test_threads_and_generators_are_as_before() -> None:
    context = RankContext(num_threads=1)
    config = make_train_config(NOISY, eval_interval=1, eval_episodes=2)
    learner = make_learner(context, make_env(context, config), config.agent, config.learner)
    states = torch.get_rng_state(), torch.get_num_threads(), noisy_task.CALLS
    evaluator = Evaluator(context, config)
    assert evaluator.evaluate(learner.policy_weights()) is not None
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (torch.get_num_threads(), noisy_task.CALLS)
