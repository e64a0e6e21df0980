"""Tasks as Gymnasium's vector environments, stepped through Gymnasium's own functions and wrappers."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.utils.performance import benchmark_vector_step
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import (
    DictInfoToList,
    FlattenObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
)

import mjtrain
from mjtrain.env.catalog import list_tasks, load_task
from mjtrain.gymnasium.vector_env import TaskVectorEnv
from mjtrain.runtime.errors import RequestError
from support.machine import patience

ID = "mjtrain/Cartpole-Balance"


def make(num_envs: int = 4, **options) -> TaskVectorEnv:
    return mjtrain.make_vec("Cartpole-Balance", num_envs, **{"num_threads": 1, **options})


@pytest.fixture
def env() -> Iterator[TaskVectorEnv]:
    made = make()
    yield made
    made.close()


def run_to_an_end(env: VectorEnv, seed: int = 0) -> tuple[np.ndarray, dict]:
    """Return the observations and infos of the first step that ended an episode, of actions drawn at random."""
    env.reset(seed=seed)
    env.action_space.seed(seed)
    for _ in range(500):
        observations, _, terminated, truncated, infos = env.step(env.action_space.sample())
        if np.any(terminated | truncated):
            return observations, infos
    raise AssertionError("no episode ended")


def test_every_task_is_registered_and_made_by_its_id() -> None:
    assert {f"mjtrain/{entry.name}" for entry in list_tasks()} <= set(gymnasium.registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Gymnasium warns of an environment without an autoreset mode
        env = gymnasium.make_vec(ID, num_envs=3, num_threads=1)
    assert isinstance(env, TaskVectorEnv)
    assert env.spec is not None
    assert (env.spec.id, env.num_envs) == (ID, 3)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.metadata["render_fps"] == pytest.approx(50)
    assert benchmark_vector_step(env, target_duration=0, seed=1) > 0
    env.close()


def test_a_name_that_gymnasium_refuses_is_left_out(tmp_path: Path) -> None:
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    names = ("AA-Task", "AA-Task-v2", "AA Space", "AA/Slash")
    (info / "entry_points.txt").write_text("[mjtrain.tasks]\n" + "".join(f"{name} = own:make\n" for name in names))
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import gymnasium, mjtrain.gymnasium\n"
        "print(sorted(name for name in gymnasium.registry if name.startswith('mjtrain/AA')), "
        f"{ID!r} in gymnasium.registry)"
    )
    assert run_program(script) == "['mjtrain/AA-Task'] True"


def test_spaces_hold_what_is_observed_and_done(env: TaskVectorEnv) -> None:
    assert env.single_observation_space == Box(-np.inf, np.inf, (4,), np.float32)
    assert env.single_action_space == Box(-1, 1, (1,), np.float32)
    assert env.observation_space.shape == (4, 4)
    observations, infos = env.reset(seed=1)
    assert env.observation_space.contains(observations)
    assert infos == {}
    observations, rewards, terminated, truncated, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(observations)
    assert [array.dtype for array in (rewards, terminated, truncated)] == [np.float32, np.bool_, np.bool_]
    assert rewards.shape == terminated.shape == truncated.shape == (4,)
    before = observations.copy()
    observations[:] = np.nan  # it is the caller's
    np.testing.assert_array_equal(env.env.observe()["actor"].numpy(), before)


def test_a_world_that_ends_is_reset_and_its_last_observation_is_told(env: TaskVectorEnv) -> None:
    observations, infos = run_to_an_end(env)
    ended, angle = infos["_final_obs"], 1
    assert ended.any()
    assert not ended.all()
    for world in range(4):
        if ended[world]:
            assert env.single_observation_space.contains(infos["final_obs"][world])
            assert abs(infos["final_obs"][world][angle]) > 0.5, "it fell"
        else:
            assert infos["final_obs"][world] is None
    assert (np.abs(observations[:, angle]) <= 0.5).all(), "and a new episode has begun"
    assert infos["final_info"]["termination/pole_fell"].tolist() == ended.tolist()
    assert not infos["final_info"]["termination/time_out"].any()
    assert infos["_final_info"].tolist() == infos["final_info"]["_termination/time_out"].tolist() == ended.tolist()


def rollout(env: VectorEnv, seed: Any) -> list[np.ndarray]:
    first, _ = env.reset(seed=seed)
    return [first, *(env.step(np.full((4, 1), push, np.float32))[0] for push in (0.5, -1.0, 0.0))]


def test_a_seed_begins_everything_again() -> None:
    env, other = make(), make(seed=7)
    seeded = rollout(env, 7)
    on = rollout(env, None)
    for again in (rollout(env, 7), rollout(other, 7), rollout(env, np.int64(7))):
        np.testing.assert_array_equal(again, seeded)
    assert not np.array_equal(on, seeded)
    assert not np.array_equal(rollout(env, 8), seeded)
    np.testing.assert_array_equal(make(seed=7).env.observe()["actor"], seeded[0])


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (-1, "seed -1: must be at least 0"),
        ([1, 2], r"seed \[1, 2\]: must be a whole number"),
        (np.array([1, 2]), r"seed array\(\[1, 2\]\): must be a whole number"),
    ],
)
def test_what_is_not_a_seed_is_said(seed: Any, words: str, env: TaskVectorEnv) -> None:
    with pytest.raises(RequestError, match=words):
        env.reset(seed=seed)


def test_some_worlds_can_be_reset(env: TaskVectorEnv) -> None:
    before = rollout(env, 3)[-1]
    mask = np.array([True, False, False, True])
    after, _ = env.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal((after != before).any(axis=1), mask)
    with pytest.raises(RequestError, match=r"reset_mask has the shape \(3,\) of torch.bool; give booleans of shape"):
        env.reset(options={"reset_mask": mask[:3]})
    with pytest.raises(RequestError, match="a seed is for all worlds"):
        env.reset(seed=1, options={"reset_mask": mask})
    with pytest.raises(RequestError, match="reset: options has 'reset_masks'; the only option is 'reset_mask'"):
        env.reset(options={"reset_masks": mask})
    with pytest.raises(RequestError, match="reset_mask: cannot be read as a tensor"):
        env.reset(options={"reset_mask": "all"})
    with pytest.raises(RequestError, match=f"seed {2**63}: must be at most"):
        env.reset(seed=2**63)
    assert env.step(np.zeros((4, 1)))[1].shape == (4,), "the worlds are still there"


def test_wrappers_of_gymnasium_work(env: TaskVectorEnv) -> None:
    counted = RecordEpisodeStatistics(env)
    counted.reset(seed=2)
    counted.action_space.seed(2)
    returns, lengths, found = np.zeros(4), np.zeros(4, int), 0
    for _ in range(80):
        _, rewards, terminated, truncated, infos = counted.step(counted.action_space.sample())
        returns, lengths, done = returns + rewards, lengths + 1, terminated | truncated
        if done.any():
            np.testing.assert_allclose(infos["episode"]["r"][done], returns[done], rtol=1e-6)
            np.testing.assert_array_equal(infos["episode"]["l"][done], lengths[done])
            found += done.sum()
        returns[done], lengths[done] = 0, 0
    assert found > 4
    for wrap in (NormalizeReward, DictInfoToList):
        wrapped = wrap(env)
        wrapped.reset(seed=1)
        assert wrapped.step(wrapped.action_space.sample())[1].shape == (4,)
    halved = RescaleAction(env, min_action=-2.0, max_action=2.0)
    halved.reset(seed=1)
    halved.step(np.full((4, 1), 2.0, np.float32))
    assert env.env.action.tolist() == [[1.0]] * 4


def test_next_step_is_same_step_with_a_step_between() -> None:
    """The same pole falls in both; then one has a new episode at once, and the other after a step without effect."""
    same, following = make(1), make(1, autoreset_mode="NextStep")
    assert following.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    push = np.ones((1, 1), np.float32)
    same.reset(seed=1)
    following.reset(seed=1)
    *_, infos = same.step(push)
    observations, rewards, terminated, truncated, mine = following.step(push)
    while not infos:
        *_, infos = same.step(push)
        observations, rewards, terminated, truncated, mine = following.step(push)
    np.testing.assert_array_equal(observations[0], infos["final_obs"][0])
    assert terminated.tolist() == [True]
    assert mine.keys() == infos["final_info"].keys()
    begun, rewards, terminated, truncated, mine = following.step(push)
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist(), mine) == ([0.0], [False], [False], {})
    assert abs(begun[0, 1]) <= 0.1, "where an episode begins"
    first = following.step(push)
    assert first[1][0] > 0
    assert following.env.episode_step.tolist() == [1]
    for env in (same, following):
        env.close()


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_a_world_that_breaks_ends_with_what_it_observed_before(mode: str) -> None:
    """Observations that are NaN would stay in a normaliser forever."""
    env = make(2, autoreset_mode=mode)
    env.reset(seed=1)
    before, *_ = env.step(np.ones((2, 1), np.float32))
    env.env.engine.set_qvel(torch.tensor([False, True]), torch.full((2, 2), torch.nan))
    observations, _, terminated, _, infos = env.step(np.ones((2, 1), np.float32))
    assert terminated.tolist() == [False, True]
    last = infos["final_obs"][1] if mode == "SameStep" else observations[1]
    np.testing.assert_array_equal(last, before[1])
    assert not np.array_equal(observations[0], before[0])
    env.close()


def test_wrappers_that_change_observations_work_with_next_step() -> None:
    for wrap in (NormalizeObservation, FlattenObservation):
        wrapped = wrap(make(autoreset_mode=AutoresetMode.NEXT_STEP))
        observations, _ = run_to_an_end(wrapped)
        assert wrapped.observation_space.contains(observations.astype(np.float32))
        wrapped.close()
    counted = RecordEpisodeStatistics(make(autoreset_mode="NextStep"))
    _, infos = run_to_an_end(counted)
    assert (infos["episode"]["l"][infos["_episode"]] > 10).all()
    counted.close()


def test_tensors_stay_tensors() -> None:
    env = make(output="torch")
    observations, _ = env.reset(seed=0)
    assert isinstance(observations, torch.Tensor)
    action = torch.nn.Parameter(torch.ones(4, 1))
    observations, rewards, terminated, truncated, infos = env.step(action)
    while not infos:
        observations, rewards, terminated, truncated, infos = env.step(action)
        assert not observations.requires_grad
    assert rewards.dtype == torch.float32
    assert (terminated | truncated).equal(infos["_final_obs"])
    assert infos["final_obs"].shape == (4, 4)
    ended = infos["_final_obs"]
    assert (infos["final_obs"][ended] - observations[ended]).abs().max() > 0.1
    with pytest.raises(ValueError, match=r"actions have the shape \(4,\); give \(4, 1\)"):
        env.step(torch.zeros(4))
    with pytest.raises(RequestError, match="actions: cannot be read as a tensor"):
        env.step(None)
    env.close()


@pytest.mark.process
def test_groups_and_images_are_a_dictionary() -> None:
    env = mjtrain.make_vec("Cartpole-Balance-Vision", 2, num_threads=1)
    space = env.single_observation_space
    assert space == Box(0, 255, (9, 32, 64), np.uint8)
    assert env.observation_space.contains(env.reset(seed=0)[0])
    env.close()
    groups: Any = iter(env.env.observe())
    both = mjtrain.make_vec("Cartpole-Balance-Vision", 2, num_threads=1, groups=groups)
    assert isinstance(both.single_observation_space, Dict)
    assert len(both.single_observation_space) > 1
    observations, infos = run_to_an_end(both)
    assert both.observation_space.contains(observations)
    (world, *_) = np.flatnonzero(infos["_final_obs"])
    assert both.single_observation_space.contains(infos["final_obs"][world])
    both.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": "critic"}, "groups='critic': the environment observes actor"),
        ({"output": "jax"}, "output='jax': give one of 'numpy', 'torch'"),
        ({"render_mode": "human"}, "render_mode='human': give one of None, 'rgb_array'"),
        ({"autoreset_mode": "Disabled"}, "autoreset_mode='Disabled': give 'SameStep' or 'NextStep'"),
        ({"num_envs": 0}, "num_envs 0: must be a whole number, at least 1"),
        ({"num_envs": 2.5}, "num_envs 2.5: must be a whole number, at least 1"),
        ({"num_envs": 10**12}, "num_envs 1000000000000: must be at most 2147483647"),
        ({"num_threads": 0}, "num_threads 0: must be a whole number, at least 1"),
        ({"engine": "Native"}, "--engine Native: choose from auto, native, warp"),
        ({"device": "gpu"}, "device gpu: "),
        ({"device": "meta"}, 'device meta: is not supported; give "cpu", or an NVIDIA GPU such as "cuda:0"'),
        ({"groups": ()}, r"groups=\(\): give an observation group by its name, or several"),
        ({"groups": 5}, "groups=5: give an observation group"),
        ({"groups": [["actor"]]}, r"groups=\[\['actor'\]\]: give an observation group by its name, or several"),
    ],
)
def test_what_cannot_be_is_said(options: dict, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        make(**options)


def test_a_task_whose_agent_names_no_groups_needs_them() -> None:
    task = replace(load_task("Cartpole-Balance"), agent=mjtrain.AgentConfig(obs_groups={}))
    with pytest.raises(RequestError, match=r"groups=\(\): give an observation group by its name, or several"):
        mjtrain.make_vec(task, 2, num_threads=1)
    mjtrain.make_vec(task, 2, num_threads=1, groups="actor").close()


def test_without_a_render_mode_there_are_no_pictures(env: TaskVectorEnv) -> None:
    with pytest.raises(RequestError, match="make it with render_mode='rgb_array'"):
        env.render()


def run_program(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (np.ones((4, 1), dtype=complex), "step: the actions are of torch.complex128; give real numbers"),
        (torch.ones(4, 1).to_sparse(), r"sparse, nested or without data; give a dense one of shape \(4, 1\)"),
        (torch.ones(4, 1, device="meta"), "cannot be read as a tensor|without data"),
    ],
    ids=["complex", "sparse", "meta"],
)
def test_actions_without_dense_real_numbers_are_refused(actions: object, words: str, env: TaskVectorEnv) -> None:
    with pytest.raises(RequestError, match=words):
        env.step(actions)
    if isinstance(actions, torch.Tensor):
        with pytest.raises(RequestError, match="sparse, nested or without data; give a dense one"):
            env.env.step(actions)
    with pytest.raises(RequestError, match="reset: options are 'mask'; give a dictionary"):
        env.reset(options="mask")  # pyright: ignore[reportArgumentType]


def test_a_closed_environment_makes_no_worlds() -> None:
    env = make()
    env.close()
    worlds = env.env
    for call in (lambda: env.reset(seed=5), env.reset, lambda: env.step(env.action_space.sample())):
        with pytest.raises(RequestError, match=r"\(\): the environment is closed; make another one"):
            call()
    assert env.env is worlds
    env.close()


@pytest.mark.process
def test_pictures_are_of_each_world(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(2, render_mode="rgb_array")
    env.reset(seed=1)
    one, other = env.render()
    assert one.shape == other.shape == (360, 480, 3)
    assert one.dtype == np.uint8
    assert one.std() > 10, "it is empty"
    assert (one != other).any()
    np.testing.assert_array_equal(env.render()[0], one)
    env.step(np.ones((2, 1), np.float32))
    assert (env.render()[0] != one).any()
    env.close()
    monkeypatch.setenv("MUJOCO_GL", "glfw")  # there is no display
    monkeypatch.delenv("DISPLAY", raising=False)
    blind = make(2, render_mode="rgb_array")
    with pytest.raises(RequestError, match="render_mode='rgb_array': MuJoCo cannot render here"):
        blind.render()
    blind.close()


@pytest.mark.process
def test_gymnasium_is_imported_only_where_it_is_asked_for() -> None:
    code = (
        "import sys, mjtrain\n"
        "assert 'gymnasium' not in sys.modules\n"
        "sys.modules['gymnasium'] = None\n"
        "try: mjtrain.make_vec('Cartpole-Balance', 2)\n"
        "except mjtrain.runtime.errors.RequestError as error: print(error)\n"
    )
    assert run_program(code) == "mjtrain.gymnasium: needs gymnasium; pip install 'mjtrain[gymnasium]'"


@pytest.mark.process
def test_the_example_learns_with_it() -> None:
    """A few iterations; docs/gymnasium.md has the whole training."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    try:
        import cleanrl_ppo  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.pop(0)
    wide = make(64)
    curve = cleanrl_ppo.train(wide, iterations=10)
    wide.close()
    assert curve[-1] > 1.5 * curve[1]


def test_pictures_outlive_the_thread_that_asked_first() -> None:
    env = make(render_mode="rgb_array")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(env.render).result()
    again = env.render()
    assert first is not None
    assert again is not None
    assert np.array_equal(first[0], again[0])
    env.close()


def test_ctrl_c_does_not_end_the_process_that_draws() -> None:
    env = make(render_mode="rgb_array")
    env.render()
    assert os.getpgid(env._renderer._process.pid) != os.getpgid(0)  # pyright: ignore[reportOptionalMemberAccess]
    env.close()


def test_an_environment_whose_pictures_failed_is_closed() -> None:
    env = make(render_mode="rgb_array")
    env.render()
    env._renderer._process.kill()  # pyright: ignore[reportOptionalMemberAccess]
    for _ in range(2):
        with pytest.raises(RequestError, match="MuJoCo cannot render here"):
            env.render()
    env.close()
    assert env._renderer._errors.closed  # pyright: ignore[reportOptionalMemberAccess]
