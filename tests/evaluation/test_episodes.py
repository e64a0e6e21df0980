"""What is measured is what happened, and short episodes do not crowd out long ones."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.config import CurriculumTerm
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.evaluation.episodes import play_episodes, resolve_run_size, summarise
from mjtrain.evaluation.eval_config import BROKEN, UNFINISHED, keep_level, to_eval_config
from mjtrain.evaluation.playing.player import Player
from mjtrain.evaluation.summary_table import print_summary
from mjtrain.mdp import reach, success
from mjtrain.runs.trained_run import TrainedRun, make_untrained_run

NUM_ENVS = 32
"""So many that some are quicker than others, whatever they draw."""


def make_player(run: TrainedRun, *, num_envs: int, seed: int = 5) -> Player:
    run = replace(run, env=to_eval_config(run.own_env))
    return Player(mjtrain.RankContext(seed=seed), run, num_envs=num_envs, policy="random")


def test_every_world_plays_as_many_whole_episodes() -> None:
    player = make_player(make_untrained_run("Cartpole-Balance"), num_envs=NUM_ENVS)
    episodes = play_episodes(player, 3)

    twin = make_player(make_untrained_run("Cartpole-Balance"), num_envs=NUM_ENVS)
    env = twin.env
    env.reset(torch.ones(NUM_ENVS, dtype=torch.bool))
    returns, lengths = torch.zeros(NUM_ENVS), torch.zeros(NUM_ENVS)
    expected: list[tuple[int, float, float]] = []
    played = [0] * NUM_ENVS
    while min(played) < 3:
        _, rewards, terminated, truncated = env.step(twin.act())
        returns += rewards
        lengths += 1
        for world in (terminated | truncated).nonzero()[:, 0].tolist():
            if played[world] < 3:
                expected.append((world, returns[world].item(), lengths[world].item()))
            played[world] += 1
            returns[world] = lengths[world] = 0
    assert max(played) > 3  # quick worlds continued, unwatched
    assert len(episodes) == 3 * NUM_ENVS
    assert [episode.length for episode in episodes] == [length for _, _, length in expected]
    assert [episode.reward for episode in episodes] == pytest.approx([reward for _, reward, _ in expected], abs=1e-4)
    for episode in episodes:
        assert sum(episode.reward_terms.values()) == pytest.approx(episode.reward, abs=1e-9)
        assert set(episode.causes) <= {"pole_fell", "cart_left", "time_out"}
    summary = summarise(episodes, env.config)
    lengths_of_all = torch.tensor([episode.length for episode in episodes], dtype=torch.float64)
    assert summary["length"]["mean"] == pytest.approx(lengths_of_all.mean().item())
    assert summary["length"]["std"] == pytest.approx(lengths_of_all.std().item())
    assert sum(cause["episodes"] for cause in summary["terminations"].values()) >= 3 * NUM_ENVS


def test_errors_count_when_they_have_settled() -> None:
    run = make_untrained_run("Arm-Reach")
    (episode, *_) = play_episodes(make_player(run, num_envs=2), 1)
    assert episode.length == 300
    twin = make_player(run, num_envs=2)
    env = twin.env
    env.reset(torch.ones(2, dtype=torch.bool))
    distances = []
    for step in range(300):
        if step % 150 >= 125:  # the last half second before each new pose
            error = reach.position_error(env, command="pose", position_sensor="tool_position")
            distances.append(error.norm(dim=1)[0].item())
        twin.step()
    assert len(distances) == 50
    assert episode.errors["pose/distance"] == pytest.approx(sum(distances) / 50, rel=1e-5)
    summary = summarise([episode], env.config)
    assert summary["errors"]["pose/distance"]["unit"] == "m"


def in_step(env: Env, *, first: int, last: int) -> torch.Tensor:
    return (env.episode_step >= first) & (env.episode_step <= last)


@pytest.mark.parametrize("unfinished", [False, True])
def test_successes_are_those_of_each_episode(unfinished: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """What a term measures that is true in certain steps follows from the length of an episode."""
    run = make_untrained_run("Cartpole-Balance")
    terms = {
        "early": success(in_step, first=1, last=45),
        "late": success(in_step, first=40, last=44).replace(measure="ever"),
        "often": success(in_step, first=11, last=50).replace(measure="count", hold_s=0.1),
    }
    env = replace(run.env, successes=terms)
    env = replace(env, episode_length_s=0.8, terminations={}) if unfinished else env
    player = make_player(replace(run, env=env), num_envs=8)
    assert player.env.step_dt == 0.02
    episodes = play_episodes(player, 1 if unfinished else 3)
    for episode in episodes:
        steps = episode.length
        assert episode.successes == {
            "early": float(steps <= 45),
            "late": float(steps >= 40),
            "often": max(0, min(steps, 50) - 10) // 5,
        }
    if unfinished:
        assert {episode.length for episode in episodes} == {40}
        return
    lengths = [episode.length for episode in episodes]
    assert min(lengths) < 40
    assert max(lengths) > 45
    summary = summarise(episodes, env)
    counts = torch.tensor([episode.successes["often"] for episode in episodes], dtype=torch.float64)
    assert summary["successes"]["often"] == {
        "mean": pytest.approx(counts.mean().item()),
        "std": pytest.approx(counts.std().item()),
        "min": counts.min().item(),
        "max": counts.max().item(),
        "unit": "",
        "measure": "count",
    }
    share = sum(length >= 40 for length in lengths) / len(lengths)
    assert summary["successes"]["late"]["mean"] == pytest.approx(share)
    settings = {"checkpoint": None, "policy": "random", "task": "Cartpole-Balance", "engine": "native", "seed": 5}
    settings |= {"num_envs": 8, "episodes_per_env": 3, "noise": False, "pushes": False, "randomization": False}
    print_summary(settings | summary)
    table = capsys.readouterr().out
    assert re.search(rf"success/late +│ +{100 * share:.1f} % │", table)
    assert re.search(rf"success/often +│ +{counts.mean():.3f} │ +{counts.std():.3f} │", table)


def break_one(env: Env, worlds: Any) -> None:
    worlds.qvel[0] = torch.where(env.episode_step[0] == 7, torch.nan, worlds.qvel[0])


@pytest.mark.parametrize(
    ("change", "causes"),
    [
        (lambda env: replace(env, terminations={}), {(UNFINISHED,): 4}),
        (
            lambda env: replace(
                env,
                events={
                    **env.events,
                    "break": mjtrain.EventTerm(func=break_one, mode="interval", interval_s=(0.0, 0.0)),
                },
            ),
            {(BROKEN,): 1},
        ),
    ],
)
def test_other_ends_have_names(change: Callable[[Any], Any], causes: dict[tuple[str, ...], int]) -> None:
    run = make_untrained_run("Cartpole-Balance")
    run = replace(run, env=change(replace(run.env, episode_length_s=0.4)))
    player = Player(mjtrain.RankContext(), run, num_envs=4, policy="zero")
    found = [episode.causes for episode in play_episodes(player, 1)]
    assert len(found) == 4
    for cause, count in causes.items():
        assert found.count(cause) == count


def break_at_the_end(env: Env, worlds: Any) -> None:
    worlds.qvel[0] = torch.where(env.episode_step[0] == env.max_episode_steps - 1, torch.nan, worlds.qvel[0])


def test_a_world_that_breaks_in_its_last_step_has_no_other_cause() -> None:
    run = make_untrained_run("Cartpole-Balance")
    event = mjtrain.EventTerm(func=break_at_the_end, mode="interval", interval_s=(0.0, 0.0))
    run = replace(run, env=replace(run.own_env, episode_length_s=0.4, events={**run.own_env.events, "break": event}))
    player = Player(mjtrain.RankContext(), run, num_envs=4, policy="zero")
    assert [episode.causes for episode in play_episodes(player, 1)] == [(BROKEN,), *[("time_out",)] * 3]
    metrics = player.env.statistics.summarise(player.env.statistics.pop().tolist())
    assert (metrics["nan_resets"], metrics["termination/time_out"]) == (1, 0.75)


def one_is_early(env: Env) -> torch.Tensor:
    return (env.episode_step == 7) & (torch.arange(env.num_envs) == 1)


def test_an_episode_that_nothing_ends_has_its_time_and_the_next_one_begins() -> None:
    run = make_untrained_run("Cartpole-Balance")
    early = {"early": mjtrain.TerminationTerm(func=one_is_early)}
    run = replace(run, env=replace(run.own_env, episode_length_s=0.4, terminations=early))
    player = Player(mjtrain.RankContext(), run, num_envs=3, policy="zero")
    assert player.env.max_episode_steps == 20
    found = [(episode.length, episode.causes) for episode in play_episodes(player, 3)]
    assert sorted(found) == [(7, ("early",))] * 3 + [(20, (UNFINISHED,))] * 6


def grows(env: Env) -> torch.Tensor:
    return torch.where(env.episode_step == 5, torch.inf, 1.0)


@pytest.mark.parametrize(
    ("bounds", "played"),
    [((0.0, math.inf), (0.0, 3.0)), ((-math.inf, 4.0), (1.0, 4.0)), ((-math.inf, math.inf), (1.0, 3.0))],
)
def test_levels_without_a_bound_are_those_from_which_training_begins(
    bounds: tuple[float, float], played: tuple[float, float]
) -> None:
    run, (low, high) = make_untrained_run("Cartpole-Balance"), played
    term = CurriculumTerm(func=keep_level, initial=(1.0, 3.0), bounds=bounds)
    player = make_player(replace(run, env=replace(run.own_env, curriculum={"hard": term})), num_envs=96)
    player.step()
    levels = player.env.level("hard")
    assert low <= levels.min() < low + 0.2 * (high - low) < high - 0.2 * (high - low) < levels.max() <= high
    (kept,) = (term.bounds for term in to_eval_config(player.env.config).curriculum.values())
    assert all(math.isfinite(bound) or bound == now for bound, now in zip(bounds, kept, strict=True))


def test_a_reward_that_is_not_finite_is_reported() -> None:
    run = make_untrained_run("Cartpole-Balance")
    rewards = {"grows": mjtrain.RewardTerm(func=grows, weight=1.0)}
    env = replace(run.own_env, episode_length_s=0.4, rewards=rewards)
    player = Player(mjtrain.RankContext(), replace(run, env=env), num_envs=2, policy="zero")
    summary = summarise(play_episodes(player, 1), env)
    assert math.isnan(summary["reward"]["mean"])
    assert math.isnan(summary["reward_terms"]["grows"]["std"])
    assert summary["length"] == {"mean": 20.0, "std": 0.0, "min": 20.0, "max": 20.0, "unit": ""}


def test_amounts() -> None:
    assert resolve_run_size(100, None) == (100, 1)
    assert resolve_run_size(1000, None) == (256, 4)
    assert resolve_run_size(10, 4) == (4, 3)


def test_the_quadruped_has_the_errors_that_its_judge_uses() -> None:
    errors = load_task("Quadruped-Velocity-Rough").env.commands["velocity"].errors
    assert {name: term.unit for name, term in errors.items()} == {"planar": "m/s", "turn": "rad/s"}
