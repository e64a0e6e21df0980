"""Recorded runs resume and play: one of each task, and one of two ranks, for each format of run directories."""

import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mjtrain.api import make_train_config
from mjtrain.cli import play
from mjtrain.cli import train as train_command
from mjtrain.config import ActuatorConfig, LaunchConfig
from mjtrain.env.env import Env
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.evaluation.playing.evaluate import with_other_env
from mjtrain.evaluation.playing.player import Player
from mjtrain.runs.bundle import read_weights, write_weights
from mjtrain.runs.checkpoint import FORMAT, CheckpointError, load_checkpoint, save_checkpoint
from mjtrain.runs.trained_run import find_trained_run
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.training.request import resolve_training

FIXTURES = Path(__file__).parents[1] / "fixtures"
TASKS = {
    "arm_lift_cube": "Arm-Lift-Cube",
    "arm_reach": "Arm-Reach",
    "cartpole_balance": "Cartpole-Balance",
    "cartpole_balance_two_ranks": "Cartpole-Balance",
    "cartpole_swingup": "Cartpole-Swingup",
    "hand_reorient_cube": "Hand-Reorient-Cube",
    "quadruped_velocity_flat": "Quadruped-Velocity-Flat",
    "quadruped_velocity_rough": "Quadruped-Velocity-Rough",
}
RUNS = [(folder.name, name) for folder in sorted(FIXTURES.glob("format_*")) for name in TASKS]
RECORDED = [
    *("--gpu-ids", "None", "--num-threads", "1", "--seed", "5", "--num-envs", "2", "--max-iterations", "3"),
    *("--logger", "none", "--agent.num-steps-per-env", "4", "--agent.algorithm.num-mini-batches", "2"),
    *("--agent.actor.hidden-dims", "4", "--agent.critic.hidden-dims", "4"),
    *("--agent.actor.activation", "elu", "--agent.critic.activation", "elu"),
]
"""The settings that made the runs (with --max-iterations 2), and one more iteration."""
CHANGED = {"cartpole_swingup": "the state is of another environment: statistics.totals differ"}
"""Tasks that have gained a term since they were recorded, and what a resume says about it."""
SHORT = ["--env.episode-length-s", "0.2"]


def unpack(format_folder: str, name: str, folder: Path) -> Path:
    """Unpack a recorded run, with its copy of the robot."""
    run_dir = folder / "run"
    with tarfile.open(FIXTURES / format_folder / f"{name}.tar.xz") as archive:
        archive.extractall(run_dir, filter="data")
    return run_dir


@pytest.mark.parametrize(("format_folder", "name"), RUNS)
def test_a_recorded_run_resumes(
    format_folder: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = unpack(format_folder, name, tmp_path)
    num_ranks = 2 if name.endswith("two_ranks") else 1
    flags = ["--num-workers", "2"] if num_ranks == 2 else []
    train_command.main([TASKS[name], "--resume", str(run_dir), *RECORDED, *flags])
    text = "".join(capsys.readouterr())
    assert "resuming from" in text
    restarts = re.findall("environments and random numbers start again: (.*)", text)
    assert [cause.startswith(CHANGED.get(name, "none")) for cause in restarts] == [True] * (name in CHANGED)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    iterations = [row["iteration"] for row in rows if "event" not in row]
    assert iterations == [1, 2, 3]
    before, after = (load_checkpoint(run_dir / f"model_{iteration}.pt", "cpu") for iteration in (2, 3))
    assert torch.load(run_dir / "model_3.pt", weights_only=True)["format"] == FORMAT
    assert len(before["ranks"]) == len(after["ranks"]) == num_ranks
    assert after["infos"]["env_steps_total"] == before["infos"]["env_steps_total"] * 3 // 2


@pytest.mark.parametrize(("format_folder", "name"), RUNS)
def test_a_recorded_run_plays(
    format_folder: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = unpack(format_folder, name, tmp_path)
    play.main([TASKS[name], "--run", str(run_dir), "--episodes", "2", "--gpu-ids", "None", "--json", *SHORT])
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert report["iteration"] == 2
    assert report["num_envs"] * report["episodes_per_env"] == 2
    assert "using the robot of the task" not in output.err


def record(run_dir: Path, changes: dict[str, Any]) -> None:
    """Change values of a recorded environment, by their paths; "+" adds to a dictionary."""
    path = run_dir / "params" / "env.yaml"
    content = yaml.safe_load(path.read_text())
    for name, value in changes.items():
        *way, last = name.split(".")
        part = content
        for word in way:
            part = part[word]
        part[last] = value
    path.write_text(yaml.safe_dump(content))


PUSH = {"func": "mjtrain.mdp.events:apply_body_impulse", "mode": "reset"}
BENT = {"func": "mjtrain.mdp.terminations:joint_out_of_range"}
WITHOUT_EFFECT: dict[str, Any] = {
    "robot.sensors.hand_on_ground.data": ["pos", "found"],
    "robot.sensors.frame": {"type": "framepos", "object": "hand", "num": 2},
    "events.push": {**PUSH, "params": {"body": "hand", "force_n": [1.0, 2.0], "duration_s": [0.1, 0.2]}},
    "terminations.bent": {**BENT, "params": {"joint": "elbow", "limit": 9.0, "low": -1.0}},
}
BEYOND_LIMITS: dict[str, Any] = {
    "robot.lights.lamp": {"diffuse": [2.0, 2.0, 2.0]},
    "robot.geoms.painted": {"geoms": ["hand"], "rgba": [255.0, 0.0, 0.0, 1.0]},
}


def test_a_recorded_run_with_what_is_refused_today_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What had no effect is left out, what is beyond today's limits stays, and each is said in a line."""
    run_dir = unpack("format_1", "arm_lift_cube", tmp_path)
    record(run_dir, WITHOUT_EFFECT | BEYOND_LIMITS)
    run = find_trained_run("Arm-Lift-Cube", run=str(run_dir))
    told = "\n".join(run.notices)
    assert "env.robot.sensors.hand_on_ground.data: ['pos', 'found'] -> ['found', 'pos'], which makes no" in told
    assert "recorded --env.robot.lights.lamp.diffuse 2 2 2: each must be at least 0 and at most 1" in told
    for name in ("robot.sensors.frame.num", "events.push", "terminations.bent.params.low", "robot.geoms.painted.rgba"):
        assert f"env.{name}" in told
    with Player(RankContext(), run) as player:
        player.step()
        with pytest.raises(RequestError, match="diffuse 2 2 2: each must be at least 0 and at most 1"):
            Env(run.own_env, player.env.engine, seed=0)
    with pytest.raises(SystemExit):
        play.main([str(run_dir), "--env.robot.lights.lamp.diffuse", "3", "1", "1", "--gpu-ids", "None"])
    assert "play: --env.robot.lights.lamp.diffuse 3 1 1: each must be at least 0" in capsys.readouterr().err
    for change, problem in (
        ({"decimation": 0}, "--env.decimation 0: must be at least 1"),
        ({"robot.sensors.frame.data": None}, "--env.robot.sensors.frame.data: is None; give a tuple"),
    ):
        record(run_dir, change)  # no run can have been trained so
        run = find_trained_run("Arm-Lift-Cube", run=str(run_dir))
        with pytest.raises(RequestError, match=problem):
            Player(RankContext(), run)


def test_a_run_may_be_played_in_the_environment_that_it_recorded(tmp_path: Path) -> None:
    """With what is refused today in an event, which the environment of an evaluation does not have."""
    run_dir = unpack("format_1", "arm_lift_cube", tmp_path)
    record(run_dir, {"events.friction.params.sliding": [-0.1, 1.2]})
    run = find_trained_run("Arm-Lift-Cube", run=str(run_dir))
    evaluated = replace(run, env=to_eval_config(run.own_env))
    assert with_other_env(evaluated, run.env).env == run.env
    record(run_dir, {"events.friction.params.sliding": [-0.2, 1.2]})
    other = find_trained_run("Arm-Lift-Cube", run=str(run_dir)).env
    with pytest.raises(RequestError, match=r"^--env.events.friction.params.sliding -0.2 1.2: each must be at least 0"):
        with_other_env(evaluated, other)


def test_a_resumed_run_may_have_what_had_no_effect(tmp_path: Path) -> None:
    run_dir = unpack("format_1", "arm_lift_cube", tmp_path)
    config = make_train_config("Arm-Lift-Cube", resume=str(run_dir), max_iterations=3)
    motor = ActuatorConfig(joints=("elbow",), type="motor", kv=2.0)
    config = replace(config, env=replace(config.env, robot=replace(config.env.robot, actuators={"elbow": motor})))
    launch = LaunchConfig(gpu_ids=None, num_threads=1)
    with pytest.raises(RequestError, match=r"actuators\.elbow\.kv 2: type motor ignores it; leave it out"):
        resolve_training(replace(config, run=replace(config.run, resume=None)), launch)
    request = resolve_training(config, launch)
    assert "env.robot.actuators.elbow.kv: 2.0 -> 0.0, which makes no difference" in request.notices
    assert request.config.env.robot.actuators["elbow"].kv == 0.0


def test_weights_of_a_newer_format_are_called_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_weights(path, {"format": FORMAT + 1, "layer": torch.zeros(1)})
    message = f"policy {path}: has format {FORMAT + 1}; this version reads format {FORMAT}; update mjtrain"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        read_weights(path, "cpu")


def test_a_newer_format_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model_3.pt"
    save_checkpoint(path, {"format": FORMAT + 1, "iter": 3})
    message = f"checkpoint {path}: has format {FORMAT + 1}; this version reads format {FORMAT}; update mjtrain"
    with pytest.raises(RequestError, match=re.escape(message)):
        load_checkpoint(path, "cpu")
    run_dir = unpack("format_1", "cartpole_balance", tmp_path)
    shutil.copy(path, run_dir)
    for main, arguments in (
        (play.main, ["Cartpole-Balance", "--run", str(run_dir), "--gpu-ids", "None"]),
        (train_command.main, ["Cartpole-Balance", "--resume", str(run_dir), *RECORDED, "--max-iterations", "4"]),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert f"has format {FORMAT + 1}" in capsys.readouterr().err.splitlines()[-1]
