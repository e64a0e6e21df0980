"""Errors of built-in terms and of what follows from them give the reason."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch

from mjtrain.config import CommandTerm, CurriculumTerm, ErrorTerm, EventTerm, RewardTerm
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.mdp import gait, targets, velocity
from mjtrain.runtime.errors import RequestError
from mjtrain.training.preflight.dry_step import check_task
from support.envs import make_env

CARTPOLE = load_task("Cartpole-Balance").env
WALK = CommandTerm(func=lambda env: torch.zeros(env.num_envs, 3))


def problems_of(**changes: Any) -> list[str]:
    with pytest.raises(RequestError) as caught:
        check_task(replace(CARTPOLE, **changes))
    return [str(caught.value), *getattr(caught.value, "__notes__", [])]


def reads_command(env: Env, worlds: Worlds) -> None:
    worlds.qvel[:, 0] = env.command("walk")[:, 0]


@pytest.mark.parametrize("mode", ["reset", "startup"])
def test_an_event_that_reads_a_command_says_when_it_is_drawn(mode: Any) -> None:
    events = {"own": EventTerm(func=reads_command, mode=mode)}
    (line,) = problems_of(events=events, commands={"walk": WALK})
    assert line.startswith(
        "--env.events.own: command walk is not drawn yet: in each env step, commands are drawn after"
    )
    with pytest.raises(RequestError, match="command walk is not drawn yet"):
        make_env(replace(CARTPOLE, events=events, commands={"walk": WALK}))
    (line,) = problems_of(events=events)
    assert line == "--env.events.own: unknown command term walk; available: none"


def test_an_unknown_reward_of_a_curriculum_is_named() -> None:
    params = {"reward": "sped", "full": 1.0, "share": 0.8, "step": 0.1}
    (line,) = problems_of(curriculum={"level": CurriculumTerm(func=velocity.command_level, params=params)})
    assert line == f"--env.curriculum.level: unknown reward term sped; available: {', '.join(CARTPOLE.rewards)}"


def test_what_follows_from_a_wrong_command_is_left_out() -> None:
    command = CommandTerm(
        func=velocity.velocity_command,
        params={"speed": 1.0, "turn": 1.0, "curriculum": "none"},
        refine=lambda env, drawn, before: drawn[:, 3:4],
        errors={"far": ErrorTerm(func=lambda env: env.command("walk")[:, 4])},
    )
    assert problems_of(commands={"walk": command}) == [
        "--env.commands.walk: unknown curriculum term none; available: none"
    ]


def test_a_refine_that_is_wrong_itself_is_said() -> None:
    command = WALK.replace(refine=lambda env, drawn, before: drawn[:, 7])
    (line,) = problems_of(commands={"walk": command})
    assert line.startswith("--env.commands.walk.refine: <lambda>() raised IndexError")


def leave(env: Env) -> torch.Tensor:
    raise SystemExit(0)


class WordlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def cancel(env: Env) -> torch.Tensor:
    raise asyncio.CancelledError("late")


def say_nothing(env: Env) -> torch.Tensor:
    raise WordlessError


@pytest.mark.parametrize(
    ("func", "what"),
    [
        (leave, "SystemExit: 0"),
        (cancel, "CancelledError: late"),
        (say_nothing, "WordlessError: (its __str__ raises ValueError)"),
    ],
)
def test_a_term_that_leaves_or_says_nothing_is_named(func: Any, what: str) -> None:
    (line,) = problems_of(rewards={"own": RewardTerm(func=func, weight=1.0)})
    assert line.startswith(f"--env.rewards.own: {func.__name__}() raised {what} (test_reasons.py, line ")


QUADRUPED = load_task("Quadruped-Velocity-Flat").env
FEET = ("FL_foot_contact", "FR_foot_contact")


GAIT: Any = {"frequency_hz": 2.0, "duty": 0.5, "command": "velocity"}


@pytest.mark.parametrize(
    ("func", "params", "problem"),
    [
        (
            gait.feet_gait,
            {**GAIT, "contact_sensors": FEET, "offsets": (0.0, 0.1, 0.2)},
            "offsets is for 3 feet, and contact_sensors for 2; give one each",
        ),
        (
            gait.feet_gait,
            {**GAIT, "contact_sensors": FEET, "offsets": (0.0,)},  # it would be broadcast
            "offsets is for 1 feet, and contact_sensors for 2; give one each",
        ),
        (
            gait.feet_slide,
            {"contact_sensors": FEET, "velocity_sensors": ("FR_foot_velocity",)},
            "contact_sensors is for 2 feet, and velocity_sensors for 1; give one each",
        ),
        (
            targets.joint_distance,
            {"command": "velocity", "joints": (".*_hip",)},
            "command velocity is for 3 joints, and joints for 4",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_given_for_built_in_terms(func: Any, params: dict[str, Any], problem: str) -> None:
    rewards = {"x": RewardTerm(func=func, weight=1.0, params=params)}
    with pytest.raises(RequestError) as caught:
        check_task(replace(QUADRUPED, rewards=rewards, curriculum={}))
    assert str(caught.value) == f"--env.rewards.x: {problem}"
