"""What a task's name, a run or a checkpoint leads to."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import mjtrain
from mjtrain.env.catalog import load_task
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.evaluation.playing.player import Player
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.runs.trained_run import TrainedRun, find_trained_run
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext


def test_the_newest_valid_checkpoint_of_the_newest_run_is_found(log_root: Path, cartpole_run: Path) -> None:
    run = find_trained_run("cartpole-balance", log_root=str(log_root))
    assert run.task == "Cartpole-Balance"
    assert run.run_dir == cartpole_run
    assert run.checkpoint == cartpole_run / "model_40.pt"
    assert run.notices == ()


def test_a_training_that_has_just_begun_is_passed_over(log_root: Path, cartpole_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cartpole_balance"
    shutil.copytree(cartpole_run, folder / "2026-01-01_00-00-00")
    (folder / "2027-01-01_00-00-00").mkdir()
    run = find_trained_run("Cartpole-Balance", log_root=str(tmp_path))
    assert run.run_dir is not None
    assert run.run_dir.name == "2026-01-01_00-00-00"
    (line,) = run.notices
    assert "2027-01-01_00-00-00: no checkpoint found in it" in line


def test_a_broken_newest_checkpoint_is_passed_over(cartpole_run: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(cartpole_run, run_dir)
    newest = run_dir / "model_40.pt"
    newest.write_bytes(newest.read_bytes()[:-500])
    run = find_trained_run("Cartpole-Balance", run=str(run_dir))
    assert run.checkpoint == run_dir / "model_30.pt"
    (line,) = run.notices
    assert "model_40.pt" in line


@pytest.mark.parametrize("checkpoint", [None, "model_40.pt"])
def test_a_training_may_delete_a_checkpoint_before_it_is_read(
    checkpoint: str | None, cartpole_run: Path, tmp_path: Path
) -> None:
    """As with --keep-checkpoints; a push reads it several times."""
    for task in ("Cartpole-Balance", None):
        run_dir = tmp_path / (task or "run")
        shutil.copytree(cartpole_run, run_dir)
        named = None if task is None else str(run_dir)
        found = find_trained_run(task or str(run_dir), run=named, checkpoint=checkpoint)
        assert found.checkpoint is not None
        found.checkpoint.unlink()
        for _ in range(2):
            with Player(RankContext(), found) as player:
                assert player.iteration == 40
        again = find_trained_run(str(run_dir), checkpoint=str(found.checkpoint))  # so does a push, to measure it
        with Player(RankContext(), again) as player:
            assert player.iteration == 40


def test_a_run_and_the_name_of_a_checkpoint(cartpole_run: Path) -> None:
    for task, run in (("Cartpole-Balance", str(cartpole_run)), (str(cartpole_run), None)):
        found = find_trained_run(task, run=run, checkpoint="model_20.pt")
        assert (found.run_dir, found.checkpoint) == (cartpole_run, cartpole_run / "model_20.pt")


def test_the_configs_are_those_of_the_run(cartpole_run: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(cartpole_run, run_dir)
    env_file = run_dir / "params" / "env.yaml"
    env = yaml.safe_load(env_file.read_text())
    env["terminations"]["pole_fell"]["params"]["limit"] = 0.25
    env_file.write_text(yaml.safe_dump(env))
    found = find_trained_run("Cartpole-Balance", run=str(run_dir)).own_env
    original = load_task("Cartpole-Balance").env
    assert found.terminations["pole_fell"].params == {"joint": "hinge", "limit": 0.25}
    assert found.robot.file == str(run_dir / "robot" / "cartpole.xml")
    assert dataclasses.replace(found, terminations=original.terminations, robot=original.robot) == original


def test_what_cannot_be_played_is_named(log_root: Path, cartpole_run: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    truncated = tmp_path / "model_1.pt"
    truncated.write_bytes((cartpole_run / "model_40.pt").read_bytes()[:2000])
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"run": str(cartpole_run)}, "is a run of task Cartpole-Balance, and this is Arm-Reach"),
        ({"checkpoint": str(cartpole_run / "model_40.pt")}, "is a run of task Cartpole-Balance, and this is Arm-Reach"),
        ({"run": str(empty)}, "no checkpoint found in it"),
        ({"run": str(tmp_path / "gone")}, "no such run directory"),
        ({"log_root": str(log_root)}, "no run of Arm-Reach below .* has a valid checkpoint"),
    )
    for arguments, message in cases:
        with pytest.raises(RequestError, match=message):
            find_trained_run("Arm-Reach", **arguments)
    run = find_trained_run("Cartpole-Balance", checkpoint=str(truncated))
    with pytest.raises(RequestError, match=r"model_1.pt: not a complete checkpoint"):
        Player(mjtrain.RankContext(), run)
    quadruped = find_trained_run("Quadruped-Velocity-Flat", log_root=str(log_root))
    other = dataclasses.replace(run, checkpoint=quadruped.checkpoint)
    with pytest.raises(RequestError, match="is of task Quadruped-Velocity-Flat, and this is Cartpole-Balance"):
        Player(mjtrain.RankContext(), other)


def test_the_policy_is_the_one_that_was_trained(cartpole_run: Path) -> None:
    run = find_trained_run("Cartpole-Balance", run=str(cartpole_run))
    player = Player(mjtrain.RankContext(seed=3), run, num_envs=16)
    runner = Runner(mjtrain.RankContext(), player.env, run.agent)
    assert run.checkpoint is not None
    runner.load_weights(run.checkpoint)
    runner.alg.eval_mode()
    for _ in range(5):
        with torch.inference_mode():
            expected = runner.alg.get_policy()(runner.env.get_observations())
        assert torch.equal(player.act(), expected)
        player.step()
    before = player.act()
    player.load(cartpole_run / "model_10.pt")
    assert not torch.equal(player.act(), before)
    player.load(run.checkpoint)
    assert torch.equal(player.act(), before)


def test_play_mode_takes_noise_pushes_and_random_robots_out() -> None:
    original = load_task("Quadruped-Velocity-Rough").env
    calm = to_eval_config(original)
    assert not calm.observation_noise
    assert {term.mode for term in calm.events.values()} == {"reset"}
    assert to_eval_config(original, noise=True, pushes=True, randomization=True).events == original.events
    run = TrainedRun(task="Quadruped-Velocity-Rough", env=calm, agent=load_task("Quadruped-Velocity-Rough").agent)
    player = Player(mjtrain.RankContext(), run, num_envs=64, policy="random")
    levels = player.env.level("terrain").clone()
    assert levels.min() < 1.5
    assert levels.max() > 7.5
    for _ in range(30):
        player.step()
    player.env.reset(torch.ones(64, dtype=torch.bool))
    assert torch.equal(player.env.level("terrain"), levels)
    twin = Player(mjtrain.RankContext(), run, num_envs=64, policy="random")
    assert torch.equal(twin.env.level("terrain"), levels)
    zero = Player(mjtrain.RankContext(), run, num_envs=2, policy="zero")
    assert not zero.act().any()
