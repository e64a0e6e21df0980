"""Actuator forces and accelerations without sensors, and the sensors of every physics step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import mujoco
import pytest
import torch

from mjtrain.config import EnvConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.mdp import reward, rewards, terminations
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.engines import make_engine
from mjtrain.sim.engines.base import Engine
from mjtrain.sim.engines.native_on_device import NativeOnDevice
from mjtrain.sim.robots.model import load_model
from mjtrain.training.preflight.dry_step import check_task
from support.envs import ENGINES, actions_for, make_env

JOINTS = (".*_(hip|knee|ankle)_.*",)
NUM_ENVS = 3


@pytest.fixture(scope="module")
def config() -> EnvConfig:
    config = load_task("Humanoid-Velocity-Flat").env
    terms = {
        "torques": reward(rewards.joint_torques_squared, -1e-4, joints=JOINTS),
        "accelerations": reward(rewards.joint_accelerations_squared, -1e-6, joints=JOINTS),
        "power": reward(rewards.mechanical_power, -1e-3, joints=JOINTS),
        "thighs": reward(rewards.undesired_contacts, -1.0, sensors=(".*_contact",), in_any_substep=True),
    }
    return replace(config, rewards={**config.rewards, **terms}, episode_length_s=0.3)


def copied(config: EnvConfig) -> Engine:
    return NativeOnDevice(load_model(config), NUM_ENVS, device="cpu", num_threads=1)


def direct(config: EnvConfig) -> Engine:
    return make_engine("native", config, NUM_ENVS, "cpu", 1)


def walk(env: Env, num_steps: int) -> list[torch.Tensor]:
    with torch.inference_mode():  # as in a rollout
        return [env.step(action)[1].clone() for action in actions_for(env, num_steps)]


@pytest.mark.parametrize("engine", ENGINES)
def test_forces_of_actuators_are_those_that_sensors_measure(config: EnvConfig, engine: str) -> None:
    env = make_env(config, engine=engine, num_envs=NUM_ENVS)
    for action in actions_for(env, 6):
        env.step(action)
        measured, read = env.sensor((".*_torque",)), env.qfrc_actuator(JOINTS)
        assert torch.allclose(read, measured, atol=1e-4)
        assert read.abs().max() > 1.0
        env.reset(torch.tensor([True, False, False]))
        assert torch.allclose(env.qfrc_actuator(JOINTS)[1:], measured[1:], atol=1e-4)
        assert torch.allclose(env.qfrc_actuator(JOINTS), env.sensor((".*_torque",)), atol=1e-4)
    power = (env.sensor((".*_torque",)) * env.qvel(JOINTS)).abs().sum(dim=1)
    assert torch.allclose(rewards.mechanical_power(env, joints=JOINTS), power, rtol=1e-3)


def test_accelerations_are_those_of_a_loop_of_mj_step(config: EnvConfig) -> None:
    engine = direct(config)
    seen = engine.follow("qacc")
    data = mujoco.MjData(engine.model)
    data.qpos[:], data.qvel[:] = engine.state.qpos[0].double().numpy(), engine.state.qvel[0].double().numpy()
    mujoco.mj_forward(engine.model, data)
    for _ in range(3):
        engine.step(engine.layout.default_ctrl.expand(NUM_ENVS, -1), 2)
        data.ctrl[:] = engine.layout.default_ctrl.numpy()
        mujoco.mj_step(engine.model, data, nstep=2)
        assert torch.allclose(seen[0], torch.from_numpy(data.qacc).float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_sensors_are_kept_in_every_physics_step(config: EnvConfig, engine: Literal["native", "warp"]) -> None:
    together, apart = (make_engine(engine, config, NUM_ENVS, "cpu", 1) for _ in range(2))
    steps: list[torch.Tensor] = []
    history = together.follow_sensors(4)
    ctrl = 1.1 * together.layout.default_ctrl.expand(NUM_ENVS, -1)
    for _ in range(3):
        together.step(ctrl, 4)
        steps.clear()
        for _ in range(4):
            apart.step(ctrl, 1)
            steps.append(apart.state.sensordata.clone())
        assert torch.equal(history, torch.stack(steps, dim=1))
        assert not torch.equal(history[:, 0], history[:, 3])
    first = torch.tensor([True, False, False])
    for each in (together, apart):
        each.reset(first, each.state.qpos.clone(), each.state.qvel.clone())
    assert torch.equal(history[0], apart.state.sensordata[0].expand(4, -1))
    assert torch.equal(history[1:], torch.stack(steps, dim=1)[1:])


def test_a_contact_before_the_last_physics_step_counts_if_asked_for(config: EnvConfig) -> None:
    env = make_env(replace(config, decimation=5))
    feet = ("left_foot_contact", "right_foot_contact")
    env.touches(feet, in_any_substep=True)
    only_before = 0
    for action in actions_for(env, 40):
        env.step(action)
        any_step, last_step = env.touches(feet, in_any_substep=True), env.touches(feet)
        assert torch.equal(any_step, (env.sensor_history(feet) > 1.0).any(dim=1))
        assert torch.equal(last_step, env.sensor_history(feet)[:, -1] > 1.0)
        felt = terminations.illegal_contact(env, sensors=feet, threshold=1.0, in_any_substep=True)
        assert torch.equal(felt, any_step.any(dim=1))
        only_before += int((any_step & ~last_step).sum())
    assert only_before > 0


@pytest.mark.parametrize(("first", "second"), [(direct, direct), (direct, copied), (copied, direct)])
def test_they_continue_with_a_state(
    config: EnvConfig, first: Callable[[EnvConfig], Engine], second: Callable[[EnvConfig], Engine]
) -> None:
    before = Env(config, first(config), seed=3)
    walk(before, 10)
    state = before.state_dict()
    after = Env(config, second(config), seed=9)
    after.load_state_dict(state)
    assert torch.equal(after.qfrc_actuator(JOINTS), before.qfrc_actuator(JOINTS))
    assert torch.equal(after.sensor_history((".*",)), before.sensor_history((".*",)))
    assert all(torch.equal(*pair) for pair in zip(walk(before, 20), walk(after, 20), strict=True))


def test_a_term_must_not_write_into_them(config: EnvConfig) -> None:
    def halves(env: Env) -> torch.Tensor:
        return env.qfrc_actuator(("left_knee_joint",)).mul_(0.5)[:, 0]

    with pytest.raises(RequestError, match=r"env\.qfrc_actuator"):
        check_task(replace(config, rewards={**config.rewards, "halves": reward(halves, 1.0)}))
