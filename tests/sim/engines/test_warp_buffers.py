"""Contacts and constraint rows that MuJoCo Warp has no room for."""

from dataclasses import replace
from pathlib import Path

import mujoco
import pytest
import torch

import mjtrain
from mjtrain.config import LaunchConfig, WarpConfig
from mjtrain.env.catalog import load_task
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.engines.warp import WarpEngine
from support.envs import actions_for, make_env
from support.models import ALL

NUM_ENVS = 5


def make_engine(device: str = "cpu", nconmax: int | None = None, njmax: int | None = None) -> WarpEngine:
    """The robots fall on their feet within a few steps, two spheres each."""
    model = mujoco.MjModel.from_xml_string(ALL["contact_rich"])
    engine = WarpEngine(model, NUM_ENVS, device=device, nconmax=nconmax, njmax=njmax)
    for _ in range(30):
        engine.step(torch.zeros(NUM_ENVS, 2, device=engine.device), 4)
    return engine


def missed(engine: WarpEngine) -> dict[str, list[bool]]:
    return {name: (buffer.missed != 0).tolist() for name, buffer in engine.buffers.items()}


DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_what_fits_is_not_missed_and_what_it_needs_is_known(device: str) -> None:
    engine = make_engine(device)
    assert missed(engine) == {"contacts": [False] * NUM_ENVS, "constraints": [False] * NUM_ENVS}
    need = {name: buffer.find_need() for name, buffer in engine.buffers.items()}
    assert need["contacts"] >= 4
    assert need["constraints"] == 16, "four feet, and pyramids of four edges"
    tight = make_engine(device, nconmax=need["contacts"], njmax=need["constraints"])
    assert missed(tight) == missed(engine)
    assert torch.allclose(tight.state.qpos, engine.state.qpos, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("sizes", "name", "setting"),
    [({"nconmax": 2}, "contacts", "--env.warp.nconmax"), ({"njmax": 6}, "constraints", "--env.warp.njmax")],
)
def test_what_does_not_fit_is_noted(sizes: dict[str, int], name: str, setting: str, device: str) -> None:
    engine = make_engine(device, **sizes)
    buffer = engine.buffers[name]
    assert (buffer.setting, [buffer.size]) == (setting, list(sizes.values()))
    assert missed(engine)[name] == [True] * NUM_ENVS
    assert buffer.find_need() > buffer.size


def test_a_world_that_needs_more_than_the_others_is_told_from_them() -> None:
    engine = WarpEngine(mujoco.MjModel.from_xml_string(ALL["contact_rich"]), NUM_ENVS, device="cpu", njmax=8)
    high = engine.layout.default_qpos.repeat(NUM_ENVS, 1)
    high[1:, 2] += 5.0
    engine.reset(torch.ones(NUM_ENVS, dtype=torch.bool), high, torch.zeros(NUM_ENVS, 8))
    for _ in range(20):
        engine.step(torch.zeros(NUM_ENVS, 2), 4)
    assert missed(engine)["constraints"] == [True, False, False, False, False]


def test_the_native_engine_has_room_for_all() -> None:
    assert not NativeEngine(mujoco.MjModel.from_xml_string(ALL["contact_rich"]), 1, num_threads=1).buffers


def test_worlds_are_counted_once_per_iteration() -> None:
    config = replace(load_task("Quadruped-Velocity-Flat").env, warp=WarpConfig(njmax=4))
    env = make_env(config, engine="warp", num_envs=3)
    for action in actions_for(env, 20):
        env.step(action)
    found = env.statistics.summarise(env.statistics.pop().tolist())
    assert (found["overflow/contacts"], found["overflow/constraints"]) == (0, 3)
    assert env.statistics.summarise(env.statistics.pop().tolist())["overflow/constraints"] == 0


@pytest.mark.process
def test_a_training_counts_worlds_of_all_ranks_and_warns_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    task = load_task("Quadruped-Velocity-Flat")
    run = mjtrain.train(
        replace(task, env=replace(task.env, warp=WarpConfig(njmax=8))),
        num_envs=3,
        max_iterations=3,
        engine="warp",
        launch=LaunchConfig(gpu_ids=None, num_workers=2, num_threads=1),
        log_root=str(tmp_path),
        logger="none",
    )
    assert run.metrics["overflow/constraints"] == 6
    assert run.metrics["overflow/contacts"] == 0
    captured = capfd.readouterr()
    lines = [line for line in (captured.out + captured.err).splitlines() if "there was no room for all" in line]
    assert len(lines) == 1
    assert "--env.warp.njmax 8: in iteration 1 there was no room for all constraints of 6 worlds" in lines[0]


@pytest.mark.parametrize(("task", "num_steps"), [("Hand-Reorient-Cube", 200), ("Quadruped-Velocity-Rough", 60)])
def test_tasks_with_many_contacts_have_twice_the_room_that_random_actions_ask_for(task: str, num_steps: int) -> None:
    """Mujoco-warp's guess for the hand is 64 rows, and some of these worlds have more."""
    env = make_env(load_task(task).env, engine="warp", num_envs=6)
    for action in actions_for(env, num_steps // 20).sign():
        for _ in range(20):
            env.step(action)
    for name, buffer in env.engine.buffers.items():
        assert not buffer.missed.any(), name
        assert 2 * buffer.find_need() <= buffer.size, (name, buffer.find_need())
