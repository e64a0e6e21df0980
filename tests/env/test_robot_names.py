"""A robot of the user's own takes the place of a task's, or the error says what it lacks."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mjtrain.env.catalog import load_task
from mjtrain.mdp import objects, termination
from mjtrain.runs.robot import check_robot_file
from mjtrain.runtime.errors import RequestError
from support.envs import NUM_ENVS, make_env

QUADRUPED = load_task("Quadruped-Velocity-Flat").env


def test_a_robot_with_the_same_names_takes_the_place(tmp_path: Path) -> None:
    own = tmp_path / "longer.xml"
    own.write_text(
        Path(QUADRUPED.robot.file).read_text().replace("-0.213", "-0.24").replace("0 0 0.285 1", "0 0 0.32 1")
    )
    env = make_env(replace(QUADRUPED, robot=str(own)))
    for _ in range(5):
        env.step(torch.zeros(NUM_ENVS, 12))
    assert all(value.isfinite().all() for value in env.observe().values())
    assert env.qpos("base")[:, 2].mean() > 0.3


def test_one_error_lists_all_that_is_missing(tmp_path: Path) -> None:
    text = Path(QUADRUPED.robot.file).read_text()
    text = text.replace('name="trunk_contact"', 'name="belly"').replace('name="base_velocity"', 'name="speed"')
    text = text.replace('<freejoint name="base"/>', '<freejoint name="root"/>')
    text = re.sub(r'name="(..)_foot" class="touches"', r'name="\1_paw" class="touches"', text)
    own = tmp_path / "other.xml"
    own.write_text(text)
    with pytest.raises(RequestError) as caught:
        make_env(replace(QUADRUPED, robot=str(own)))
    message = str(caught.value)
    assert message.startswith(f"--env.robot {own}: this task needs what the robot lacks: ")
    assert "sensor base_velocity (for observations.actor.base_velocity)" in message
    assert "trunk_contact (for terminations.fallen)" in message
    assert "belly" in message
    assert "joint base (for " in message
    assert "it has root, FR_hip" in message
    assert "geom .*_foot (for events.friction)" in message
    assert "\n" not in message


def test_an_object_is_the_free_joint_of_a_body() -> None:
    lost = termination(objects.dropped, object="FR_hip", below_m=0.0)
    message = "lacks: object FR_hip \\(for terminations.lost\\); it has base$"
    with pytest.raises(RequestError, match=message):
        make_env(replace(QUADRUPED, terminations={"lost": lost}))
    with pytest.raises(RequestError, match=r"--env.terminations.lost.params.object: is the number 7; give a string"):
        make_env(replace(QUADRUPED, terminations={"lost": lost.replace(params={"object": 7, "below_m": 0.0})}))
    kept = termination(objects.dropped, object="base", below_m=0.0)
    make_env(replace(QUADRUPED, terminations={"kept": kept})).step(torch.zeros(NUM_ENVS, 12))


def test_a_robot_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    for check in (make_env, lambda config: check_robot_file(config.robot)):
        with pytest.raises(RequestError, match=r"--env.robot .*: is a folder; give a file$"):
            check(replace(QUADRUPED, robot=str(tmp_path)))
    for robot, problem in (("nowhere.xml", "--env.robot nowhere.xml: no such file"), ("", "no robot is given")):
        with pytest.raises(RequestError, match=problem):
            make_env(replace(QUADRUPED, robot=robot))
