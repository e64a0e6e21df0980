"""A world that stops being finite starts again, is counted, and leaves its last seconds behind."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import ActionTerm, EventTerm, NanGuardConfig, RobotConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.env.nan_guard import check_nan_resets
from mjtrain.learning.collectives import Collectives
from mjtrain.learning.learner import IterationResult
from mjtrain.mdp import observation, reward, termination
from mjtrain.mdp.observations import joint_velocities
from mjtrain.mdp.rewards import is_alive
from mjtrain.runtime.rank import RankContext
from mjtrain.training import train_rank
from mjtrain.training.hooks.after_iteration import NanHook
from mjtrain.training.hooks.base import HookContext
from support.envs import ENGINES, actions_for, make_env

CPU = mjtrain.LaunchConfig(gpu_ids=None)


def break_worlds(env: Env, worlds: Worlds, *, speed: float) -> None:
    if env.num_envs > 2:  # not in the trial before a training
        worlds.qvel.fill_(speed)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("task", ["Cartpole-Balance", "Quadruped-Velocity-Flat"])
def test_a_broken_world_starts_anew_and_the_others_go_on(task: str, engine: str, tmp_path: Path) -> None:
    config = load_task(task).env
    env, untouched = (make_env(config, engine=engine, seed=2) for _ in range(2))
    actions = actions_for(env, 12) * 0.1
    for step, action in enumerate(actions):
        if step == 8:
            env.engine.set_qvel(torch.arange(6) == 3, torch.full_like(env.state.qvel, torch.nan))
        observations, rewards, terminated, truncated = env.step(action)
        expected = untouched.step(action)
        others = torch.arange(6) != 3
        assert torch.equal(rewards[others], expected[1][others])
        assert terminated.tolist() == [step == 8 and world == 3 for world in range(6)]
        assert not truncated.any()
        assert rewards.isfinite().all()
        assert all(value.isfinite().all() for value in observations.values())
        if step == 8:
            assert rewards[3] == 0
            assert env.episode_step.tolist() == [9, 9, 9, 0, 9, 9]
    assert all(tensor.isfinite().all() for tensor in vars(env.state).values())
    assert env.statistics.summarise(env.statistics.pop().tolist())["nan_resets"] == 1

    named = r"joint \w+ of world 3 was at nan (m|rad)/s, and at [\d.e-]+ (m|rad)/s in the env step before"
    assert re.fullmatch(named, env.describe_fastest())
    (file,) = env.dump_broken_worlds(tmp_path / "nan", "here")
    with np.load(file, allow_pickle=False) as dump:
        assert dump["qpos"].shape == (9, env.state.qpos.shape[1])
        assert np.isfinite(dump["qvel"][:-1]).all()
        assert not np.isfinite(dump["qvel"][-1]).all()
        assert np.abs(np.diff(dump["qpos"][:-1], axis=0)).max() > 0
        assert dump["world"] == 3
        assert str(dump["robot"]) == config.robot.file_name
        assert dump["step_dt"] == env.step_dt
    assert env.describe_fastest() == ""  # of worlds since the last dump
    assert env.dump_broken_worlds(tmp_path / "nan", "again") == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("speed", "limit", "breaks"),
    [(2e4, 1e4, True), (1e3, 1e4, False), (1.2e4, 1e10, False), (2e10, 1e12, True)],
)
def test_a_huge_state_is_broken_before_it_is_infinite(speed: float, limit: float, breaks: bool, engine: str) -> None:
    config = replace(load_task("Cartpole-Balance").env, nan_guard=NanGuardConfig(max_velocity=limit), terminations={})
    env = make_env(config, engine=engine, num_envs=3)
    velocities = torch.full_like(env.state.qvel, speed)
    env.engine.reset(torch.arange(3) == 1, torch.zeros_like(env.state.qpos), velocities)  # upright, in any draw
    observations, rewards, terminated, _ = env.step(torch.zeros(3, 1))
    assert terminated.tolist() == [False, breaks, False]
    if breaks:
        assert rewards[1] == 0
        assert all(seen.abs().max() < 100 for seen in observations.values())


STIFF = """<mujoco><option timestep="0.005"/><worldbody><body><joint name="a" axis="0 0 1"/>
<geom type="capsule" fromto="0 0 0 .3 0 0" size=".03" mass="1"/></body></worldbody>
<actuator><position name="a" joint="a" kp="20" kv="16"/></actuator></mujoco>"""


def test_what_broke_worlds_is_explained(tmp_path: Path) -> None:
    (tmp_path / "robot.xml").write_text(STIFF)
    config = replace(
        load_task("Cartpole-Balance").env,
        robot=RobotConfig(file=str(tmp_path / "robot.xml")),
        actions={"all": ActionTerm()},
        observations={"actor": {"v": observation(joint_velocities, joints=("a",))}},
        rewards={"alive": reward(is_alive, 1.0)},
        terminations={},
        events={},
    )
    env, terminated = make_env(config, num_envs=2), torch.zeros(2)
    for _ in range(100):
        seen, _, terminated, _ = env.step(torch.tensor([[1.0], [0.0]]))
        assert seen["actor"].abs().max() <= 1e4
        if terminated.any():
            break
    assert terminated.tolist() == [True, False]
    assert env.explain_broken_worlds().startswith("the physics is unstable, velocities grew over several env steps")
    env.dump_broken_worlds(tmp_path, "grown")
    env.step(torch.tensor([[0.0], [torch.nan]]))
    assert env.explain_broken_worlds().startswith("controls were not finite: give action terms a clip")
    env.dump_broken_worlds(tmp_path, "control")
    env.engine.set_qvel(torch.tensor([True, False]), torch.full((2, 1), torch.nan))
    env.step(torch.zeros(2, 1))
    assert env.explain_broken_worlds().startswith("look for bodies that start inside each other")


@pytest.mark.parametrize(
    ("task", "column", "joint", "unit"),
    [
        ("Quadruped-Velocity-Flat", 1, "base", "m/s"),
        ("Cartpole-Balance", 0, "slider", "m/s"),
        ("Cartpole-Balance", 1, "hinge", "rad/s"),
    ],
)
def test_the_fastest_joint_is_named_with_its_unit(task: str, column: int, joint: str, unit: str) -> None:
    env = make_env(replace(load_task(task).env, terminations={}))  # all in one episode
    assert env.describe_fastest() == ""
    last = torch.arange(6) == 5
    qvel = torch.zeros_like(env.state.qvel)
    qvel[:, column] = 50.0
    for values in (qvel, torch.full_like(qvel, torch.nan)):
        env.engine.set_qvel(last, values)
        env.step(torch.zeros(6, env.num_actions))
    assert re.fullmatch(
        rf"joint {joint} of world 5 was at nan {unit}, and at [\d.e+]+ {unit} in the env step before",
        env.describe_fastest(),
    )


def test_a_dump_holds_the_last_seconds_only(tmp_path: Path) -> None:
    config = replace(load_task("Cartpole-Balance").env, nan_guard=NanGuardConfig(history_s=0.2, max_dumps=2))
    env = make_env(config)
    for action in actions_for(env, 30) * 0.01:
        env.step(action)
    env.step(torch.full((6, 1), torch.nan))
    assert (env.last_action == 0).all()
    files = env.dump_broken_worlds(tmp_path, "x")
    assert len(files) == 2  # of six broken worlds
    with np.load(files[0]) as dump:
        assert dump["qpos"].shape[0] == 10
        assert not np.isfinite(dump["ctrl"][-1]).all()
    env.step(torch.full((6, 1), torch.nan))
    assert env.dump_broken_worlds(tmp_path, "y") == []


def test_the_episode_before_explains_nothing() -> None:
    """A world that was fast when its episode ended, and broke in the first step of the next one, was not unstable."""
    fall = termination(lambda env: (env.state.qvel.abs() > 200.0).any(dim=1))
    env = make_env(replace(load_task("Cartpole-Balance").env, terminations={"fall": fall}))
    last = torch.arange(6) == 5
    for speed, ended in ((0.0, False), (2e3, True), (torch.nan, True)):
        if speed:
            env.engine.set_qvel(last, torch.full_like(env.state.qvel, speed))
        assert env.step(torch.zeros(6, 1))[2].tolist() == [False] * 5 + [ended]
    assert env.explain_broken_worlds().startswith("look for bodies that start inside each other")
    assert env.describe_fastest() == "joint slider of world 5 was at nan m/s"


def test_rows_that_other_steps_have_replaced_explain_nothing() -> None:
    config = replace(load_task("Cartpole-Balance").env, nan_guard=NanGuardConfig(history_s=0.1), terminations={})
    env = make_env(config)
    fast, broken = torch.arange(6) == 4, torch.arange(6) == 5
    env.step(torch.zeros(6, 1))
    env.engine.set_qvel(broken, torch.full_like(env.state.qvel, torch.nan))
    env.step(torch.zeros(6, 1))
    for step in range(12):  # the record has 10 rows
        env.engine.set_qvel(fast | broken, torch.full_like(env.state.qvel, 2e2 if step < 11 else 0.0))
        env.step(torch.zeros(6, 1))
    assert env.explain_broken_worlds().startswith("look for bodies that start inside each other")
    assert env.describe_fastest() == ""


@pytest.mark.usefixtures("short_trial")
def test_a_few_broken_worlds_are_counted_and_dumped_by_a_run(tmp_path: Path) -> None:
    task = load_task("Cartpole-Balance")
    breaks = EventTerm(func=break_worlds, mode="interval", interval_s=(0.5, 10.0), params={"speed": float("nan")})
    env = replace(task.env, events={**task.env.events, "break": breaks}, nan_guard=NanGuardConfig(max_fraction=0.9))
    run = mjtrain.train(
        replace(task, env=env), num_envs=64, max_iterations=3, launch=CPU, log_root=str(tmp_path), logger="none"
    )
    dumps = sorted((run.run_dir / "nan").glob("*.npz"))
    assert run.metrics["nan_resets"] > 0
    assert 0 < len(dumps) <= 5
    assert dumps[0].name.startswith("iteration_")


def test_too_many_broken_worlds_end_the_run_with_the_reason(tmp_path: Path) -> None:
    task = load_task("Cartpole-Balance")
    breaks = EventTerm(func=break_worlds, mode="interval", interval_s=(0.1, 0.2), params={"speed": float("inf")})
    env = replace(task.env, events={**task.env.events, "break": breaks})
    message = (
        r"\d+ resets because worlds diverged in iteration 1, more than .* of 64 worlds: look for bodies .* "
        r"events that write NaN.* \(joint \w+ of world \d+ was at"
    )
    with pytest.raises(FloatingPointError, match=message):
        mjtrain.train(
            replace(task, env=env), num_envs=64, max_iterations=3, launch=CPU, log_root=str(tmp_path), logger="none"
        )
    assert list(tmp_path.rglob("nan/*.npz"))


@pytest.mark.parametrize(("resets", "words"), [(1, "1 reset because"), (2000, "2,000 resets because")])
def test_resets_are_counted_in_words(resets: int, words: str) -> None:
    metrics = {"iteration": 3, "nan_resets": resets, "num_envs_total": 8}
    with pytest.raises(FloatingPointError, match=f"^{words} worlds diverged in iteration 3"):
        check_nan_resets(metrics, NanGuardConfig(), lambda: "cause")


@pytest.mark.process
def test_all_ranks_tell_the_cause_of_one_where_worlds_broke(tmp_path: Path) -> None:
    config = make_train_config("Cartpole-Balance", num_envs=4)

    def look(context: RankContext) -> list[str]:
        env = train_rank.make_env(context, config)
        env.step(torch.full((4, 1), torch.nan if context.rank == 1 else 0.0))
        nothing: Any = None
        hook = NanHook(
            HookContext(
                rank_context=context, config=config, run_dir=tmp_path, env=env, learner=nothing, last_iteration=1,
                report=None,
            )
        )  # fmt: skip
        metrics = {"iteration": 1, "nan_resets": 4, "num_envs_total": 8}
        with pytest.raises(FloatingPointError) as raised:
            hook.after_iteration(IterationResult(iteration=1, metrics=metrics, is_last=True))
        return Collectives("cpu").gather_plain(str(raised.value), context)

    one, two = mjtrain.launch(look, launch=replace(CPU, num_workers=2, num_threads=1))
    assert one == two
    assert "max-fraction 0.1 of 8 worlds: on rank 1, controls were not finite: " in one
