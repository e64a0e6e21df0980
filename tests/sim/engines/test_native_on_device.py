"""The native engine behind copies: with the CPU as the device all but pinned memory and streams runs here."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import mjtrain
from mjtrain.config import EnvConfig, LaunchConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.mdp import randomization, reset_event
from mjtrain.sim.engines import make_engine
from mjtrain.sim.engines.base import Engine
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.engines.native_on_device import NativeOnDevice
from mjtrain.sim.robots.model import load_model

NUM_ENVS = 6


def quadruped() -> EnvConfig:
    """The task whose events use all that an engine offers, with masses that are drawn in each reset."""
    config = load_task("Quadruped-Velocity-Flat").env
    events = {
        **config.events,
        "payload": reset_event(randomization.mass, bodies=("trunk",), factor=(0.5, 1.5)),
        "push": config.events["push"].replace(interval_s=(0.05, 0.1)),
    }
    return replace(config, events=events, episode_length_s=0.3)


def copied(config: EnvConfig, device: str = "cpu") -> Engine:
    model = load_model(config)
    return NativeOnDevice(model, NUM_ENVS, device=device, num_threads=1)


def direct(config: EnvConfig) -> Engine:
    return make_engine("native", config, NUM_ENVS, "cpu", 1)


def walk(env: Env, num_steps: int) -> list[torch.Tensor]:
    seen = []
    with torch.inference_mode():  # as in a rollout
        for step in range(num_steps):
            action = torch.full((NUM_ENVS, env.num_actions), 0.3 * (step % 5 - 2), device=env.device)
            observations, rewards, terminated, truncated = env.step(action)
            seen += [*observations.values(), rewards, terminated, truncated]
            seen += [env.engine.expand("body_mass").clone()]
    return [tensor.cpu().clone() for tensor in seen]


def assert_equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> None:
    assert all(torch.equal(left, right) for left, right in zip(one, two, strict=True))


def test_worlds_behind_copies_are_the_same_worlds() -> None:
    config = quadruped()
    one, two = (walk(Env(config, make(config), seed=3), 40) for make in (direct, copied))
    assert_equal(one, two)
    assert one[-1][:, 1].unique().numel() == NUM_ENVS  # masses that events have drawn


@pytest.mark.parametrize(("first", "second"), [(copied, copied), (direct, copied), (copied, direct)])
def test_a_state_is_continued_with_and_without_copies(
    first: Callable[[EnvConfig], Engine], second: Callable[[EnvConfig], Engine]
) -> None:
    config = quadruped()
    before = Env(config, first(config), seed=3)
    walk(before, 20)
    state = before.state_dict()
    after = Env(config, second(config), seed=9)
    after.load_state_dict(state)
    assert_equal(walk(before, 20), walk(after, 20))


@pytest.mark.gpu
def test_worlds_for_a_gpu_have_the_numbers_of_those_for_the_cpu() -> None:
    model = load_model(config := quadruped())
    here = NativeEngine(model, NUM_ENVS, num_threads=1)
    there = copied(config, "cuda:0")
    for step in range(50):
        ctrl = torch.full((NUM_ENVS, model.nu), 0.02 * step)
        here.step(ctrl, 4)
        there.step(ctrl.cuda(), 4)
        if step % 10 == 9:
            mask = torch.arange(NUM_ENVS) == step // 10
            here.expand("body_mass")[:, 1] += 0.1
            there.expand("body_mass")[:, 1] += 0.1
            here.reset(mask, here.state.qpos.clone(), here.state.qvel * 0)
            there.reset(mask.cuda(), there.state.qpos.clone(), there.state.qvel * 0)
            here.refresh_model(mask)
            there.refresh_model(mask.cuda())
    for name, values in vars(here.state).items():
        assert torch.equal(getattr(there.state, name).cpu(), values), name


@pytest.mark.gpu
def test_a_gpu_learns_from_worlds_on_the_cpu(tmp_path) -> None:
    result = mjtrain.train(
        "Cartpole-Balance",
        launch=LaunchConfig(gpu_ids=(0,)),
        engine="native",
        num_envs=512,
        max_iterations=40,
        log_root=str(tmp_path),
    )
    assert result.metrics["mean_episode_length"] > 100
