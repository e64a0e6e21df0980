"""Expressions over joints take hinges and slides, in the order of the model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mjtrain.config import ActionTerm, EnvConfig, ObservationTerm, RewardTerm
from mjtrain.env.env import Env
from mjtrain.mdp import events, observations, randomization, reset_event, rewards, terminations
from mjtrain.runtime.errors import RequestError
from support.envs import NUM_ENVS, make_env

BIPED = """
<mujoco>
  <worldbody>
    <geom type="plane" size="5 5 0.1"/>
    <body name="pelvis" pos="0 0 0.8">
      <freejoint name="floating_base_joint"/>
      <geom size="0.1" mass="5"/>
      <body name="left">
        <joint name="left_hip_joint" axis="0 1 0" range="-60 60" armature="0.01" damping="0.1"/>
        <geom type="capsule" fromto="0 0.1 0 0 0.1 -0.4" size="0.03" mass="1"/>
        <body pos="0 0.1 -0.4">
          <joint name="left_knee_joint" axis="0 1 0" range="-90 5" armature="0.02"/>
          <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="1"/>
        </body>
      </body>
      <body name="head">
        <joint name="neck_joint" type="ball"/>
        <geom size="0.05" mass="0.5" pos="0 0 0.3" contype="0" conaffinity="0"/>
      </body>
      <body name="rod">
        <joint name="rod_joint" type="slide" axis="1 0 0" range="-0.1 0.2"/>
        <geom size="0.02" mass="0.1" pos="0 0 0.2" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="hip" joint="left_hip_joint"/></actuator>
  <keyframe><key name="home" qpos="2 -1 0.8 1 0 0 0  0.3 -0.7  1 0 0 0  0.05" ctrl="0"/></keyframe>
</mujoco>
"""
ALL = (".*_joint",)
INNER = ["left_hip_joint", "left_knee_joint", "rod_joint"]


@pytest.fixture
def config(tmp_path: Path) -> EnvConfig:
    (tmp_path / "biped.xml").write_text(BIPED)
    return EnvConfig(
        robot=str(tmp_path / "biped.xml"),
        decimation=2,
        episode_length_s=1.0,
        actions={"hip": ActionTerm()},
        observations={"actor": {"all": ObservationTerm(func=observations.joint_pos_rel, params={"joints": ALL})}},
        rewards={},
        terminations={},
    )


def test_free_and_ball_joints_are_left_out_of_expressions(config: EnvConfig) -> None:
    start = reset_event(events.reset_joints_by_scale, joints=ALL, factor=(0.5, 1.5))
    env = make_env(replace(config, events={"start": start}))
    inner = torch.cat([env.qpos(name) for name in INNER], dim=1)
    assert torch.equal(env.qpos(ALL), inner)
    assert torch.equal(env.qvel((".*",)), torch.cat([env.qvel(name) for name in INNER], dim=1))
    assert env.observe()["actor"].shape == (NUM_ENVS, 3)
    home = env.engine.layout.default_qpos
    assert torch.equal(env.state.qpos[:, :7], home[:7].expand(NUM_ENVS, 7))  # no reset has touched the base
    assert not torch.equal(env.qpos(ALL)[0], env.qpos(ALL)[1])
    off = rewards.joint_deviation(env, joints=ALL)
    assert torch.allclose(off, (inner - home[[7, 8, 13]]).square().sum(dim=1))
    assert rewards.joint_pos_limits(env, joints=ALL).shape == (NUM_ENVS,)
    assert env.engine.layout.rows("dof", ALL).tolist() == [6, 7, 11]
    assert env.qpos("floating_base_joint").shape == (NUM_ENVS, 7)
    assert env.qpos("neck_joint").shape == (NUM_ENVS, 4)


def test_columns_come_in_the_order_of_the_model(config: EnvConfig) -> None:
    env = make_env(config)
    patterns = ("rod.*", ".*_knee_joint", "left_hip_joint", ".*_knee.*")
    assert torch.equal(env.qpos(patterns), env.qpos(ALL))
    assert torch.equal(env.qvel(patterns), env.qvel(ALL))
    for one, other in zip(*(env.engine.layout.joint_limits(names) for names in (patterns, ALL)), strict=True):
        assert torch.equal(one, other)
    assert env.engine.layout.rows("dof", patterns).tolist() == env.engine.layout.rows("dof", ALL).tolist()


@pytest.mark.parametrize("pattern", ["floating_base_joint", "floating.*|neck.*"])
def test_an_expression_for_a_free_joint_alone_is_refused(config: EnvConfig, pattern: str) -> None:
    wrong = RewardTerm(func=rewards.joint_speed, weight=1.0, params={"joints": (pattern, "rod_joint")})
    with pytest.raises(
        RequestError, match=r"--env.rewards.x: the expression .* matches floating_base_joint.* name this"
    ):
        make_env(replace(config, rewards={"x": wrong}))

    def reads(env: Env) -> torch.Tensor:
        return env.qvel((pattern,)).sum(dim=1)

    env = make_env(replace(config, rewards={"x": RewardTerm(func=reads, weight=1.0)}))
    with pytest.raises(RequestError, match="expressions over joints take hinges and slides"):
        reads(env)


def test_armature_of_the_base_is_not_drawn(config: EnvConfig) -> None:
    event = reset_event(randomization.armature, joints=ALL, factor=(2.0, 2.0)).replace(mode="startup")
    env = make_env(replace(config, events={"x": event}))
    nominal = env.engine.layout.nominal["dof_armature"]
    assert torch.allclose(
        env.engine.expand("dof_armature")[0], nominal * torch.tensor([1.0] * 6 + [2.0] * 2 + [1.0] * 4)
    )


@pytest.mark.parametrize(("joint", "kind"), [("floating_base_joint", "free"), ("neck_joint", "ball")])
def test_terms_for_one_hinge_refuse_other_joints(config: EnvConfig, joint: str, kind: str) -> None:
    env = make_env(config)
    start = reset_event(events.reset_joints_by_offset, joint=joint, position=(-0.1, 0.1))
    message = f"joint {joint} is a {kind} joint; give a hinge or a slide"
    with pytest.raises(RequestError, match=message):
        make_env(replace(config, events={"start": start}))
    for call in (
        lambda: observations.joint_cos_sin(env, joint=joint),
        lambda: rewards.joint_in_range(env, joint=joint, low=0.0),
        lambda: terminations.joint_out_of_range(env, joint=joint, limit=1.0),
    ):
        with pytest.raises(RequestError, match=message):
            call()
    assert observations.joint_cos_sin(env, joint="rod_joint").shape == (NUM_ENVS, 2)
