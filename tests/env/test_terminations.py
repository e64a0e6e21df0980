"""When a success term is true, what it measures, and what follows from it."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mjtrain.config import EnvConfig, EventTerm, ObservationTerm, SuccessTerm, TerminationTerm
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.mdp import command, curriculum, reward, success, termination, truncation
from mjtrain.mdp.objects import raise_with_success
from mjtrain.mdp.rewards import is_successful
from mjtrain.mdp.terminations import is_successful as has_been_successful
from mjtrain.mdp.terminations import success_time_out, time_out
from mjtrain.runtime.errors import RequestError
from support.envs import NUM_ENVS, make_env

STEP_S = 0.02
LENGTH = 10
CARTPOLE = replace(
    load_task("Cartpole-Swingup").env,
    episode_length_s=LENGTH * STEP_S,
    terminations={"time_out": truncation(time_out)},
)
NOTHING = torch.zeros(NUM_ENVS, 1)


def in_step(env: Env, *, first: int, last: int) -> torch.Tensor:
    """Whether the episode is between two of its env steps; they count from 1."""
    return (env.episode_step >= first) & (env.episode_step <= last)


def draw(env: Env) -> torch.Tensor:
    return torch.rand(env.num_envs, 1, generator=env.rng)


class Script:
    """Random results of a success and of a termination function for every env step and world."""

    def __init__(self, num_steps: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.fulfilled = torch.rand(num_steps, NUM_ENVS, generator=generator) < 0.7
        self.ends = torch.rand(num_steps, NUM_ENVS, generator=generator) < 0.1
        self.step = -1

    def end(self, env: Env) -> torch.Tensor:
        self.step += 1
        return self.ends[self.step]

    def fulfil(self, env: Env) -> torch.Tensor:
        return self.fulfilled[self.step]


def play_script(script: Script, hold_steps: int, measure: str) -> tuple[list[list[bool]], list[float]]:
    """Say by a plain loop when the term is true, and what it measures of each finished episode, in their order."""
    true, measured = [], []
    held, count = [0] * NUM_ENVS, [0] * NUM_ENVS
    for fulfilled, ends in zip(script.fulfilled.tolist(), script.ends.tolist(), strict=True):
        now = []
        for world in range(NUM_ENVS):
            held[world] = held[world] + 1 if fulfilled[world] else 0
            now.append(held[world] >= hold_steps)
            if now[world]:
                count[world] += 1
                held[world] = 0 if measure == "count" else held[world]
            if ends[world]:
                measured.append({"end": now[world], "ever": count[world] > 0, "count": count[world]}[measure])
                held[world] = count[world] = 0
        true.append(now)
    return true, [float(value) for value in measured]


@pytest.mark.parametrize("measure", ["end", "ever", "count"])
@pytest.mark.parametrize("hold_steps", [0, 1, 3])
def test_hold_and_measures_are_those_of_a_plain_loop(hold_steps: int, measure: Any) -> None:
    script, said = Script(80, seed=hold_steps), []

    def listen(env: Env) -> torch.Tensor:
        said.append(env.success("done").tolist())
        return env.success("done").float()

    env = make_env(
        replace(
            CARTPOLE,
            terminations={"end": TerminationTerm(func=script.end)},
            successes={"done": SuccessTerm(func=script.fulfil, hold_s=hold_steps * STEP_S, measure=measure)},
            rewards={"listen": reward(listen, 1.0)},
        )
    )
    measured = []
    for _ in range(80):
        _, _, terminated, _ = env.step(NOTHING)
        assert torch.equal(env.success_measure("done"), env.successes[:, 0])
        measured += env.successes[terminated, 0].tolist()
    true, expected = play_script(script, max(1, hold_steps), measure)
    assert said == true
    assert 0 < sum(map(sum, true)) < 80 * NUM_ENVS
    assert measured == expected
    assert len(set(expected)) > 1
    summary = env.statistics.summarise(env.statistics.pop().tolist())
    assert summary["success/done"] == pytest.approx(sum(expected) / len(expected), rel=1e-6)
    assert summary["reward/listen"] > 0


def test_terms_are_told_apart() -> None:
    env = make_env(
        replace(
            CARTPOLE,
            successes={
                "never": success(in_step, first=0, last=0).replace(measure="ever"),
                "once": success(in_step, first=4, last=4).replace(measure="ever"),
                "often": success(in_step, first=3, last=7).replace(measure="count"),
                "late": success(in_step, first=LENGTH, last=LENGTH),
                "early": success(in_step, first=1, last=5),
            },
        )
    )
    for step in range(1, 5):
        env.step(NOTHING)
        assert (env.success("once") == (step == 4)).all()
        assert (env.success_count("often") == max(0, step - 2)).all()
    for _ in range(LENGTH - 4):
        env.step(NOTHING)
    summary = env.statistics.summarise(env.statistics.pop().tolist())
    assert {name: value for name, value in summary.items() if name.startswith("success/")} == {
        "success/never": 0.0,
        "success/once": 1.0,
        "success/often": 5.0,
        "success/late": 1.0,
        "success/early": 0.0,
    }
    assert summary["termination/time_out"] == 1.0


def test_it_comes_after_terminations_and_before_rewards() -> None:
    """A success reads which episodes fail; a reward reads the success of its own env step."""

    def failed(env: Env) -> torch.Tensor:
        return (env.episode_step == 3) & (torch.arange(NUM_ENVS) < 2)

    def unharmed(env: Env) -> torch.Tensor:
        return ~env.terminated

    env = make_env(
        replace(
            CARTPOLE,
            terminations={"failed": termination(failed)},
            successes={"unharmed": success(unharmed)},
            rewards={"bonus": reward(is_successful, 1.0 / STEP_S, success="unharmed")},
        )
    )
    for step in range(1, 4):
        _, rewards, terminated, _ = env.step(NOTHING)
        assert terminated.tolist() == [step == 3 and world < 2 for world in range(NUM_ENVS)]
        assert torch.equal(rewards, (~terminated).float())


def test_an_episode_ends_after_its_successes_and_the_next_one_starts_without_them() -> None:
    def observe(env: Env) -> torch.Tensor:
        return torch.stack([env.success("done").float(), env.success_count("done")], dim=1)

    env = make_env(
        replace(
            CARTPOLE,
            observations={"actor": {"success": ObservationTerm(func=observe)}},
            terminations={"enough": truncation(has_been_successful, success="done", times=2)},
            successes={"done": success(in_step, first=3, last=9).replace(measure="count")},
        )
    )
    seen, ends = [], []
    for _ in range(15):
        observations, _, _, truncated = env.step(NOTHING)
        seen.append(observations["actor"][0].tolist())
        ends.append(bool(truncated.all()))
    episode = [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 2.0], [0.0, 0.0]]  # the last one is of the episode that begins
    assert seen == episode * 3
    assert ends == [False, False, False, False, True] * 3
    assert env.statistics.summarise(env.statistics.pop().tolist())["success/done"] == 3.0


def test_a_reset_by_hand_forgets_the_masked_worlds_only() -> None:
    config = replace(CARTPOLE, successes={"done": success(in_step, first=1, last=99).replace(hold_s=3 * STEP_S)})
    env = make_env(config)
    for _ in range(2):
        env.step(NOTHING)
    mask = torch.arange(NUM_ENVS) < 2
    env.reset(mask)
    env.step(NOTHING)
    assert torch.equal(env.success("done"), ~mask)


def break_one(env: Env, worlds: Worlds) -> None:
    worlds.qvel[0] = torch.where(env.episode_step[0] == 4, torch.nan, worlds.qvel[0])


def test_a_world_that_is_not_finite_does_not_succeed() -> None:
    env = make_env(
        replace(
            CARTPOLE,
            events={"break": EventTerm(func=break_one, mode="interval", interval_s=(0.0, 0.0))},
            successes={
                name: success(in_step, first=5, last=5).replace(measure=name) for name in ("end", "ever", "count")
            },
        )
    )
    for _ in range(5):
        env.step(NOTHING)
    assert env.successes[0].tolist() == [0.0, 0.0, 0.0]
    assert (env.successes[1:] == 1).all()
    summary = env.statistics.summarise(env.statistics.pop().tolist())
    assert summary["nan_resets"] == 1
    assert summary["success/ever"] == 0.0


def test_episodes_that_stagger_shortens_do_not_count() -> None:
    env = make_env(replace(CARTPOLE, successes={"began": success(in_step, first=1, last=1).replace(measure="ever")}))
    env.stagger()
    shares = []
    for _ in range(3 * LENGTH):
        env.step(NOTHING)
        shares.append(env.statistics.summarise(env.statistics.pop().tolist()).get("success/began"))
    assert {share for share in shares if share is not None} == {1.0}


def test_totals_of_ranks_are_added() -> None:
    def chosen(env: Env) -> torch.Tensor:
        return env.state.qvel[:, 1] > 0

    config = replace(CARTPOLE, successes={"chosen": success(chosen).replace(measure="count")})
    ranks = [make_env(config, seed=seed) for seed in range(3)]
    for env in ranks:
        for _ in range(LENGTH):
            env.step(NOTHING)
    totals = torch.stack([env.statistics.pop() for env in ranks]).sum(dim=0)
    measured = torch.cat([env.successes[:, 0] for env in ranks])
    assert ranks[0].statistics.summarise(totals.tolist())["success/chosen"] == pytest.approx(measured.mean().item())
    assert 0 < measured.mean() < LENGTH


def test_an_episode_ends_when_success_takes_too_long() -> None:
    """The time is that since the last success of the episode, or since its beginning, in env steps of a plain loop."""
    limit, script = 4, Script(60, seed=2)

    def fulfil(env: Env) -> torch.Tensor:
        return script.fulfilled[script.step] & script.ends[script.step]  # rarely

    def count_step(env: Env) -> torch.Tensor:
        script.step += 1
        return torch.zeros(NUM_ENVS, dtype=torch.bool)

    env = make_env(
        replace(
            CARTPOLE,
            terminations={
                "never": TerminationTerm(func=count_step),
                "too_late": truncation(success_time_out, success="goal", after_s=limit * STEP_S),
            },
            successes={"goal": SuccessTerm(func=fulfil, measure="count")},
        )
    )
    since, num_ends, num_goals = [0] * NUM_ENVS, 0, 0
    for step in range(60):
        _, _, _, truncated = env.step(NOTHING)
        fulfilled = (script.fulfilled[step] & script.ends[step]).tolist()
        ends = [time + 1 >= limit for time in since]
        assert truncated.tolist() == ends
        since = [0 if end or now else time + 1 for time, end, now in zip(since, ends, fulfilled, strict=True)]
        assert env.time_since_success("goal").tolist() == pytest.approx([time * STEP_S for time in since])
        num_ends, num_goals = num_ends + sum(ends), num_goals + sum(fulfilled)
    assert num_ends > 20
    assert num_goals > 5


def test_a_command_is_drawn_again_where_it_has_been_met() -> None:
    script = Script(40, seed=1)
    env = make_env(
        replace(
            CARTPOLE,
            terminations={"end": TerminationTerm(func=script.end)},
            successes={"met": SuccessTerm(func=script.fulfil, hold_s=3 * STEP_S, measure="count")},
            commands={
                "goal": command(draw).replace(resample_on="met", resampling_s=(99.0, 99.0)),
                "other": command(draw).replace(resampling_s=(99.0, 99.0)),
            },
            observations={"actor": {"goal": ObservationTerm(func=lambda env: env.command("goal"))}},
        )
    )
    true, _ = play_script(script, 3, "count")
    for step in range(40):
        before = {name: env.command(name).clone() for name in ("goal", "other")}
        observations, _, terminated, _ = env.step(NOTHING)
        changed = {name: env.command(name)[:, 0] != old[:, 0] for name, old in before.items()}
        assert torch.equal(changed["goal"], torch.tensor(true[step]) | terminated)
        assert torch.equal(changed["other"], terminated)
        assert torch.equal(observations["actor"], env.command("goal"))  # the policy sees the new one at once
    assert sum(map(sum, true)) > 20


def test_the_time_of_a_command_begins_again_where_it_has_been_met() -> None:
    env = make_env(
        replace(
            CARTPOLE,
            episode_length_s=99.0,
            successes={"met": success(in_step, first=3, last=3)},
            commands={"goal": command(draw).replace(resample_on="met", resampling_s=(4 * STEP_S, 4 * STEP_S))},
        )
    )
    redrawn = []
    for step in range(1, 13):
        before = env.command("goal").clone()
        env.step(NOTHING)
        if (env.command("goal") != before).all():
            redrawn.append(step)
    assert redrawn == [3, 7, 11]


@pytest.mark.parametrize("steps_before", [0, 4, 13])
def test_a_resumed_environment_goes_on_exactly(steps_before: int) -> None:
    config = replace(
        CARTPOLE,
        successes={
            "held": success(in_step, first=2, last=9).replace(hold_s=3 * STEP_S, measure="count"),
            "end": success(in_step, first=4, last=99),
        },
        terminations={
            "time_out": truncation(time_out),
            "too_late": truncation(success_time_out, success="held", after_s=8 * STEP_S),
        },
        commands={"goal": command(draw).replace(resample_on="held")},
        curriculum={"level": curriculum(raise_with_success, success="held", at_least=2.0, step=0.25)},
        rewards={"held": reward(is_successful, 1.0, success="held")},
    )
    first, again = make_env(config, seed=1), make_env(config, seed=2)
    for _ in range(steps_before):
        first.step(NOTHING)
    again.load_state_dict(first.state_dict())
    for _ in range(25):
        one, two = first.step(NOTHING), again.step(NOTHING)
        assert all(torch.equal(one[0][group], two[0][group]) for group in one[0])
        assert torch.equal(one[1], two[1])
        assert torch.equal(first.successes, again.successes)
        assert torch.equal(first.command("goal"), again.command("goal"))
        assert torch.equal(first.level("level"), again.level("level"))
    assert torch.equal(first.statistics.pop(), again.statistics.pop())


def test_levels_rise_with_success_and_fall_without() -> None:
    def in_upper_half(env: Env) -> torch.Tensor:
        return torch.arange(NUM_ENVS) >= NUM_ENVS // 2

    for measure, at_least, rises in (("end", 1.0, True), ("count", LENGTH, True), ("count", LENGTH + 1, False)):
        env = make_env(
            replace(
                CARTPOLE,
                successes={"done": success(in_upper_half).replace(measure=measure)},
                curriculum={
                    "level": curriculum(raise_with_success, success="done", at_least=float(at_least), step=0.2).replace(
                        initial=(0.5, 0.5)
                    )
                },
            )
        )
        for _ in range(LENGTH):
            assert (env.level("level") == 0.5).all()
            env.step(NOTHING)
        expected = [0.7 if rises and world >= NUM_ENVS // 2 else 0.3 for world in range(NUM_ENVS)]
        assert env.level("level").tolist() == pytest.approx(expected)


def test_levels_stay_in_shortened_first_episodes() -> None:
    success_at_once = {"done": success(in_step, first=1, last=99)}
    level = curriculum(raise_with_success, success="done", step=0.2).replace(initial=(0.5, 0.5))
    env = make_env(replace(CARTPOLE, successes=success_at_once, curriculum={"level": level}))
    env.stagger()
    shortened = env.episode_step > 0
    assert shortened.any()
    for _ in range(LENGTH):
        env.step(NOTHING)
    expected = torch.where(shortened, 0.5, 0.7)  # all have ended one episode
    torch.testing.assert_close(env.level("level"), expected)
    for _ in range(LENGTH):
        env.step(NOTHING)
    torch.testing.assert_close(env.level("level"), expected + 0.2)


def test_a_task_without_success_terms_is_as_before() -> None:
    env = make_env(CARTPOLE)
    for _ in range(LENGTH):
        env.step(NOTHING)
    assert not [name for name in env.state_dict()["buffers"] if name.startswith("successes")]
    summary = env.statistics.summarise(env.statistics.pop().tolist())
    assert set(summary) == {
        "nan_resets",
        "mean_reward",
        "mean_episode_length",
        "termination/time_out",
        *(f"reward/{name}" for name in CARTPOLE.rewards),
    }


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda env: env.success("dnoe"), "unknown success term dnoe; available: done"),
        (lambda env: env.success_count("dnoe"), "unknown success term dnoe; available: done"),
        (lambda env: env.success_measure("dnoe"), "unknown success term dnoe; available: done"),
    ],
)
def test_an_unknown_name_is_refused(ask: Callable[[Env], Any], message: str) -> None:
    env = make_env(replace(CARTPOLE, successes={"done": success(in_step, first=1, last=1)}))
    with pytest.raises(RequestError, match=message):
        ask(env)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda env: replace(env, commands={"goal": command(draw).replace(resample_on="met")}),
            "--env.commands.goal.resample-on met: is not a success term; available: done",
        ),
        (
            lambda env: replace(env, commands={"goal": command(draw).replace(resample_on="done", before_reset=True)}),
            "--env.commands.goal.resample-on done: with before_reset a command is drawn only where an episode begins",
        ),
        (
            lambda env: replace(env, successes={"done": env.successes["done"].replace(hold_s=-0.1)}),
            r"--env.successes.done.hold-s -0.1: must be at least 0",
        ),
        (
            lambda env: replace(env, successes={"done": env.successes["done"].replace(hold_s=math.nan)}),
            r"--env.successes.done.hold-s nan: must be at least 0",
        ),
        (
            lambda env: replace(env, successes={"done": env.successes["done"].replace(measure="always")}),
            r"--env.successes.done.measure always: choose from end, ever, count",
        ),
        (
            lambda env: replace(env, successes={"done": success(in_step, first=1, lats=2)}),  # pyright: ignore[reportCallIssue]
            r"--env.successes.done: in_step\(\) has no parameter lats; it takes first, last",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_the_users_error(change: Callable[[EnvConfig], EnvConfig], message: str) -> None:
    config = replace(CARTPOLE, successes={"done": success(in_step, first=1, last=1)})
    with pytest.raises(RequestError, match=message):
        make_env(change(config))


def test_a_result_that_is_no_condition_is_named() -> None:
    def nearness(env: Env) -> torch.Tensor:
        return env.state.qpos[:, 0]

    env = make_env(replace(CARTPOLE, successes={"near": success(nearness)}))
    with pytest.raises(TypeError, match=r"--env.successes.near: returned a tensor of float32; a success is boolean"):
        env.step(NOTHING)
