"""Pushes: what forces and changes of velocity do to a body that nothing else touches."""

from dataclasses import replace
from typing import Literal

import mujoco
import pytest
import torch

from mjtrain.config import ActionTerm, EnvConfig, EventTerm, RobotConfig
from mjtrain.env.env import Env
from mjtrain.mdp import events, interval_event, observation, reward, rewards, root
from mjtrain.runtime.errors import RequestError
from mjtrain.training.preflight.dry_step import check_task
from support.envs import ENGINES, make_env

MASS = 2.0
STEP_S = 0.02
INERTIA = MASS * 0.2**2 / 6  # of a cube of 20 cm
FREE = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body name="box"><freejoint name="base"/><geom type="box" size="0.1 0.1 0.1" mass="2"/></body>
    <body name="arm" pos="1 0 0"><joint name="turn" axis="0 0 1" damping="0.1"/><geom size="0.1"/></body>
  </worldbody>
  <actuator><motor name="turn" joint="turn"/></actuator>
</mujoco>
"""


def load_free() -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(FREE)


def pushing(**params: object) -> EnvConfig:
    """A box that is pushed every 0.2 s, first in env step 10."""
    settings = {"body": "box", "force_n": (3.0, 5.0), "duration_s": (0.06, 0.06), **params}
    return EnvConfig(
        robot=RobotConfig(spec=load_free),
        decimation=2,
        episode_length_s=100.0,
        actions={"turn": ActionTerm()},
        observations={"actor": {"velocity": observation(root.base_lin_vel, joint="base")}},
        rewards={"alive": reward(rewards.is_alive, 1.0)},
        terminations={},
        events={
            "push": EventTerm(func=events.apply_body_impulse, params=settings, mode="interval", interval_s=(0.2, 0.2))
        },
    )


def roll(env: Env, num_steps: int) -> torch.Tensor:
    """Velocities after each env step. Shape (num_steps, num_envs, 6)."""
    steps = []
    for _ in range(num_steps):
        env.step(torch.zeros(env.num_envs, 1))
        steps.append(env.state.qvel[:, :6].clone())
    return torch.stack(steps)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_force_changes_the_momentum_for_as_long_as_it_lasts(engine: str) -> None:
    env = make_env(pushing(torque_nm=0.1), engine=engine)
    velocities = roll(env, 19)
    assert (velocities[:9] == 0).all()
    gained = velocities.diff(dim=0)[8:, :, :3]
    force = gained[0] * MASS / STEP_S
    assert torch.allclose(gained[:3], gained[0].expand(3, -1, -1), atol=1e-5)
    assert (gained[3:].abs() < 1e-6).all()
    assert (force.norm(dim=1) > 3.0 - 1e-3).all()
    assert (force.norm(dim=1) < 5.0 + 1e-3).all()
    assert (force[:, 2].abs() < 1e-5).all(), "horizontal"
    assert force.unique(dim=0).shape[0] == env.num_envs
    turned = velocities[-1, :, 3:].norm(dim=1)
    assert (turned > 0).all()
    assert (turned <= 3**0.5 * 0.1 * 0.06 / INERTIA * 1.01).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_push_ends_with_the_episode_and_goes_on_after_a_resume(engine: str) -> None:
    env, other = (make_env(pushing(horizontal=False), engine=engine, seed=seed) for seed in (1, 2))
    roll(env, 10)
    state = env.state_dict()
    other.load_state_dict(state)
    velocities = roll(env, 8)
    assert torch.equal(roll(other, 8), velocities)
    assert (velocities[0, :, 2] != 0).all()
    env.load_state_dict(state)
    mask = torch.arange(env.num_envs) < 2
    env.reset(mask)
    after = roll(env, 1)[0]
    assert (after[mask] == 0).all()
    assert torch.equal(after[~mask], velocities[0, ~mask])


def test_a_push_of_a_body_that_is_not_there_is_the_users_error() -> None:
    with pytest.raises(RequestError, match=r"body ball \(for events.push\); it has box"):
        make_env(pushing(body="ball"))


@pytest.mark.parametrize("mode", ["startup", "reset"])
def test_a_push_where_an_episode_begins_is_refused(mode: Literal["startup", "reset"]) -> None:
    push = pushing().events["push"].replace(mode=mode)
    with pytest.raises(RequestError, match=f"^--env.events.push: pushes in mode {mode}, and .*; use interval_event$"):
        check_task(replace(pushing(), events={"push": push}))


def test_a_velocity_is_set_along_z_too_if_that_is_asked_for() -> None:
    def shoved(**params: float) -> torch.Tensor:
        push = interval_event(
            events.push_by_setting_velocity, (0.02, 0.02), joint="base", linear=0.5, angular=0.3, **params
        )
        return roll(make_env(replace(pushing(), events={"push": push})), 1)[0]

    plain, lifted = shoved(), shoved(vertical=0.4)
    assert (plain[:, 2].abs() < 1e-12).all()
    assert (plain[:, 3:] != 0).all(), "roll, pitch and yaw"
    assert (lifted[:, 2] != 0).all()
    assert lifted[:, 2].abs().max() <= 0.4
    lifted[:, 2] = 0
    assert torch.allclose(lifted, plain, atol=1e-6)
