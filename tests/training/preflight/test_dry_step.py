"""The dry step before a training leaves no trace and measures the task; what shows only later names its term."""

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mjtrain.config import (
    ActionTerm,
    CommandTerm,
    CurriculumTerm,
    EnvConfig,
    EventTerm,
    ObservationTerm,
    RewardTerm,
    SuccessTerm,
    TerminationTerm,
)
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.runtime.errors import RequestError
from mjtrain.training.preflight.dry_step import check_task
from support.envs import NUM_ENVS, TASKS, make_env
from support.vision import make_vision_env, see

CARTPOLE = load_task("Cartpole-Balance").env


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=pytest.mark.process)
        if task.endswith("-Vision") and not task.startswith("Cartpole")
        else task
        for task in TASKS
    ],
)
def test_built_in_tasks_pass_and_random_numbers_stay(task: str) -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), torch.rand(()).item()]

    seed(1)
    expected = draw()
    seed(1)
    assert check_task(load_task(task).env).warnings == ()
    assert draw() == expected


def noisy(env: Env) -> torch.Tensor:
    """Use all the generators that it should not."""
    return torch.rand(env.num_envs) + float(np.random.rand()) + random.random()


def test_terms_that_draw_from_the_process_leave_its_random_numbers_alone() -> None:
    config = replace(CARTPOLE, rewards={"noisy": RewardTerm(func=noisy, weight=1.0)})
    seed(3)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    check_task(config)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert str(np.random.get_state()) == str(before[1])
    assert random.getstate() == before[2]


CALLS = 0
SEEN: dict[str, torch.Tensor] = {}


def remembering(env: Env) -> torch.Tensor:
    """Keep tensors as a function should not, but as some do."""
    global CALLS
    CALLS += 1
    before = SEEN.setdefault("action", env.action.clone())
    remembering.calls = CALLS  # pyright: ignore[reportFunctionMemberAccess]
    return (env.action - before).square().sum(dim=1)


def test_what_a_function_keeps_in_its_module_is_as_before() -> None:
    config = replace(CARTPOLE, rewards={"x": RewardTerm(func=remembering, weight=1.0)})
    check_task(config)
    assert CALLS == 0
    assert SEEN == {}
    assert not hasattr(remembering, "calls")
    make_env(config).step(torch.zeros(NUM_ENVS, 1))
    assert CALLS == 1


@pytest.mark.usefixtures("short_trial")
def test_only_due_worlds_of_an_interval_event_count() -> None:
    def breaks(env: Env, worlds: Worlds) -> None:
        worlds.qvel.fill_(torch.nan)

    def breaks_others(env: Env, worlds: Worlds) -> None:
        worlds.qvel.masked_fill_(~worlds.mask[:, None], torch.nan)

    def pushes(env: Env, worlds: Worlds, *, force: float, duration_s: float) -> None:
        env.push("pole", worlds.mask, torch.full((env.num_envs, 6), force), duration_s)

    def moves(env: Env, worlds: Worlds) -> None:
        worlds.qpos.add_(0.1)

    rarely = EventTerm(func=breaks_others, mode="interval", interval_s=(5.0, 10.0))
    check_task(replace(CARTPOLE, events={"x": rarely}))
    with pytest.raises(RequestError, match=r"--env.events.x: breaks\(\) left numbers .* that are not finite"):
        check_task(replace(CARTPOLE, events={"x": rarely.replace(func=breaks)}))
    push = rarely.replace(func=pushes, params={"force": 1.0, "duration_s": torch.inf})
    check_task(replace(CARTPOLE, events={"x": push}))
    for params in ({"force": torch.nan, "duration_s": 0.1}, {"force": 1.0, "duration_s": torch.nan}):
        with pytest.raises(RequestError, match=r"--env.events.x: pushes\(\) pushes pole with .* that is NaN") as caught:
            check_task(replace(CARTPOLE, events={"x": push.replace(params=params), "y": rarely, "z": push}))
        assert not hasattr(caught.value, "__notes__"), "only the event that pushes so is named"
    with pytest.raises(RequestError, match=r"--env.events.x: breaks\(\) left numbers .* that are not finite"):
        check_task(replace(CARTPOLE, events={"x": EventTerm(func=breaks)}))
    with pytest.raises(RequestError, match=r"--env.events.x: moves\(\) changed worlds.qpos in mode interval"):
        check_task(replace(CARTPOLE, events={"x": EventTerm(func=moves, mode="interval")}))


def test_consequences_of_a_wrong_command_are_left_out() -> None:
    config = replace(
        CARTPOLE,
        commands={"aim": CommandTerm(func=lambda env: torch.zeros(env.num_envs))},
        rewards={
            "near": RewardTerm(func=lambda env: env.command("aim")[:, 3], weight=1.0),
            "wide": RewardTerm(func=lambda env: env.qpos("hinge"), weight=1.0),
        },
    )
    with pytest.raises(RequestError, match=r"--env\.commands\.aim: ") as caught:
        check_task(config)
    (note,) = caught.value.__notes__
    assert note.startswith("--env.rewards.wide: ")


def test_worlds_that_do_not_fit_into_memory_are_a_request_error() -> None:
    state = {name: term.replace(history=10**12) for name, term in CARTPOLE.observations["actor"].items()}
    with pytest.raises(RequestError, match=r"--env: 2 environments do not fit into memory \(.*\); give smaller images"):
        check_task(replace(CARTPOLE, observations={"actor": state}))


def late(env: Env, first: Any, later: Any) -> Any:
    return first(env) if (env.episode_step < 3).all() else later(env)


def column(env: Env) -> torch.Tensor:
    return env.qpos("hinge")


def row(env: Env) -> torch.Tensor:
    return env.qpos("hinge")[:, 0]


def fails(env: Env) -> torch.Tensor:
    raise KeyError("gone")


def yes(env: Env) -> torch.Tensor:
    return env.episode_step < 0


LATE: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    (
        "rewards",
        {"x": RewardTerm(func=lambda env: late(env, row, column), weight=1.0)},
        TypeError,
        "--env.rewards.x: returned a tensor of shape (num_envs, 1); a reward is one value per world",
    ),
    (
        "rewards",
        {"x": RewardTerm(func=lambda env: late(env, row, fails), weight=1.0)},
        KeyError,
        "--env.rewards.x",
    ),
    (
        "terminations",
        {"x": TerminationTerm(func=lambda env: late(env, yes, row))},
        TypeError,
        "--env.terminations.x: returned a tensor of float32; a termination is boolean",
    ),
    (
        "successes",
        {"x": SuccessTerm(func=lambda env: late(env, yes, row))},
        TypeError,
        "--env.successes.x: returned a tensor of float32; a success is boolean",
    ),
    (
        "successes",
        {"x": SuccessTerm(func=lambda env: late(env, yes, fails))},
        KeyError,
        "--env.successes.x",
    ),
    (
        "observations",
        {"actor": {"x": ObservationTerm(func=lambda env: late(env, column, row))}},
        TypeError,
        "--env.observations.actor.x: returned a tensor of shape (num_envs,); an observation is float32",
    ),
    (
        "observations",
        {"actor": {"x": ObservationTerm(func=lambda env: late(env, column, lambda env: column(env).repeat(1, 2)))}},
        TypeError,
        "--env.observations.actor.x: has 2 columns now, and had 1",
    ),
    (
        "observations",
        {"actor": {"x": ObservationTerm(func=lambda env: late(env, column, fails))}},
        KeyError,
        "--env.observations.actor.x",
    ),
    (
        "commands",
        {"x": CommandTerm(func=lambda env: late(env, column, row), resampling_s=(0.02, 0.02))},
        TypeError,
        "--env.commands.x: has shape (6,) now, and had (6, 1)",
    ),
    (
        "curriculum",
        {"x": CurriculumTerm(func=lambda env, level: late(env, lambda env: level, fails))},
        KeyError,
        "--env.curriculum.x",
    ),
    (
        "events",
        {"x": EventTerm(func=lambda env, worlds: late(env, yes, fails), mode="interval")},
        KeyError,
        "--env.events.x",
    ),
]


def step_often(env: Env) -> None:
    for _ in range(8):
        env.step(torch.zeros(NUM_ENVS, 1))


@pytest.mark.parametrize(("kind", "terms", "error", "words"), LATE, ids=[f"{row[0]}-{row[2].__name__}" for row in LATE])
def test_what_shows_only_later_names_its_term(
    kind: str, terms: dict[str, Any], error: type[Exception], words: str
) -> None:
    config: EnvConfig = replace(CARTPOLE, **{kind: terms})
    env = make_env(config)
    with pytest.raises(error) as caught:
        step_often(env)
    said = str(caught.value) if error is TypeError else "\n".join(caught.value.__notes__)
    assert words in said


def test_a_term_that_is_wrong_is_named_before_what_follows_from_it() -> None:
    vision = load_task("Cartpole-Balance-Vision").env
    term = vision.observations["image"]["front"].replace(shift=1, params={"camera": "frnt", "stream": "rgb"})
    message = r"^--env.observations.image.front: EnvConfig.cameras has no camera frnt; available: front$"
    with pytest.raises(RequestError, match=message):
        check_task(replace(vision, observations={**vision.observations, "image": {"front": term}}))


def test_parameters_that_do_not_fit_are_named_beside_a_sensor_that_is_left_out() -> None:
    walker = load_task("Quadruped-Velocity-Flat").env
    params = {**walker.rewards["keep_step"].params, "offsets": (), "velocity_sensor": None}
    message = r"^--env\.rewards\.keep_step: feet_gait\(\) cannot use its parameters together: .*; offsets has 0 values"
    with pytest.raises(RequestError, match=message):
        check_task(replace(walker, rewards={"keep_step": walker.rewards["keep_step"].replace(params=params)}))


def test_a_command_with_infinite_bounds_is_steered_to_a_finite_value() -> None:
    walker = load_task("Quadruped-Velocity-Flat").env
    for bounds in ((-math.inf, math.inf), (0.5, math.inf), (-math.inf, -0.5)):
        controls = {**walker.commands["velocity"].controls, "left": bounds}
        check_task(replace(walker, commands={"velocity": walker.commands["velocity"].replace(controls=controls)}))


def test_an_action_term_without_actuators_is_refused() -> None:
    with pytest.raises(RequestError, match=r"--env\.actions\.all\.actuators: is empty; give patterns of actuators"):
        check_task(replace(CARTPOLE, actions={"all": ActionTerm(actuators=())}))


PIXELS = 32 * 32
RAY_CASTER = (4 + 4 + 8) * PIXELS
"""Packed colours, distances and pairs of numbers, before they become images."""
FRAMES = (3 + 4 + 1) * PIXELS


def test_a_task_without_cameras() -> None:
    size = check_task(CARTPOLE)
    assert (sum(size.group_bytes.values()), size.image_bytes, size.history_bytes, size.num_actions) == (16, 0, 0, 1)


@pytest.mark.process  # the ray caster's kernels are loaded
def test_images_with_their_dtypes_frames_and_history() -> None:
    size = check_task(make_vision_env())
    assert sum(size.group_bytes.values()) == 16 + 9 * PIXELS
    assert size.image_bytes == FRAMES + RAY_CASTER
    assert size.history_bytes == pytest.approx(9 * PIXELS, abs=16)
    depth = check_task(make_vision_env({"image": {"depth": see("depth", delay=(0, 2))}}, size=16, interval=2))
    assert sum(depth.group_bytes.values()) == 16 + 4 * 16 * 16
    assert depth.image_bytes == pytest.approx((2 * FRAMES + RAY_CASTER) / 4, abs=16), "frames are kept between two"
    assert depth.history_bytes == pytest.approx(3 * 4 * 16 * 16, abs=16)
