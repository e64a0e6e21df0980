"""The command play: a table, JSON, and clear words where there is nothing to play."""

import contextlib
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from mjtrain.cli.play import main
from mjtrain.config import PlayConfig
from mjtrain.evaluation.playing.evaluate import find_run_to_play, find_values_beyond
from support.commands import start
from support.jobs import Job
from support.machine import patience, wait_until

BIN = Path(sys.executable).parent


def report(capsys: pytest.CaptureFixture[str], *args: str) -> dict:
    main([*args, "--num-threads", "1", "--json"])
    return json.loads(capsys.readouterr().out)


_UNBOUNDED = """from dataclasses import replace

import torch

import mjtrain
from mjtrain_tasks.cartpole_balance import make_task


def grows(env):
    return torch.where(env.episode_step == 5, torch.inf, 1.0)


def make():
    task = make_task()
    return replace(task, env=replace(task.env, rewards={"grows": mjtrain.RewardTerm(func=grows, weight=1.0)}))
"""


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "task.py"
    file.write_text(_UNBOUNDED)
    found = report(capsys, f"{file}:make", "--policy", "zero", "--episodes", "2", "--env.episode-length-s", "0.4")
    assert found["reward"] == dict.fromkeys(("mean", "std", "min", "max")) | {"unit": ""}
    assert found["length"]["mean"] == 20.0


def test_a_trained_policy_is_measured(log_root: Path, cartpole_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("cartpole-balance", "--log-root", str(log_root), "--episodes", "8")
    with contextlib.chdir(log_root):
        main([*args, "--num-threads", "1"])
    table = capsys.readouterr().out
    for words in (
        f"8 episodes of {cartpole_run.relative_to(log_root)}/model_40.pt\n",
        "return",
        "episode length",
        "reward/upright",
        "termination/pole_fell",
    ):
        assert words in table
    found = report(capsys, *args)
    assert found["episodes"] == 8
    assert found["iteration"] == 40
    assert found["length"]["mean"] > 100
    assert found["reward"]["mean"] == pytest.approx(sum(term["mean"] for term in found["reward_terms"].values()))
    assert found == report(capsys, *args)
    assert found["reward"] != report(capsys, *args, "--seed", "1")["reward"]
    early = report(capsys, *args, "--checkpoint", str(cartpole_run / "model_10.pt"))
    assert early["iteration"] == 10
    assert early["length"]["mean"] < found["length"]["mean"] / 2


def test_every_setting_of_the_environment_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("Cartpole-Balance", "--policy", "zero", "--episodes", "6", "--num-envs", "2")
    assert report(capsys, *args)["terminations"]["pole_fell"]["fraction"] == 1.0
    found = report(capsys, *args, "--env.episode-length-s", "0.2", "--engine", "warp")
    assert found["length"] == {"mean": 10.0, "std": 0.0, "min": 10.0, "max": 10.0, "unit": ""}
    assert found["engine"] == "warp"
    assert (found["num_envs"], found["episodes_per_env"]) == (2, 3)
    with pytest.raises(SystemExit) as stop:
        main(["Cartpole-Balance", "--policy", "zero", "--help-all"])
    assert stop.value.code == 0
    assert "--env.rewards.upright.weight" in capsys.readouterr().out


def test_the_quadruped_is_measured_by_its_command(log_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("Quadruped-Velocity-Flat", "--log-root", str(log_root), "--episodes", "4", "--env.episode-length-s", "1")
    found = report(capsys, *args)
    assert 0 < found["errors"]["velocity/planar"]["mean"] < 3
    assert found["errors"]["velocity/turn"]["unit"] == "rad/s"
    noisy = report(capsys, *args, "--noise", "--pushes", "--randomization")
    assert noisy["errors"] != found["errors"]
    assert noisy["noise"]


def test_a_command_is_held(capsys: pytest.CaptureFixture[str]) -> None:
    """A robot that does nothing misses a velocity by the velocity."""
    args = ("Quadruped-Velocity-Flat", "--policy", "zero", "--episodes", "4", "--env.episode-length-s", "4")
    still = report(capsys, *args, "--command", "velocity", "--values", "0", "0", "0")["errors"]["velocity/planar"]
    ahead = report(capsys, *args, "--command", "velocity", "--values", "1", "0", "0")
    assert still["mean"] < 0.2
    assert ahead["errors"]["velocity/planar"]["min"] > 0.8
    assert (ahead["command"], ahead["values"]) == ("velocity", [1.0, 0.0, 0.0])
    for bounds in ("-1 1", "-0.5 0.5"):
        given = ["--values", "0.7", "0", "0", "--env.commands.velocity.controls.ahead", *bounds.split()]
        main([*args, "--command", "velocity", *given, "--episodes", "1"])
        note = "--values 0.7 0 0: ahead 0.7 is outside of -0.5 to 0.5, the bounds that the task has for it\n"
        assert (capsys.readouterr().err == note) == (bounds == "-0.5 0.5")
    config = PlayConfig(policy="zero", command="velocity", values=(9.0, 0.0, 0.0))
    assert find_values_beyond(find_run_to_play("Quadruped-Velocity-Flat", config), config) == (
        "--values 9 0 0: ahead 9 is outside of -1 to 1, the bounds that the task has for it",
    )
    for words, message in (
        ("--command velocity", "--command velocity: give --values for ahead, left, turn"),
        ("--command velocity --values 1 2", "--values 1 2: give --values for ahead, left, turn"),
        ("--command velocity --values nan 0 0", "--values nan 0 0: each must be finite"),
        ("--command walk --values 1", "--command walk: cannot be held by hand; available: velocity"),
        ("--values 1 2 3", "--values 1 2 3: needs --command"),
        ("--command velocity --values 1 0 0 --viewer web", "--command velocity: leave out --viewer"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["Quadruped-Velocity-Flat", "--policy", "zero", *words.split()])
        assert stop.value.code == 2, words
        assert capsys.readouterr().err.startswith(f"play: {message}"), words


def test_what_cannot_be_played_is_one_line(
    log_root: Path, cartpole_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    truncated = tmp_path / "model_3.pt"
    truncated.write_bytes((cartpole_run / "model_40.pt").read_bytes()[:3000])
    logs = f"--log-root {log_root}"
    for line, message in (
        ("--json", "the task comes first"),
        ("Cartpole-Balnce", "did you mean Cartpole-Balance"),
        (f"Arm-Reach {logs}", "no run of Arm-Reach below"),
        (f"Arm-Reach --run {cartpole_run}", "is a run of task Cartpole-Balance, and this is Arm-Reach"),
        (f"Cartpole-Balance --run {tmp_path / 'empty'}", "no checkpoint found in it"),
        (f"Cartpole-Balance --run {tmp_path / 'gone'}", "no such run directory"),
        (f"Cartpole-Balance --checkpoint {truncated}", "not a complete checkpoint"),
        (f"Cartpole-Balance --checkpoint {tmp_path / 'model_9.pt'}", "no such file"),
        (f"Cartpole-Balance --checkpoint {tmp_path / 'empty'}", "is a folder"),
        (f"Cartpole-Balance {logs} --episodes 0", "--episodes 0: must be at least 1"),
        (f"Cartpole-Balance {logs} --num-envs 0", "--num-envs 0: must be at least 1"),
        (
            f"Cartpole-Balance {logs} --num-envs {2**31}",
            f"--num-envs {2**31}: must be at least 1 and at most {2**31 - 1}",
        ),
        (f"Cartpole-Balance {logs} --html a.html --html-episodes {2**31}", f"at most {2**31 - 1}"),
        (f"Cartpole-Balance {logs} --html a.html --html-length-s 1e300", "--html-length-s 1e+300: must be more than 0"),
        (f"Cartpole-Balance {logs} --video a.mp4 --video-length-s 1e9", "more than 0 and at most 86400"),
        (f"Cartpole-Balance {logs} --gpu-ids 0 1", "--gpu-ids 0 1: play uses one GPU"),
        (f"Cartpole-Balance {logs} --num-env 3", "unknown flag --num-env; did you mean --num-envs?"),
        (f"Cartpole-Balance {logs} --episode 3", "unknown flag --episode; did you mean --episodes or --html-episodes?"),
        (f"Cartpole-Balance {logs} --env.rewards.uprigt.weight 2", "did you mean --env.rewards.upright.weight"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(line.split())
        assert stop.value.code == 2, line
        error = capsys.readouterr().err
        assert message in error, line
        assert error.startswith("play: ")
        assert len(error.splitlines()) == 1


def test_a_training_that_goes_on_can_be_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--num-envs", "64", "--max-iterations", "100000", "--agent.save-interval", "5"]
    command = [str(BIN / "train"), "Cartpole-Balance", "--gpu-ids", "None", "--num-threads", "1", *size]
    command += ["--log-root", str(tmp_path), "--logger", "none"]
    with (tmp_path / "said").open("w") as said:
        training = start(command, cwd=tmp_path, environ=os.environ, stdout=said, stderr=said)
    try:
        wait_until(lambda: training.poll() is not None or any(tmp_path.glob("*/*/model_5.pt")), "a checkpoint is there")
        found = report(capsys, "Cartpole-Balance", "--log-root", str(tmp_path), "--episodes", "2")
        assert found["iteration"] >= 5
        (metrics,) = tmp_path.glob("*/*/metrics.jsonl")
        before = len(metrics.read_text().splitlines())
        wait_until(lambda: len(metrics.read_text().splitlines()) >= before + 3, "the training continues")
        assert training.poll() is None
    finally:
        training.terminate()
        assert training.wait(patience(60)) == 143


def test_a_viewer_that_cannot_be_is_one_line(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for viewer, message in (("native", "no display found"), ("web", "needs mjviser; pip install")):
        if viewer == "web":
            monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "mjviser" else name)
        with pytest.raises(SystemExit) as stop:
            main(["Cartpole-Balance", "--log-root", str(log_root), "--viewer", viewer])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1


def test_the_viewer_prints_its_address_and_ends_with_a_signal(log_root: Path, tmp_path: Path) -> None:
    command = [str(BIN / "play"), "Cartpole-Balance", "--log-root", str(log_root), "--viewer", "web"]
    viewer = Job([*command, "--viewer-port", "0", "--num-threads", "1"], tmp_path)
    try:
        viewer.wait_for("viewer: ", "stderr")
        lines = (tmp_path / "stderr").read_text().splitlines()
        line = next(line for line in lines if line.startswith("viewer: "))
        address = line.split()[1]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=patience(30)) as page:
            assert b"<html" in page.read()
        port = int(address.rsplit(":", 1)[1])
        sockets = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = [socket[1] for socket in sockets if socket[3] == "0A"]
        assert f"0100007F:{port:04X}" in listening  # loopback, and
        assert f"00000000:{port:04X}" not in listening  # nowhere else
    finally:
        assert viewer.finish(viewer.kill(signal.SIGINT)).status == 130
