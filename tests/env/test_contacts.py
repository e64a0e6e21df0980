"""Touch and contact sensors are read by their type."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mjtrain.config import ActionTerm, CommandTerm, EnvConfig, RewardTerm, RobotConfig, SensorConfig, SiteConfig
from mjtrain.mdp import gait, rewards, terminations
from mjtrain.runtime.errors import RequestError
from mjtrain.training.preflight.dry_step import check_task
from support.envs import ENGINES, NUM_ENVS, make_env

TABLE = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1"/>
    <body name="table" pos="0 0 0.099">
      <freejoint name="table"/>
      <geom name="top" type="box" size="0.2 0.2 0.02" mass="2"/>
      <geom name="front" type="sphere" size="0.02" pos="0.15 0 -0.08"/>
      <geom name="left" type="sphere" size="0.02" pos="-0.15 0.1 -0.08"/>
      <geom name="right" type="sphere" size="0.02" pos="-0.15 -0.1 -0.08"/>
      <site name="sole" type="box" size="0.2 0.2 0.03" pos="0 0 -0.09"/>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="table"/></actuator>
</mujoco>
"""


def contact(*data: str, **more: Any) -> SensorConfig:
    return SensorConfig(type="contact", object="left", reference="floor", data=data, **more)


SENSORS = {
    "touch": SensorConfig(type="touch", object="sole"),
    "found": contact("found"),
    "force": contact("force", reduce="netforce"),
    "all": contact("found", "force", "dist", "normal", num=2),
    "three": contact("found", "pos", num=3),
    "pos": contact("pos"),
    "speed": SensorConfig(type="framelinvel", object="table"),
}
FELT = ("touch", "found", "force", "all", "three")


@pytest.fixture
def config(tmp_path: Path) -> EnvConfig:
    (tmp_path / "table.xml").write_text(TABLE)
    return EnvConfig(
        robot=RobotConfig(file=str(tmp_path / "table.xml"), sensors=SENSORS),
        decimation=10,
        episode_length_s=9.0,
        actions={"push": ActionTerm()},
        observations={},
        rewards={},
        terminations={},
        commands={"walk": CommandTerm(func=lambda env: torch.ones(env.num_envs, 3))},
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_robot_that_stands_is_felt_by_every_type(config: EnvConfig, engine: str) -> None:
    env = make_env(config, engine=engine, num_envs=2)
    lifted = torch.tensor([False, True])
    qpos = env.state.qpos.clone()
    qpos[:, 2] = torch.tensor([0.099, 1.0])
    env.engine.reset(torch.ones(2, dtype=torch.bool), qpos, torch.zeros_like(env.state.qvel))
    times = env.contact_times(FELT)
    for _ in range(4):
        env.step(torch.zeros(2, 1))
    expected = ~lifted[:, None].expand(2, len(FELT))
    assert torch.equal(env.touches(FELT), expected)
    assert torch.equal(times.contact_s > 0, expected)
    assert torch.equal(env.touches(("force", "all", "touch"), 1e4), torch.zeros(2, 3, dtype=torch.bool))
    assert env.touches(("found",), 1e4).tolist() == [[True], [False]]  # a number of contacts has no unit
    assert rewards.undesired_contacts(env, sensors=FELT).tolist() == [len(FELT), 0]
    assert terminations.illegal_contact(env, sensors=("force",), threshold=2.0).tolist() == [True, False]
    step: Any = {"frequency_hz": 1.0, "duty": 0.99, "command": "walk"}
    stands = gait.feet_gait(env, contact_sensors=("found", "force"), offsets=(0.0, 0.3), **step)
    assert stands.tolist() == [1.0, 0.0]
    assert gait.feet_slide(env, contact_sensors=("force",), velocity_sensors=("speed",))[1] == 0


def test_touch_sensors_alone_are_compared_as_they_are(config: EnvConfig) -> None:
    env = make_env(config)
    for _ in range(4):
        env.step(torch.zeros(NUM_ENVS, 1))
    assert torch.equal(env.touches(("touch",), 2.0), env.sensor(("touch",)) > 2.0)


@pytest.mark.parametrize(
    ("sensor", "message"),
    [
        ("speed", "--env.rewards.x: sensor speed is of type framelinvel; contacts are read from sensors of type touch"),
        ("pos", "--env.rewards.x: contact sensor pos reports pos; whether there is a contact is read from found or"),
    ],
)
def test_a_sensor_that_tells_of_no_contact_is_refused(config: EnvConfig, sensor: str, message: str) -> None:
    term = RewardTerm(func=rewards.undesired_contacts, weight=-1.0, params={"sensors": (sensor,)})
    with pytest.raises(RequestError) as caught:
        check_task(replace(config, rewards={"x": term}))
    assert str(caught.value).startswith(message)


def test_a_box_around_a_sole_of_several_geoms_feels_them_all(config: EnvConfig) -> None:
    robot = RobotConfig(
        file=config.robot.file,
        sites={"box": SiteConfig(body="table", type="box", pos=(0.0, 0.0, -0.09), size=(0.2, 0.2, 0.03))},
        sensors={"foot": SensorConfig(type="touch", object="box")},
    )
    env = make_env(replace(config, robot=robot))
    for _ in range(50):
        env.step(torch.zeros(NUM_ENVS, 1))
    weight = 9.81 * float(env.engine.model.body_mass.sum())
    assert env.sensor("foot")[:, 0].tolist() == pytest.approx([weight] * NUM_ENVS, rel=0.1)
