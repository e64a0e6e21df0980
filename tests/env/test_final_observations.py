"""The last observations of episodes, for learners that want them."""

from dataclasses import replace

import pytest
import torch

from mjtrain.config import EnvConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.mdp import reset_event, truncation
from mjtrain.mdp.terminations import time_out
from support.envs import actions_for, make_env

STEPS = 12


def short(task: str, seconds: float = 0.1) -> EnvConfig:
    """A task whose episodes end by time only, after a few env steps."""
    config = load_task(task).env
    return replace(config, episode_length_s=seconds, terminations={"time_out": truncation(time_out)})


def test_they_are_of_the_state_in_which_the_episode_ended() -> None:
    """A world that continues observes the same in that step."""
    ends, goes_on = (make_env(short("Cartpole-Balance", seconds)) for seconds in (0.1, 10.0))
    ends.keeps_final_observations = True
    for step, action in enumerate(actions_for(ends, ends.max_episode_steps), start=1):
        observed, *_, truncated = ends.step(action)
        following = goes_on.step(action)[0]
        if step < ends.max_episode_steps:
            assert ends.final_observations is None
            continue
        assert truncated.all()
        assert ends.final_observations is not None
        torch.testing.assert_close(ends.final_observations["actor"], following["actor"], rtol=0, atol=0)
        assert not torch.equal(observed["actor"], following["actor"])


@pytest.mark.parametrize("task", ["Quadruped-Velocity-Flat", "Hand-Reorient-Cube", "Cartpole-Balance-Vision"])
def test_they_change_nothing_else(task: str) -> None:
    """Noise, delays, histories, what terms remember, and cameras continue as if nobody had looked."""
    one, other = (make_env(short(task), num_envs=2) for _ in range(2))
    one.keeps_final_observations = True
    one.stagger()
    other.stagger()
    ends = 0
    for action in actions_for(one, STEPS):
        mine, theirs = one.step(action)[0], other.step(action)[0]
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        ends += one.final_observations is not None
    assert ends > 1
    assert torch.equal(one.rng.get_state(), other.rng.get_state())


def test_reset_events_see_the_frames_that_they_would_see_otherwise() -> None:
    seen: list[torch.Tensor] = []

    def look(env: Env, worlds: Worlds) -> None:
        camera, config = next(iter(env.config.cameras.items()))
        seen.append(env.cameras.images(camera, config.streams[0]).clone())

    config = short("Cartpole-Balance-Vision")
    config = replace(config, events={**config.events, "look": reset_event(look)})
    for keeps in (False, True):
        env = make_env(config, num_envs=2)
        env.keeps_final_observations = keeps
        for action in actions_for(env, env.max_episode_steps):
            env.step(action)
    without, with_them = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert len(without) == 1 + env.max_episode_steps
    assert all(torch.equal(one, other) for one, other in zip(without, with_them, strict=True))


def test_a_history_ends_with_the_last_reading() -> None:
    """The episode's past comes before it, and it is not kept twice."""
    config = short("Cartpole-Balance")
    group = {name: term.replace(history=3) for name, term in config.observations["actor"].items()}
    env = make_env(replace(config, observations={"actor": group}))
    env.keeps_final_observations = True
    rows = []
    for action in actions_for(env, env.max_episode_steps):
        rows.append(env.step(action)[0]["actor"][:, 2])  # the newest reading of the first term
    assert env.final_observations is not None
    final = env.final_observations["actor"]
    torch.testing.assert_close(final[:, :2], torch.stack(rows[-3:-1], dim=1), rtol=0, atol=0)
    assert not torch.equal(final[:, 2], rows[-1])
