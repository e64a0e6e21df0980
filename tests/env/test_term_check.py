"""A parameter that does not fit its function, or names what the robot lacks, is one line before anything starts."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mjtrain.config import (
    CommandTerm,
    CurriculumTerm,
    EnvConfig,
    ErrorTerm,
    EventTerm,
    ObservationTerm,
    RewardTerm,
    SuccessTerm,
    TerminationTerm,
)
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.term_check import check_terms
from mjtrain.mdp import events, gait, objects, observations, reach, reward, rewards, termination, terminations, velocity
from mjtrain.runs.robot import check_robot_file
from mjtrain.runtime.errors import RequestError
from support.envs import NUM_ENVS, TASKS, make_env
from support.machine import patience

CARTPOLE = load_task("Cartpole-Balance").env
FEET = ("foot_contact",)


def with_term(kind: str, term: Any) -> EnvConfig:
    if kind == "observations":
        return replace(CARTPOLE, observations={"actor": {"x": term}})
    return replace(CARTPOLE, **{kind: {"x": term}})


def takes_anything(env: Env, *, scale: float = 1.0, **others: float) -> torch.Tensor:
    return torch.full((env.num_envs,), scale * len(others))


SLIP = {"contact_sensors": FEET, "velocity_sensor": FEET}
COMMAND = {"speed": 1.0, "turn": 1.0}
BAD: list[tuple[str, Any, str]] = [
    (
        "rewards",
        RewardTerm(func=gait.feet_slide, weight=1.0, params=SLIP),
        "--env.rewards.x: feet_slide() has no parameter velocity_sensor; it takes contact_sensors, velocity_sensors",
    ),
    (
        "rewards",
        RewardTerm(func=gait.feet_slide, weight=1.0, params={"contact_sensors": FEET}),
        "--env.rewards.x: feet_slide() needs the parameter velocity_sensors; it takes contact_sensors, "
        "velocity_sensors",
    ),
    (
        "rewards",
        RewardTerm(func=rewards.is_alive, weight=1.0, params={"width": 1.0}),
        "--env.rewards.x: is_alive() has no parameter width; it takes none",
    ),
    (
        "rewards",
        RewardTerm(func=2.0, weight=1.0),  # pyright: ignore[reportArgumentType]
        "--env.rewards.x: the number 2.0 is not a function; give one that was made with def",
    ),
    (
        "rewards",
        RewardTerm(func=dict, weight=1.0),
        "--env.rewards.x: <class 'dict'> is not a function; give one that was made with def",
    ),
    (
        "rewards",
        RewardTerm(func=Env, weight=1.0),
        "--env.rewards.x: <class 'mjtrain.env.env.Env'> is not a function; give one that was made with def",
    ),
    (
        "rewards",
        rewards.is_alive,
        "--env.rewards.x: is the function is_alive, not a RewardTerm; make one with mjtrain.mdp.reward(",
    ),
    (
        "rewards",
        EventTerm(func=events.push_by_setting_velocity, params={"joint": "a", "linear": 1.0, "angular": 1.0}),
        "not a RewardTerm",
    ),
    (
        "observations",
        ObservationTerm(func=observations.joint_pos, params={"joints": ("hinge",)}),
        "--env.observations.actor.x: joint_pos() has no parameter joints; it takes joint",
    ),
    (
        "terminations",
        TerminationTerm(func=terminations.illegal_contact, params={"sensors": FEET, "treshold": 1.0}),
        "--env.terminations.x: illegal_contact() has no parameter treshold; it takes sensors, threshold",
    ),
    (
        "terminations",
        TerminationTerm(func=terminations.illegal_contact, params={"sensors": FEET, "threshold": -1.0}),
        "--env.terminations.x.params.threshold -1: must be at least 0",
    ),
    (
        "terminations",
        TerminationTerm(func=terminations.joint_out_of_range, params={"joint": "hinge", "low": math.nan}),
        "--env.terminations.x.params.low nan: must not be NaN",
    ),
    (
        "successes",
        SuccessTerm(func=objects.reached, params={"command": "goal", "objekt": "cube"}),
        "--env.successes.x: reached() has no parameter objekt; it takes command, object, tolerance_m, ",
    ),
    (
        "successes",
        TerminationTerm(func=terminations.time_out),
        "is a TerminationTerm, not a SuccessTerm; make one with mjtrain.mdp.success(",
    ),
    (
        "commands",
        CommandTerm(func=velocity.velocity_command, params={"speed": 1.0}),
        "--env.commands.x: velocity_command() needs the parameter turn; it takes speed, turn, ",
    ),
    (
        "commands",
        CommandTerm(func=velocity.velocity_command, params=COMMAND, refine=velocity.approach, refine_params={}),
        "--env.commands.x.refine: approach() needs the parameter joint, gain, turn, acceleration, turn_acceleration; ",
    ),
    (
        "commands",
        CommandTerm(func=velocity.velocity_command, params=COMMAND, refine=velocity.steer),
        "--env.commands.x.refine: steer() must take env, drawn, before before its parameters",
    ),
    (
        "commands",
        CommandTerm(func=velocity.velocity_command, params=COMMAND, errors={"far": ErrorTerm(func=reach.distance)}),
        "--env.commands.x.errors.far: distance() needs the parameter command, position_sensor; ",
    ),
    (
        "commands",
        CommandTerm(func=velocity.velocity_command, params=COMMAND, steer=rewards.is_alive),
        "--env.commands.x.steer: is_alive() must take env, values before its parameters",
    ),
    (
        "events",
        EventTerm(func=events.reset_joints_by_offset, params={"joint": "hinge", "angle": (0.0, 1.0)}),
        "--env.events.x: reset_joints_by_offset() has no parameter angle; it takes joint, position, velocity",
    ),
    (
        "events",
        EventTerm(func=rewards.is_alive),
        "--env.events.x: is_alive() must take env, worlds before its parameters",
    ),
    (
        "events",
        EventTerm(func=lambda env, worlds: None, mode="reste"),  # pyright: ignore[reportArgumentType]
        "--env.events.x.mode reste: choose from startup, reset, interval",
    ),
    (
        "curriculum",
        CurriculumTerm(func=velocity.terrain_level, params={"joint": "hinge", "command": "x", "far": 3.0}),
        "--env.curriculum.x: terrain_level() has no parameter far; it takes joint, command, far_m, step",
    ),
]


@pytest.mark.parametrize(("kind", "term", "message"), BAD)
def test_what_does_not_fit_is_named_in_one_line(kind: str, term: Any, message: str) -> None:
    config = with_term(kind, term)
    for check in (check_terms, make_env):
        with pytest.raises(RequestError) as caught:
            check(config)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_all_problems_are_named_at_once() -> None:
    config = replace(
        CARTPOLE,
        rewards={"a": RewardTerm(func=rewards.is_alive, weight=1.0, params={"b": 1.0})},
        terminations={"c": TerminationTerm(func=terminations.time_out, params={"d": 1.0})},
    )
    with pytest.raises(RequestError, match=r"--env\.rewards\.a: is_alive\(\) has no parameter b") as caught:
        check_terms(config)
    assert caught.value.__notes__ == ["--env.terminations.c: time_out() has no parameter d; it takes none"]


def test_a_function_of_ones_own_may_take_nan() -> None:
    check_terms(with_term("rewards", reward(takes_anything, 1.0, scale=math.nan)))


def some_or_all(env: Env, *, joints: tuple[str, ...] | None = None) -> torch.Tensor:
    return env.qpos(joints or "slider").square().sum(dim=1)


def test_names_may_be_left_out_where_a_function_says_so() -> None:
    config = load_task("Cartpole-Balance").env
    term = reward(some_or_all, 1.0, joints=None)
    make_env(replace(config, rewards={**config.rewards, "far": term})).step(torch.zeros(NUM_ENVS, 1))


def test_functions_that_take_anything_are_left_alone() -> None:
    check_terms(with_term("rewards", RewardTerm(func=takes_anything, weight=1.0, params={"a": 1.0, "b": 2.0})))


@pytest.mark.parametrize("task", TASKS)
def test_the_built_in_tasks_fit(task: str) -> None:
    check_terms(load_task(task).env)


def test_the_check_imports_nothing_heavy() -> None:
    code = "import sys, mjtrain.env.term_check, mjtrain.mdp; assert not {'torch', 'mujoco', 'warp'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patience(60))


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


def test_what_a_urdf_lacks_is_told_with_the_command_that_adds_it(tmp_path: Path) -> None:
    own = tmp_path / "robot.urdf"
    link = '<link name="{}"><collision><geometry><box size="1 1 1"/></geometry></collision></link>'
    joint = '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint>'
    own.write_text(f'<robot name="r">{link.format("a")}{link.format("b")}{joint}</robot>')
    with pytest.raises(RequestError, match=r"it has none.*: mjtrain import-robot makes MJCF with them$"):
        make_env(replace(QUADRUPED, robot=str(own)))


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
