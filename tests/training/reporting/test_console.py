"""What a training says in the terminal: the live status, lines elsewhere, and the rank that is steadily slow."""

import io
import math
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

import mjtrain
from mjtrain import LaunchConfig, PpoConfig, RewardTerm
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.training.reporting import console
from mjtrain.training.reporting.console import STEADY_ITERATIONS, ProgressDisplay, RunStatus, StragglerWatch, sparkline
from support.machine import patience


def row(iteration: int, reward: float | None, **more: Any) -> dict[str, Any]:
    length = None if reward is None else 10.0 * iteration
    return {
        "iteration": iteration,
        "env_steps_per_second": 12345.6,
        "mean_reward": reward,
        "mean_episode_length": length,
        **more,
    }


def render(status: RunStatus, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(status)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_status_says_how_far_how_long_how_good_and_who_is_slow() -> None:
    status = RunStatus(20)
    for iteration in range(1, 11):
        status.update(row(iteration, float(iteration), busy_time_by_rank_s=[1.0, 1.5, 1.0]), 60.0, 90061.0)
    lines = render(status, 90)
    assert lines[0].startswith("iteration       10/20 ━")
    assert lines[1:] == [
        "time            0:01:00 elapsed, 25:01:01 to go",
        "env steps/s     12,346",
        "reward          10.00  ▁▂▃▃▄▅▆▆▇█",
        "episode length  100.00",
        "slowest rank    1 of 3, the others wait 0.50 s per iteration (33 %)",
    ]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_a_restored_iteration_of_other_ranks_does_not_count(num_ranks: int) -> None:
    """As when a run of three ranks is resumed with fewer or more, and evaluates the restored iteration first."""
    status = RunStatus(20)
    status.update(row(10, 1.0, busy_time_by_rank_s=[9.0, 1.0, 1.0]), 1.0, 2.0)
    status.update(row(11, 1.0, **({"busy_time_by_rank_s": [1.0] * num_ranks} if num_ranks > 1 else {})), 1.0, 2.0)
    slowest = [line for line in render(status, 90) if line.startswith("slowest rank")]
    line = f"slowest rank    0 of {num_ranks}, the others wait 0.00 s per iteration (0 %)"
    assert slowest == ([line] if num_ranks > 1 else [])


def test_the_last_evaluation_stays() -> None:
    status = RunStatus(20)
    status.update(row(1, 1.0, **{"eval/return": 14.123, "eval/length": 500.0, "eval/success/there": 0.5}), 1.0, 2.0)
    status.update(row(2, 1.0), 1.0, 2.0)
    assert render(status, 90)[5] == "evaluation      return 14.12, length 500.00, success/there 0.50 (iteration 1)"


@pytest.mark.parametrize("width", [10, 20, 34, 60, 200])
def test_every_terminal_is_wide_enough(width: int) -> None:
    status = RunStatus(1000)
    for iteration in range(1, 101):
        status.update(row(iteration, float(iteration), busy_time_by_rank_s=[1.0, 1.5]), 1.0, 2.0)
    lines = render(status, width)
    assert len(lines) == 6
    assert max(map(len, lines)) <= width
    if width == 34:
        assert lines[3].endswith("█"), "the newest values are those that are shown"


def test_rewards_may_be_missing_or_no_number() -> None:
    status = RunStatus(0)
    assert render(status, 80) == [""] or render(status, 80) == []
    status.update(row(3, None), 0.0, 0.0)
    assert render(status, 80)[3:] == ["reward          -", "episode length  -"]
    for reward in (1.0, math.nan, None, math.inf, 2.0):
        status.update(row(4, reward), 0.0, 0.0)
    assert render(status, 80)[3] == "reward          2.00  ▁   █"
    status.update(row(5, math.nan), 0.0, 0.0)
    assert render(status, 80)[3] == "reward          nan  ▁   █"


def test_sparklines() -> None:
    assert sparkline([]) == sparkline([1.0]) == sparkline([None, math.nan]) == ""
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([None, 1.0, None, 2.0], ascii_only=True) == "_ @"


PROGRAM = """
from mjtrain.training.reporting.console import ProgressDisplay
with ProgressDisplay(12) as display:
    for iteration in (11, 12):  # a run that was resumed
        display.update({"iteration": iteration, "env_steps_per_second": 5.0, "mean_reward": 1.0,
                        "mean_episode_length": 2.0})
        display.warn("something")
    raise SystemExit(3)
"""


def test_a_terminal_keeps_its_cursor() -> None:
    """At no time is it hidden: a process that is killed could not show it again."""
    read, write = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "60"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=write, stdin=write, env=environ, timeout=patience(60), check=False
    )
    os.close(write)
    text = os.read(read, 1 << 16).decode()
    os.close(read)
    assert done.returncode == 3
    assert re.search(r"12/12 (\x1b\[[0-9;]*m)*━", text)
    assert text.count("\x1b[?25l") == 1
    assert text.index("\x1b[?25h") - text.index("\x1b[?25l") == len("\x1b[?25l")


def test_elsewhere_every_iteration_is_a_line() -> None:
    for environ in ({}, {"TERM": "dumb"}):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            env={**os.environ, **environ},
            text=True,
            timeout=patience(60),
            check=False,
        )
        assert done.stdout.splitlines() == [
            "iteration 11/12 | env steps/s 5 | reward 1.00 | episode length 2.00 | elapsed 0:00:00 | remaining -",
            "warning: something",
            "iteration 12/12 | env steps/s 5 | reward 1.00 | episode length 2.00 | elapsed 0:00:00 | remaining 0:00:00",
            "warning: something",
        ]


def test_the_time_to_go_is_that_of_whole_iterations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the start, which compiles, and the evaluation that the restored iteration lacked; never negative."""
    times = iter([0.0, 50.0, 100.0, 102.0, 103.0])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(times)))
    display = ProgressDisplay(14, 10)
    for iteration in (10, 11, 12, 16):
        display.update(row(iteration, 1.0))
    said = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[2] for line in said] == ["-", "-", "0:00:04", "0:00:00"]


def test_colours_that_are_forced_do_not_make_a_pipe_a_terminal() -> None:
    """As in the kernel of a notebook."""
    environ = {**os.environ, "FORCE_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, env=environ, timeout=patience(60), check=False
    )
    assert done.stdout.decode().startswith("iteration 11/12 | env steps/s 5 | reward 1.00")
    assert b"\x1b[?25" not in done.stdout


def test_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Messages of gloo and the folders of users have brackets, which are no markup."""
    texts = ["[/__w/pair.cc:561] closed", "[enforce fail at x.cpp] [rank 3] :boom:"]
    with ProgressDisplay(1) as display:
        for text in texts:
            display.warn(text)
            display.tell(text)
        numbers = {"eval/return": 1.0, "eval/length": 2.0, "eval/success/[/x] [there]": 0.5}
        display.update(row(1, 1.0, **numbers))
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == [line for text in texts for line in (f"warning: {text}", text)]
    assert last.endswith("[/x] [there] 0.50")


def never(env: Env) -> torch.Tensor:
    return 0.0 * env.qpos("slider")[:, 0]


@pytest.mark.usefixtures("short_trial")
def test_samples_that_are_left_out_and_rewards_that_are_never_earned_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = load_task("Cartpole-Balance")
    env = replace(
        task.env, episode_length_s=0.1, rewards=task.env.rewards | {"own": RewardTerm(func=never, weight=5.0)}
    )
    agent = replace(task.agent, num_steps_per_env=8, algorithm=PpoConfig(num_mini_batches=5))
    mjtrain.train(
        replace(task, env=env, agent=agent),
        num_envs=3,
        max_iterations=2,
        log_root=str(tmp_path),
        logger="none",
        launch=LaunchConfig(gpu_ids=None),
    )
    said = "".join(capsys.readouterr())
    assert "--agent.algorithm.num-mini-batches 5: does not divide the 24 samples" in said
    assert "of --env.rewards: own\n" in said


def row_of_ranks(*busy_s: float) -> dict:
    return {"slowest_rank": busy_s.index(max(busy_s)), "busy_time_by_rank_s": list(busy_s)}


def test_a_steadily_slow_rank_is_named_once() -> None:
    watch = StragglerWatch()
    lines = [watch.update(row_of_ranks(1.0, 1.0, 1.5, 1.1)) for _ in range(3 * STEADY_ITERATIONS)]
    said = [line for line in lines if line is not None]
    assert lines.index(said[0]) == STEADY_ITERATIONS - 1
    assert said == [
        "rank 2 is steadily slower than the others: 1.500 s of work per iteration against 1.000 s; they wait for it"
    ]


def test_a_moment_of_slowness_is_no_news() -> None:
    watch = StragglerWatch()
    for _ in range(5):
        assert all(watch.update(row_of_ranks(1.0, 1.5)) is None for _ in range(STEADY_ITERATIONS - 1))
        assert watch.update(row_of_ranks(1.0, 1.1)) is None


def test_slow_in_turn_is_not_steady() -> None:
    watch = StragglerWatch()
    for _ in range(4 * STEADY_ITERATIONS):
        assert watch.update(row_of_ranks(1.0, 1.5)) is None
        assert watch.update(row_of_ranks(1.5, 1.0)) is None


def test_one_rank_has_nobody_to_wait_for() -> None:
    assert StragglerWatch().update({"collect_time_s": 1.0}) is None
