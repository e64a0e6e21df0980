"""Environments of others under the launcher: ranks, restarts, resume, play and export."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
import pytest

import mjtrain
from mjtrain.cli import play as play_command
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.worker import Stream, derive_seed
from support.commands import run
from support.machine import patience, wait_until

TASK = Path(__file__).with_name("task.py")
ENVIRON = {**os.environ, "PYTHONPATH": str(TASK.parents[2]), "CUDA_VISIBLE_DEVICES": ""}


def train(task: str | Path, log_root: Path, *flags: str, status: int = 0) -> str:
    """Run the command; return what it said."""
    options = ["--gpu-ids", "None", "--num-threads", "1", "--logger", "none", "--log-root", str(log_root)]
    command = [sys.executable, "-m", "mjtrain.cli.train", str(task), *options, *flags]
    done = run(command, environ=ENVIRON)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def read_lines(log_root: Path) -> list[dict[str, Any]]:
    (file,) = log_root.glob("*/*/metrics.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.supports("training", task="VecEnvConfig", start="several ranks on this host")
def test_a_killed_rank_is_restarted_and_metrics_are_those_of_both(tmp_path: Path) -> None:
    """Rank 1, with seed 6, is killed in its third iteration, and the job continues from the second."""
    file = tmp_path / "kill"
    seeds = [derive_seed(seed, Stream.WORLDS) for seed in (5, 6)]
    file.write_text(str(seeds[1]))
    flags = ["--num-workers", "2", "--max-restarts", "1", "--seed", "5", "--drift-check-interval", "1"]
    flags += ["--env.kwargs.kill", str(file), "--env.kwargs.kill-step", "60"]
    said = train(TASK, tmp_path / "logs", *flags)
    assert "restart 1 of 1" in said
    assert "rank 1" in said
    assert "environments and random numbers start again: task:make_points does not tell its state" in said.replace(
        "mjtrain_task_", ""
    )
    lines = read_lines(tmp_path / "logs")
    assert [line["iteration"] for line in lines if "event" not in line] == [1, 2, 3, 4]
    last = [line for line in lines if "event" not in line][-1]
    assert (last["world_size"], last["num_envs_total"]) == (2, 32)
    assert last["termination/terminated"] + last["termination/truncated"] == pytest.approx(1.0)
    assert 1 < last["mean_episode_length"] <= 20
    told = {name: value for name, value in last.items() if name.startswith("log/")}
    assert set(told) >= {"log/Metrics/distance", "log/Episode_Reward/length", "log/Episode_Termination/far"}
    assert told["log/seed"] == pytest.approx(sum(seeds) / 2)
    assert [told[f"log/seed_{seed}"] for seed in seeds] == [1.0, 1.0]
    assert not file.exists()


@pytest.mark.supports("training", task="gymnasium:ID")
@pytest.mark.supports("export", task="gymnasium:ID")
def test_gymnasium_is_trained_resumed_played_and_exported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cpu = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    settings = tmp_path / "settings.yaml"
    settings.write_text("actor: {activation: relu}")
    options = {
        "num_envs": 8,
        "logger": "none",
        "log_root": str(tmp_path),
        "launch": cpu,
        "learner_config": str(settings),
    }
    mjtrain.train("gymnasium:Pendulum-v1", max_iterations=4, **options)
    capfd.readouterr()
    result = mjtrain.train("gymnasium:Pendulum-v1", max_iterations=5, resume=True, **options)
    assert capfd.readouterr().out.count("start again: gymnasium:Pendulum-v1 does not tell its state") == 1
    assert result.run_dir.parent == tmp_path / "gymnasium_pendulum_v1"
    assert result.metrics["iteration"] == 5
    assert result.metrics["mean_episode_length"] == 200
    assert result.metrics["termination/truncated"] == 1.0
    run = mjtrain.Run(result.run_dir)
    assert (run.task, run.config.env) == ("gymnasium:Pendulum-v1", mjtrain.GymnasiumConfig(id="Pendulum-v1"))
    assert run.config.learner.settings == {"actor": {"activation": "relu"}}
    table = mjtrain.play(run, episodes=3, seed=2, num_threads=1)
    assert table == mjtrain.play(run, episodes=3, seed=2, num_threads=1)
    assert (table["episodes"], table["length"]["mean"], table["engine"]) == (3, 200, "its own")
    assert table["terminations"]["truncated"]["fraction"] == 1.0
    assert -2000 < table["reward"]["mean"] < 0
    assert mjtrain.play("gymnasium:Pendulum-v1", policy="zero", episodes=2, num_threads=1)["checkpoint"] is None
    exported = mjtrain.export(run, out=tmp_path / "out", observations=20)
    assert set(exported.files) == {"policy.json", "policy.onnx", "policy.pt"}
    assert max(exported.differences.values()) < 1e-5
    actions = mjtrain.load_policy(run)(np.zeros((2, 3), np.float32))
    assert actions.shape == (2, 1)
    capfd.readouterr()
    with pytest.raises(SystemExit) as stop:
        play_command.main([str(result.run_dir), "--viewer", "web"])
    assert stop.value.code == 2
    assert "viewers, videos and replays need mjtrain's" in capfd.readouterr().err
    with pytest.raises(RequestError, match="--engine warp: gymnasium:Pendulum-v1 brings its own physics"):
        mjtrain.play(run, engine="warp")
    with pytest.raises(RequestError, match="make_env and make_vec build mjtrain's tasks"):
        mjtrain.make_env("gymnasium:Pendulum-v1")


def test_ctrl_c_saves_though_environments_have_processes(tmp_path: Path) -> None:
    """A terminal signals all processes of the command."""
    options = ["--gpu-ids", "None", "--num-threads", "1", "--logger", "none", "--log-root", str(tmp_path)]
    options += ["--num-envs", "2", "--env.vectorization", "async"]
    command = [sys.executable, "-m", "mjtrain.cli.train", "gymnasium:Pendulum-v1", *options]
    with subprocess.Popen(command, env=ENVIRON, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: any(file.read_text() for file in tmp_path.glob("*/*/metrics.jsonl")), "an iteration")
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=patience(60.0))
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "train: stopped by SIGINT"
    last = [line for line in read_lines(tmp_path) if "event" not in line][-1]
    assert [*tmp_path.glob(f"*/*/model_{last['iteration']}.pt")]


@pytest.mark.parametrize("name", ["noise", "pushes", "randomization"])
def test_disturbances_that_it_does_not_have_are_refused(name: str) -> None:
    options: dict[str, Any] = {name: True}
    with pytest.raises(RequestError, match=f"--{name}: gymnasium:Pendulum-v1 is played as it is; leave it out"):
        mjtrain.play("gymnasium:Pendulum-v1", policy="zero", episodes=1, **options)


PLAY = """
import os, sys
import mjtrain.cli.play
before = dict(os.environ)
mjtrain.cli.play.main(sys.argv[1:])
drawing = ("MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID", "PYOPENGL_PLATFORM", "LP_NUM_THREADS")
assert [os.environ.get(name) for name in drawing] == [before.get(name) for name in drawing], os.environ
"""


def test_gymnasium_draws_its_own_videos(tmp_path: Path) -> None:
    """In a separate process: OpenGL's libraries and those of PyTorch's compiler clash. Its variables stay."""
    out = tmp_path / "a.mp4"
    flags = [
        "--policy",
        "zero",
        "--gpu-ids",
        "None",
        "--num-threads",
        "1",
        "--video-length-s",
        "0.2",
        "--video",
        str(out),
    ]
    done = run([sys.executable, "-c", PLAY, "gymnasium:HalfCheetah-v5", *flags], environ=ENVIRON, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with av.open(out) as file:
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    assert len(frames) == 4  # 20 per second
    assert frames[0].std() > 10, "it is empty"


@pytest.mark.parametrize(
    ("task", "flags", "words"),
    [
        ("gymnasium:Pendulu-v1", (), "gymnasium:Pendulu-v1: Environment `Pendulu` doesn't exist. Did you mean"),
        ("gymnasium:CartPole-v1", (), "its actions are Discrete(2); a policy gives numbers, a Box of one axis"),
        (
            "gymnasium:Pendulum-v1",
            ("--video",),
            "--video: gymnasium:Pendulum-v1 is an environment that mjtrain cannot render",
        ),
        ("gymnasium:Pendulum-v1", ("--eval-interval", "5"), "--eval-interval 5: evaluates in worlds of mjtrain's own"),
        ("gymnasium:Pendulum-v1", ("--engine", "native"), "--engine native: gymnasium:Pendulum-v1 brings its own"),
        ("gymnasium:Pendulum-v1", ("--env.kwargs.colour", "1"), "got an unexpected keyword argument 'colour'"),
        (f"{TASK}", ("--agent.obs-groups.actor", "image"), "actor image: the environment observes policy, critic"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
    tmp_path: Path, task: str, flags: tuple[str, ...], words: str
) -> None:
    said = train(task, tmp_path / "logs", *flags, status=2)
    (line,) = (line for line in said.splitlines() if line.startswith("train: "))
    assert words in line
    assert "Traceback" not in said
    assert not (tmp_path / "logs").exists()


class Breaks(gymnasium.Env[np.ndarray, np.ndarray]):
    """It draws, and its first step fails."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 # as Gymnasium wants it
    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def render(self) -> np.ndarray:
        return np.zeros((8, 8, 3), np.uint8)

    def step(self, action: np.ndarray) -> Any:
        raise ValueError("the spring has no length")


def test_a_step_that_fails_is_not_said_to_be_about_drawing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gymnasium.register("Breaks-v0", Breaks)  # pyright: ignore[reportArgumentType] # it takes classes too
    flags = ["--policy", "zero", "--gpu-ids", "None", "--num-threads", "1", "--video", str(tmp_path / "a.mp4")]
    with pytest.raises(SystemExit) as stop:
        play_command.main(["gymnasium:Breaks-v0", *flags])
    assert stop.value.code == 1
    said = capfd.readouterr().err
    assert "the spring has no length" in said
    assert "cannot be drawn" not in said
