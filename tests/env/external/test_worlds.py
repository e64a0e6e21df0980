"""Environments of others, as the training sees environments."""

import math
import os
import signal
import subprocess
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from tensordict import TensorDict

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.cli.parsing import add_named_parts, parse, with_env
from mjtrain.cli.train import AllOptions, read_command
from mjtrain.config import (
    AgentConfig,
    GymnasiumConfig,
    LaunchConfig,
    LearnerConfig,
    RunConfig,
    TaskConfig,
    VecEnvConfig,
)
from mjtrain.env.catalog import folder_name, is_same_task, load_task
from mjtrain.env.external.env import ForeignEnv, make_foreign_env
from mjtrain.learning.divergence import check_losses, check_rollout, find_broken_terms, find_large_terms
from mjtrain.learning.library import make_learner
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.training.preflight.network_check import check_agent, check_before_training
from mjtrain.training.train_rank import make_rank_env
from support.machine import patience
from support.point_mass import LIMIT, PointMass

PENDULUM = GymnasiumConfig(id="Pendulum-v1")
CPU = LaunchConfig(gpu_ids=None, num_threads=1)

MOST = float(np.finfo(np.float32).max)


def make(config: GymnasiumConfig | VecEnvConfig, num_envs: int = 3, seed: int = 0) -> ForeignEnv:
    return make_foreign_env(config, num_envs, "cpu", seed)


def test_gymnasium_steps_as_by_itself() -> None:
    """The same first state and the same torques: the same states and rewards."""
    env = make(PENDULUM)
    single: Any = gymnasium.make("Pendulum-v1").unwrapped
    single.reset(seed=0)
    angle = torch.atan2(env.observe()["observation"][:, 1], env.observe()["observation"][:, 0])
    single.state = np.array([angle[1], env.observe()["observation"][1, 2]], dtype=np.float64)
    for action in (0.5, -2.0, 1.0):
        seen, rewards, terminated, truncated = env.step(torch.full((3, 1), action))
        observed, reward, *_ = single.step(np.array([2.0 * np.clip(action, -1, 1)]))  # its bounds are -2 and 2
        np.testing.assert_allclose(seen["observation"][1], observed, atol=1e-5)
        assert rewards[1].item() == pytest.approx(reward, abs=1e-4)
        assert not (terminated | truncated).any()
    assert (env.num_actions, env.max_episode_steps, env.step_dt) == (1, 200, pytest.approx(1 / 30))
    env.close()


def test_episodes_are_counted_by_how_they_end() -> None:
    env = make(PENDULUM)
    total = torch.zeros(3)
    for _ in range(199):
        total += env.step(torch.zeros(3, 1))[1]
    seen, rewards, terminated, truncated = env.step(torch.zeros(3, 1))
    total += rewards
    assert truncated.all()
    assert not terminated.any()
    assert env.episode_step.tolist() == [0, 0, 0]
    summary = env.statistics.summarise(env.statistics.pop().tolist())
    assert summary["mean_reward"] == pytest.approx(total.mean().item(), rel=1e-5)
    assert summary["mean_episode_length"] == 200
    assert (summary["termination/truncated"], summary["termination/terminated"]) == (1.0, 0.0)
    first = seen["observation"].clone()
    assert not torch.equal(env.step(torch.zeros(3, 1))[0]["observation"], first)
    env.close()


class Dies(PendulumEnv):
    """Its process ends in the first step, picture or second episode."""

    def __init__(self, how: str = "was killed by SIGKILL", place: str = "step") -> None:
        super().__init__(render_mode="rgb_array")
        self.how, self.place, self.num_episodes = how, place, 0

    def end(self, place: str) -> None:
        if place == self.place:
            if self.how == "ended with status 0":
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    def reset(self, **options: Any) -> Any:
        if self.num_episodes:
            self.end("reset")
        self.num_episodes += 1
        return super().reset(**options)

    def step(self, u: np.ndarray) -> Any:
        self.end("step")
        return (*super().step(u)[:3], True, {})

    def render(self) -> Any:
        self.end("render")
        return super().render()


@pytest.mark.parametrize("how", ["was killed by SIGKILL", "ended with status 0"])
def test_a_process_of_an_environment_that_ends_is_named_and_the_others_end(how: str) -> None:
    """Those before it have answered and wait, as they would forever if Gymnasium closed them."""

    def one_dies(num_envs: int, **_: Any) -> VectorEnv:
        singles = [PendulumEnv] * (num_envs - 2) + [partial(Dies, how), PendulumEnv]
        return AsyncVectorEnv(singles, autoreset_mode=AutoresetMode.SAME_STEP)

    env = make(VecEnvConfig(make=one_dies))
    with pytest.raises(RuntimeError, match=rf"one_dies: the process of environment 1 {how}$"):
        env.step(torch.zeros(3, 1))
    workers: Any = env.worlds._workers  # pyright: ignore[reportAttributeAccessIssue]
    env.close()
    ended = 0 if how.endswith("0") else -signal.SIGKILL
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL, ended, -signal.SIGKILL]
    env.close()


class Breaks(PendulumEnv):
    def step(self, u: np.ndarray) -> Any:
        raise ValueError("broken step")


class Closes(VectorWrapper):
    """Takes no options when it is closed."""

    def close(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] # as some are
        super().close()


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_environments_end_whatever_happens_in_an_interrupted_step(is_interrupted: bool) -> None:
    def make_two(num_envs: int, **_: Any) -> VectorEnv:
        return Closes(AsyncVectorEnv([Breaks] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP))

    env = make(VecEnvConfig(make=make_two), num_envs=2)
    worlds: Any = env.worlds  # pyright: ignore[reportAttributeAccessIssue]
    if is_interrupted:
        worlds._envs.unwrapped.step_async(np.zeros((2, 1)))
    env.close()
    assert not any(worker.is_alive() for worker in worlds._workers)


def test_a_process_that_ends_in_a_reset_or_a_picture_is_named() -> None:
    def make_one(num_envs: int, place: str, **_: Any) -> VectorEnv:
        return AsyncVectorEnv([partial(Dies, place=place)] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    for place in ("reset", "render"):
        env = make(VecEnvConfig(make=make_one, kwargs={"place": place}))
        worlds: Any = env.worlds  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(RuntimeError, match=r"make_one: the process of environment \d was killed by SIGKILL$"):
            worlds.picture() if place == "render" else env.step(torch.zeros(3, 1))
        env.close()


class Program(PendulumEnv):
    """Ends a program by a signal when it is closed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.program = subprocess.Popen(["sleep", "600"])

    def close(self) -> None:
        super().close()
        self.program.send_signal(signal.SIGUSR1)
        self.program.wait(patience(10.0))


def test_environments_are_closed_after_an_interrupted_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Program-v0", EnvSpec("Program-v0", Program, max_episode_steps=9))
    env = make(GymnasiumConfig(id="Program-v0", vectorization="async"), num_envs=2)
    worlds: Any = env.worlds  # pyright: ignore[reportAttributeAccessIssue]
    worlds._envs.step_async(np.zeros((2, 1)))
    env.close()
    assert [worker.exitcode for worker in worlds._workers] == [0, 0]


def test_processes_of_environments_leave_signals_to_the_rank() -> None:
    env = make(replace(PENDULUM, vectorization="async"), num_envs=2)
    workers: Any = env.worlds._workers  # pyright: ignore[reportAttributeAccessIssue]
    env.step(torch.zeros(2, 1))
    for worker in workers:
        assert os.getpgid(worker.pid) == worker.pid
        for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
            os.kill(worker.pid, signum)
    env.step(torch.zeros(2, 1))
    env.close()
    assert [worker.exitcode for worker in workers] == [0, 0]


class NoLimit(PendulumEnv):
    _max_episode_steps = None


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_longest_episode_is_that_of_the_arguments(vectorization: Any) -> None:
    for limit, longest in ((1200, 1200), (-1, 1000)):  # -1 means no limit to gymnasium.make
        env = make(replace(PENDULUM, vectorization=vectorization, kwargs={"max_episode_steps": limit}), num_envs=1)
        assert env.max_episode_steps == longest
        env.close()

    vector = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}[vectorization]
    without_spec = partial(gymnasium.wrappers.TimeLimit, PendulumEnv(), max_episode_steps=1300)
    for single, wrap, longest in (
        (partial(gymnasium.make, "Pendulum-v1", max_episode_steps=1300), None, 1300),
        (without_spec, None, 1300),
        (without_spec, RecordEpisodeStatistics, 1300),
        (PendulumEnv, None, 1000),  # without a limit
        (NoLimit, None, 1000),
    ):

        def function(num_envs: int, single: Any = single, wrap: Any = wrap, **_: Any) -> VectorEnv:
            envs = vector([single] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
            return envs if wrap is None else wrap(envs)

        env = make(VecEnvConfig(make=function), num_envs=1)
        assert env.max_episode_steps == longest
        env.close()


def test_ranks_have_other_episodes_and_a_seed_the_same_ones() -> None:
    """Gymnasium numbers environments from the seed; those of the next rank must not be the same but one."""
    starts = [make(PENDULUM, num_envs=4, seed=seed).observe()["observation"] for seed in (0, 0, 1)]
    assert torch.equal(starts[0], starts[1])
    apart = (starts[0][:, None] - starts[2][None]).norm(dim=2)
    assert apart.min() > 1e-3


def test_disabled_autoreset_is_done_for_them() -> None:
    def disabled(num_envs: int, **_: Any) -> VectorEnv:
        options = {"autoreset_mode": AutoresetMode.DISABLED}
        return gymnasium.make_vec("Pendulum-v1", num_envs=num_envs, vector_kwargs=options, max_episode_steps=5)

    env = make(VecEnvConfig(make=disabled))
    for step in range(1, 11):
        _, _, _, truncated = env.step(torch.zeros(3, 1))
        assert truncated.all() == (step % 5 == 0)
    env.close()


def point_mass(**options: Any) -> PointMass:
    return PointMass(**options)


def test_a_vec_env_tells_time_outs_from_failures() -> None:
    env = make(VecEnvConfig(make=point_mass), num_envs=64)
    assert {name: tuple(seen.shape) for name, seen in env.observe().items()} == {"policy": (64, 2), "critic": (64, 4)}
    failures = time_outs = 0
    for _ in range(21):
        before = env.observe()["policy"]
        _, _, terminated, truncated = env.step(torch.ones(64, 1))
        following = before[:, 0] + 0.5 * (before[:, 1] + 0.1)
        assert torch.equal(terminated, following.abs() > LIMIT)
        assert not (terminated & truncated).any()
        failures, time_outs = failures + int(terminated.sum()), time_outs + int(truncated.sum())
    assert failures > 0
    assert time_outs > 0
    torch.manual_seed(0)
    env.stagger()
    assert env.worlds._envs.episode_length_buf.unique().numel() > 5  # pyright: ignore[reportAttributeAccessIssue]


def test_the_first_episodes_of_a_vec_env_are_played_from_their_start() -> None:
    """It has no reset, so every step since it was made belongs to them."""
    agent = AgentConfig(obs_groups={"actor": ("policy",), "critic": ("critic",)})
    task = TaskConfig(env=VecEnvConfig(make=point_mass), agent=agent, num_envs=3, max_iterations=1)
    played = mjtrain.play(task, policy="zero", episodes=3, seed=4, num_threads=1)
    worlds, left = PointMass(3, "cpu", 4), torch.ones(3, dtype=torch.bool)
    returns, lengths = torch.zeros(3), torch.zeros(3)
    while left.any():
        _, rewards, dones, _ = worlds.step(torch.zeros(3, 1))
        returns, lengths = returns + rewards * left, lengths + left
        left &= ~dones.bool()
    assert played["length"]["mean"] == pytest.approx(lengths.mean().item())
    assert played["reward"]["mean"] == pytest.approx(returns.mean().item(), rel=1e-5)


class Longer(PointMass):
    """Its episodes last twice as long as it said when it was made; points without actions stay where they are."""

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        self.max_episode_length = 40
        return super().step(actions)

    def _begin(self, mask: torch.Tensor) -> None:
        super()._begin(mask)
        self.state[:, 1] = 0.0


def longer(**options: Any) -> Longer:
    return Longer(**options)


def test_an_episode_of_which_no_step_was_played_does_not_count() -> None:
    """The time of two episodes is over exactly when the first one ends."""
    agent = AgentConfig(obs_groups={"actor": ("policy",), "critic": ("critic",)})
    task = TaskConfig(env=VecEnvConfig(make=longer), agent=agent, num_envs=1, max_iterations=1)
    played = mjtrain.play(task, policy="zero", episodes=2, num_envs=1, num_threads=1)
    assert played["episodes"] == 1
    assert played["length"]["min"] == 40
    assert "unfinished" not in played["terminations"]


def test_what_a_vec_env_tells_of_itself_is_averaged() -> None:
    """Over the steps in which it was told, as RSL-RL's logger does; from the first step that was asked for."""
    env = make(VecEnvConfig(make=point_mass), num_envs=4, seed=7)
    points: Any = env.worlds
    assert env.log.new_names() == []
    distances, ends, far = [], [], []
    for _ in range(50):
        before, clocks = env.observe()["policy"], points._envs.episode_length_buf + 1
        _, _, terminated, truncated = env.step(torch.ones(4, 1))
        distances.append((before[:, 0] + 0.5 * (before[:, 1] + 0.1)).abs().mean())
        if (terminated | truncated).any():
            ends.append(clocks[terminated | truncated])
            far.append(terminated.sum())
    env.log.agree_on(["not_here", *sorted(env.log.new_names())])
    told = env.log.summarise(env.log.pop().tolist())
    assert told == pytest.approx(
        {
            "log/Metrics/distance": torch.stack(distances).mean().item(),
            "log/seed": 7.0,
            "log/seed_7": 1.0,
            "log/Episode_Reward/length": torch.cat(ends).double().mean().item(),
            "log/Episode_Termination/far": torch.stack(far).double().mean().item(),
        }
    )
    assert env.log.summarise(env.log.pop().tolist()) == {}


def test_tasks_of_mjtrain_go_out_and_in_again() -> None:
    def own(num_envs: int, device: str, seed: int) -> VectorEnv:
        options = {"output": "torch", "num_threads": 1}
        return mjtrain.make_vec("Cartpole-Balance", num_envs, device=device, seed=seed, **options)

    env = make(VecEnvConfig(make=own), num_envs=2)
    seen, *_ = env.step(torch.ones(2, 1))
    assert seen["observation"].shape == (2, 4)
    env.close()


class Wrong(PointMass):
    """Makes one mistake."""

    def __init__(self, mistake: str, **options: Any) -> None:
        self.mistake = mistake
        super().__init__(**options)
        if mistake == "no limit":
            self.max_episode_length: Any = math.inf

    def get_observations(self) -> Any:
        seen = super().get_observations()
        return {"a tensor": seen["policy"], "a short group": {"policy": seen["policy"][:1]}}.get(self.mistake, seen)

    def step(self, actions: torch.Tensor) -> Any:
        seen, rewards, dones, extras = super().step(actions)
        return {
            "three results": (seen, rewards, dones),
            "a column": (seen, rewards[:, None], dones, extras),
            "an array": (seen, rewards, dones.numpy(), {}),
            "no time-outs for some": (seen, rewards, dones, {"time_outs": dones[:1]}),
            "words in the log": (seen, rewards, dones, {"log": {"Episode_Reward/x": "much"}}),
        }.get(self.mistake, (seen, rewards, dones, extras))


class Exact(PointMass):
    """Observes in float64."""

    def get_observations(self) -> Any:
        return super().get_observations().double()


def test_observations_are_as_networks_compute() -> None:
    def make_exact(**options: Any) -> Exact:
        return Exact(**options)

    seen, *_ = make(VecEnvConfig(make=make_exact)).step(torch.ones(3, 1))
    assert {values.dtype for values in seen.values()} == {torch.float32}


class Reusing(PointMass):
    """Observes into the same memory in every step, and limits the actions where they are."""

    shown: Any = None

    def get_observations(self) -> Any:
        seen = super().get_observations()
        self.shown = seen if self.shown is None else self.shown.update_(seen)
        return self.shown

    def step(self, actions: torch.Tensor) -> Any:
        return super().step(actions.clamp_(-1, 1))


def reusing(**options: Any) -> Reusing:
    return Reusing(**options)


def test_memory_that_is_written_again_changes_nothing_that_was_learned_from() -> None:
    def learn(context: RankContext, function: Any) -> list[Any]:
        agent = AgentConfig(num_steps_per_env=8, obs_groups={"actor": ("policy",), "critic": ("critic",)})
        task = TaskConfig(env=VecEnvConfig(make=function), agent=agent, num_envs=4, max_iterations=2)
        learner = make_learner(context, make_rank_env(context, make_train_config(task)), agent, LearnerConfig())
        return [(result.metrics["kl"], result.metrics["loss/value"]) for result in learner.iterate(2)]

    copied, written = (mjtrain.launch(learn, function, launch=CPU) for function in (point_mass, reusing))
    assert copied == written


def one_too_many(num_envs: int, **options: Any) -> PointMass:
    return PointMass(num_envs + 1, **options)


def wrong(**options: Any) -> Wrong:
    return Wrong(**options)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("a tensor", "observations are a tensor of shape (3, 2); give a TensorDict of groups"),
        ("a short group", "observation group policy is a tensor of shape (1, 2); give a tensor of shape (3, size)"),
        ("three results", "step returned a tuple of 3; give observations, rewards, dones, extras"),
        ("a column", "rewards are a tensor of shape (3, 1); give a tensor of shape (3,)"),
        ("an array", "dones are a ndarray; give a tensor of shape (3,)"),
        ("no limit", "its max_episode_length is inf; give a number of env steps"),
        ("no time-outs for some", "extras['time_outs'] are a tensor of shape (1,); give a tensor of shape (3,)"),
        ("words in the log", "extras['log']['Episode_Reward/x'] is a str; give a number, or a tensor"),
    ],
)
def test_mistakes_of_a_vec_env_are_one_line(mistake: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        make(VecEnvConfig(make=wrong, kwargs={"mistake": mistake}))
    assert words in str(caught.value)
    assert str(caught.value).startswith("test_worlds:wrong: ") or ".test_worlds:wrong: " in str(caught.value)


def test_other_mistakes_are_one_line() -> None:
    def nothing(**_: Any) -> int:
        return 3

    def next_step(num_envs: int, **_: Any) -> VectorEnv:
        return SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * num_envs)

    for config, words in (
        (VecEnvConfig(make=nothing), "made a int without num_envs, num_actions"),
        (VecEnvConfig(make=next_step), "its autoreset mode is NEXT_STEP; make it with SAME_STEP or DISABLED"),
        (VecEnvConfig(make=one_too_many), "made 4 environments; 3 were asked for"),
        (GymnasiumConfig(id="Pendulu-v1"), "gymnasium:Pendulu-v1: Environment `Pendulu` doesn't exist. Did you mean"),
        (GymnasiumConfig(id="Pendulum-v1", kwargs={"colour": 1}), "unexpected keyword argument 'colour'"),
        (GymnasiumConfig(id="CartPole-v1"), "its actions are Discrete(2); a policy gives numbers, a Box of one axis"),
        (GymnasiumConfig(id="FrozenLake-v1"), "its observations are Discrete(16); a policy reads a Box"),
    ):
        with pytest.raises(RequestError) as caught:
            make(config)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


class Maker:
    def __call__(self, **options: Any) -> PointMass:
        return PointMass(**options)


@pytest.mark.parametrize("function", [partial(point_mass), Maker()])
def test_what_makes_environments_must_have_a_name(function: Any) -> None:
    task = TaskConfig(env=VecEnvConfig(make=function), agent=AgentConfig(), num_envs=3, max_iterations=1)
    with pytest.raises(RequestError, match=r"^--env\.make: is .*, which no run could record; give a function"):
        mjtrain.train(task, launch=mjtrain.LaunchConfig(gpu_ids=None))


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"size": 1, "colour": 1}, "got an unexpected keyword argument 'colour'"),
        ({}, "missing a required argument: 'size'"),
    ],
)
def test_what_makes_environments_must_take_the_arguments(kwargs: dict[str, Any], words: str) -> None:
    def sized(num_envs: int, device: str, seed: int, size: int) -> PointMass:
        raise AssertionError(num_envs, device, seed, size)

    task = TaskConfig(env=VecEnvConfig(make=sized, kwargs=kwargs), agent=AgentConfig(), num_envs=3, max_iterations=1)
    with pytest.raises(RequestError, match=rf"^--env\.kwargs: .*sized: {words}$"):
        mjtrain.train(task, launch=mjtrain.LaunchConfig(gpu_ids=None))


def test_what_makes_environments_may_wrap_a_function_that_takes_less() -> None:
    def narrow(num_envs: int) -> PointMass:
        raise RequestError(f"{num_envs} were asked for")

    @wraps(narrow)
    def wide(num_envs: int, device: str, seed: int) -> PointMass:
        return narrow(num_envs)

    task = TaskConfig(env=VecEnvConfig(make=wide), agent=AgentConfig(), num_envs=3, max_iterations=1)
    with pytest.raises(RequestError, match="were asked for"):
        mjtrain.train(task, launch=mjtrain.LaunchConfig(gpu_ids=None))


def test_an_agent_must_read_what_there_is() -> None:
    task = load_task("gymnasium:Pendulum-v1")
    check_before_training(PENDULUM, task.agent, 2)
    env = make(VecEnvConfig(make=point_mass))
    with pytest.raises(
        RequestError, match=r"--agent.obs-groups.actor observation: the environment observes policy, critic"
    ):
        check_agent(env, task.agent, 3)


class Edges(gymnasium.Env):
    """Takes actions of its space only."""

    observation_space = Box(-1.0, 1.0, (1,))

    def __init__(self, space: Box) -> None:
        self.action_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        return np.zeros(1, np.float32), float(action.sum()), False, False, {}


def edges(num_envs: int, device: str, seed: int, *, low: list[float], high: list[float], whole: bool) -> VectorEnv:
    least, most = (bound[0] if len(bound) == 1 else np.array(bound) for bound in (low, high))
    dtype: Any = np.int64 if whole else np.float32
    space = Box(least, most, (len(low),), dtype)
    return SyncVectorEnv([lambda: Edges(space)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize(
    ("low", "high", "whole", "action", "sent"),
    [
        ([-np.inf, -5.0], [1.0, np.inf], False, [3.0, -9.0], [1.0, -5.0]),
        ([-np.inf, -5.0], [1.0, np.inf], False, [-3.0, 9.0], [-3.0, 9.0]),
        ([2.0, -np.inf], [np.inf, -2.0], False, [0.5, -0.5], [2.5, -2.5]),
        ([0.0, -np.inf], [4.0, np.inf], False, [0.0, 7.0], [2.0, 7.0]),
        ([-0.1], [0.3], False, [9.0], [0.3]),
        ([0, -3], [10, 3], True, [0.3, -9.0], [6, -3]),
        ([-np.inf], [np.inf], True, [7.4], [7]),
        ([-3], [2**31 - 1], True, [1.0], [2**31 - 1]),
        ([-MOST, 0.0], [MOST, MOST], False, [-1.0, 7.0], [-1.0, 7.0]),
        ([-MOST, -1.0], [MOST, 1.0], False, [0.5, -9.0], [0.5, -1.0]),
    ],
)
def test_actions_stay_within_the_bounds(low: list, high: list, whole: bool, action: list, sent: list) -> None:
    config = VecEnvConfig(make=edges, kwargs={"low": low, "high": high, "whole": whole})
    env = make(config, num_envs=2)
    _, rewards, _, _ = env.step(torch.tensor([action, action]))
    assert rewards.tolist() == pytest.approx([sum(sent)] * 2)


class Faulty(gymnasium.Env):
    """Has one fault."""

    action_space = Box(-1.0, 1.0, (1,))

    def __init__(self, fault: str) -> None:
        self.fault = fault
        size = 0 if fault == "observes nothing" else 2
        self.seen: Any = np.zeros(size, np.float32)
        self.observation_space: Any = Box(-1.0, 1.0, (size,))
        if fault == "takes nothing":
            self.action_space = Box(-1.0, 1.0, (0,))
        if fault == "groups by number":
            spaces: Any = {7: self.observation_space}
            self.seen, self.observation_space = {7: self.seen}, gymnasium.spaces.Dict(spaces)
        if fault == "two groups of one name":
            spaces = {7: self.observation_space, "7": self.observation_space}
            self.observation_space = gymnasium.spaces.Dict(spaces)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        if self.fault == "does not begin":
            raise KeyError("battery")
        return self.seen, {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict]:
        if self.fault in ("divides by a zero matrix", "does not end"):
            np.linalg.inv(np.zeros((2, 2)))
        rewards = {"rewards with a word": "much", "rewards without end": math.inf}
        return self.seen.copy(), rewards.get(self.fault, 0.0), False, False, {}

    def close(self) -> None:
        if self.fault == "does not end":
            raise OSError("no battery to switch off")


FAULTY: Any = Faulty
gymnasium.register("mjtrain-tests/Faulty-v0", entry_point=FAULTY)


@pytest.mark.filterwarnings("ignore:.*The reward returned by")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("observes nothing", "--agent.obs-groups.actor observation: the network reads nothing, as these are empty"),
        (
            "takes nothing",
            "gymnasium:mjtrain-tests/Faulty-v0: its actions are empty; a policy gives at least one number",
        ),
        ("does not begin", "gymnasium:mjtrain-tests/Faulty-v0: KeyError: 'battery' (test_worlds.py, line "),
        ("rewards with a word", "gymnasium:mjtrain-tests/Faulty-v0: ValueError: could not convert string to float"),
        (
            "divides by a zero matrix",
            "gymnasium:mjtrain-tests/Faulty-v0: LinAlgError: Singular matrix (test_worlds.py, line ",
        ),
        ("does not end", "gymnasium:mjtrain-tests/Faulty-v0: LinAlgError: Singular matrix (test_worlds.py, line "),
        ("two groups of one name", "gymnasium:mjtrain-tests/Faulty-v0: its observations have 2 groups with the name 7"),
        ("groups by number", "--agent.obs-groups.actor observation: the environment observes 7"),
    ],
)
def test_faults_of_an_environment_are_one_line_before_the_training(fault: str, words: str) -> None:
    agent = load_task("gymnasium:Pendulum-v1").agent
    with pytest.raises(RequestError) as caught:
        check_before_training(GymnasiumConfig(id="mjtrain-tests/Faulty-v0", kwargs={"fault": fault}), agent, 2)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_a_reward_that_is_not_finite_is_named() -> None:
    """Not by a flag, which external environments do not have."""
    env = make(GymnasiumConfig(id="mjtrain-tests/Faulty-v0", kwargs={"fault": "rewards without end"}))
    _, rewards, _, _ = env.step(torch.zeros(3, 1))
    with pytest.raises(FloatingPointError) as caught:
        check_rollout({"rewards": rewards}, 2, env, lambda: {})
    words = "rewards are not finite in iteration 2: the reward of gymnasium:mjtrain-tests/Faulty-v0 is not finite"
    assert str(caught.value) == words


def test_groups_by_number_can_be_chosen() -> None:
    agent = replace(load_task("gymnasium:Pendulum-v1").agent, obs_groups={"actor": ("7",), "critic": ("7",)})
    config = GymnasiumConfig(id="mjtrain-tests/Faulty-v0", kwargs={"fault": "groups by number"})
    check_before_training(config, agent, 2)


def test_very_large_observations_are_named() -> None:
    env = make(VecEnvConfig(make=point_mass))
    rollout = {name: torch.zeros(5, *seen.shape) for name, seen in env.observe().items()}
    assert find_large_terms(env, rollout) == []
    rollout["critic"][2, 1, 3] = -1e20
    assert find_large_terms(env, rollout) == [f"observation group critic of {env.config.label} (1e+20)"]
    losses = {"value": float("nan")}
    with pytest.raises(
        FloatingPointError, match=r"iteration 3: observation group critic of .*:point_mass \(1e\+20\) is too"
    ):
        check_losses(losses, 3, env, lambda: rollout)


def test_observations_that_are_not_finite_are_named() -> None:
    env = make(VecEnvConfig(make=point_mass))
    rollout = {name: torch.zeros(5, *seen.shape) for name, seen in env.observe().items()}
    assert find_broken_terms(env, rollout) == []
    rollout["critic"][2, 1, 3] = torch.nan
    assert find_broken_terms(env, rollout) == [f"observation group critic of {env.config.label}"]


def test_keyword_arguments_are_flags() -> None:
    words = "--env.kwargs.g 9.0 --num-envs 2 --env.kwargs.render-mode=rgb_array --env.kwargs.fast True"
    words += " --env.kwargs.slow false --env.kwargs.wind None --env.kwargs.path 1.xml --env.kwargs.z-range (0.2,1)"
    config: Any = read_command(["gymnasium:Pendulum-v1", *words.split()])[0]
    assert config.env.kwargs == {
        "g": 9.0,
        "render_mode": "rgb_array",
        "fast": True,
        "slow": False,
        "wind": None,
        "path": "1.xml",
        "z_range": (0.2, 1),
    }


@pytest.mark.parametrize(
    ("recorded", "words", "expected"),
    [
        ({"fast": True}, "--env.kwargs.fast False", False),
        ({"fast": True}, "--env.kwargs.no-fast", False),
        ({"fast": False}, "--env.kwargs.fast --num-envs 2", True),
        ({"g": 10}, "--env.kwargs.g 9.8", 9.8),
        ({"g": None}, "--env.kwargs.g=9", 9),
        ({"g": 0.2}, "--env.kwargs.g None", None),
        ({"z_range": (0.2, 1)}, "--env.kwargs.z-range (0.3,1)", (0.3, 1)),
        ({"z_range": [0.2, 1]}, "--env.kwargs.z-range=(0.3,1) --num-envs 2", (0.3, 1)),
        ({"z_range": (0.2, 1.0)}, "--env.kwargs.z-range 0.3 2", (0.3, 2.0)),
        ({"name": "a"}, "--env.kwargs.name 5", "5"),
        ({"parts": {"a": 1}}, "--env.kwargs.parts.a 2", {"a": 2}),
    ],
)
def test_keyword_arguments_of_a_task_or_a_run_are_changed(recorded: dict[str, Any], words: str, expected: Any) -> None:
    env: Any = add_named_parts(replace(PENDULUM, kwargs=recorded), words.split())
    every: Any = with_env(AllOptions, env)
    default = every(launch=LaunchConfig(), run=RunConfig(), env=env, agent=AgentConfig())
    assert list(parse(every, words.split(), prog="train", default=default).env.kwargs.values()) == [expected]


def test_ids_name_folders() -> None:
    assert folder_name("gymnasium:HalfCheetah-v5") == "gymnasium_halfcheetah_v5"
    assert "/" not in folder_name("gymnasium:pkg.module:space/Name-v0")
    assert is_same_task("gymnasium:HalfCheetah-v5", "gymnasium:HalfCheetah-v5")
    assert not is_same_task("gymnasium:HalfCheetah-v5", "gymnasium:HalfCheetah-v4")


def test_environments_that_an_agent_cannot_use_are_closed() -> None:
    class Counted(PointMass):
        closed = 0

        def close(self) -> None:
            Counted.closed += 1

    env = VecEnvConfig(make=lambda num_envs, device, seed: Counted(num_envs, device, seed))
    config = make_train_config("gymnasium:Pendulum-v1", env=env, num_envs=3)
    with pytest.raises(RequestError, match=r"--agent\.obs-groups"):
        make_rank_env(RankContext(device="cpu", seed=0, num_threads=1), config)
    assert Counted.closed == 1
