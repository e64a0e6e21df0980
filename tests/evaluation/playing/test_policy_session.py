"""What a viewer shows of the worlds, without a viewer."""

import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import mjtrain
from mjtrain.env.catalog import load_task
from mjtrain.evaluation.playing.player import Player
from mjtrain.evaluation.playing.policy_session import PolicySession
from mjtrain.runs.trained_run import find_trained_run, make_untrained_run
from support.browser import serve_viewer


@pytest.mark.parametrize(
    ("task", "command"), [("Arm-Reach", "pose"), ("Arm-Lift-Cube", "place"), ("Hand-Reorient-Cube", "goal")]
)
def test_commanded_places_and_orientations_are_poses(task: str, command: str) -> None:
    session = PolicySession(Player(mjtrain.RankContext(), make_untrained_run(task), num_envs=2, policy="zero"))
    env = session.player.env
    session.select(1)
    session.step()
    poses = session.commanded_poses()
    assert list(poses) == [command]
    commanded = env.command(command)[1].tolist()
    if task == "Arm-Lift-Cube":
        commanded += [1.0, 0.0, 0.0, 0.0]
    elif task == "Hand-Reorient-Cube":
        x, y, z = env.qpos("cube")[1, :3].tolist()
        half_diagonal = 3**0.5 * 0.025
        assert poses[command][2] > z + 1.5 * half_diagonal  # above the cube, which would hide it
        commanded = [x, y, float(poses[command][2]), *commanded]
    assert poses[command].tolist() == pytest.approx(commanded)


def test_keys_and_sticks_steer_the_command_and_the_plots_show_it() -> None:
    run = make_untrained_run("Quadruped-Velocity-Flat")
    session = PolicySession(Player(mjtrain.RankContext(), run, policy="zero"))
    session.press("i")
    session.push((0.0, 1.0, 0.0))
    session.press("w")  # means nothing
    session.tick(0.0)
    session.step()
    assert session.player.env.drawn_command("velocity")[0, :3].tolist() == [0.0, 1.0, 0.0]
    ahead, left, turn, planar, turning = session.tracked()
    assert (ahead, left, turn) == ("velocity ahead", "velocity left", "velocity turn")
    assert (planar, turning) == ("error of velocity, planar, m/s", "error of velocity, turn, rad/s")
    row = session.history[-1][3]
    assert row[:3] == pytest.approx(session.player.env.command("velocity")[0].tolist())
    assert row[3] > 0.5, "it lies where it was"


def test_a_command_with_an_open_bound_cannot_be_steered() -> None:
    """Keys, sticks and sliders change a value by a part of its range."""
    run = make_untrained_run("Quadruped-Velocity-Flat")
    (name, term), *_ = run.own_env.commands.items()
    open_term = replace(term, controls={**term.controls, "left": (-math.inf, math.inf)})
    run = replace(run, env=replace(run.own_env, commands={name: open_term}))
    session = PolicySession(Player(mjtrain.RankContext(), run, policy="zero"))
    drawn = session.player.env.drawn_command(name).tolist()
    session.press("j")
    session.push((0.0, 1.0, 0.0))
    session.tick(0.0)
    assert session.player.env.drawn_command(name).tolist() == drawn
    with serve_viewer(session):
        assert (session.steered, session.settable) == ("", {})


def test_the_last_episode_is_that_of_the_selected_world() -> None:
    run = make_untrained_run("Cartpole-Balance")
    run = replace(run, env=replace(run.own_env, episode_length_s=0.04))
    session = PolicySession(Player(mjtrain.RankContext(), run, num_envs=2, policy="zero"))
    for _ in range(2):
        session.step()
    assert session.status()[-1].startswith("last episode: time_out, return ")
    session.select(1)
    assert not any("last episode" in line for line in session.status())


def test_a_task_without_a_command_is_not_steered() -> None:
    session = PolicySession(Player(mjtrain.RankContext(), make_untrained_run("Cartpole-Balance"), policy="zero"))
    session.press("i")
    session.push((1.0, 1.0, 1.0))
    session.step()
    assert session.tracked() == []


@pytest.mark.usefixtures("short_trial")
def test_a_chosen_checkpoint_acts_until_the_training_saves_another_one(tmp_path: Path) -> None:
    agent = replace(load_task("Cartpole-Balance").agent, save_interval=1)
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    where = {"log_root": str(tmp_path), "logger": "none", "launch": launch}
    run_dir = mjtrain.train("Cartpole-Balance", agent=agent, num_envs=2, max_iterations=3, **where).run_dir
    saved_later = (run_dir / "model_3.pt").rename(tmp_path / "model_3.pt")
    session = PolicySession(Player(mjtrain.RankContext(), find_trained_run(str(run_dir))))
    session.paused = session.follows = True

    def look() -> int | None:
        session._last_look = 0.0
        session.tick(0.1)
        return session.player.iteration

    assert look() == 2
    session.post(partial(session.load, run_dir / "model_1.pt"))
    assert (look(), look()) == (1, 1)
    shutil.copy(saved_later, run_dir)
    assert look() == 3
    session.post(partial(session.load, run_dir / "model_1.pt"))
    assert look() == 1
    session.follows = False
    assert look() == 1
    session.follows = True
    assert look() == 3, "it was asked for again"
