"""What terms read of the generated ground is what the robot stands on; contacts are read by type of sensor."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.api import make_train_config
from mjtrain.config import (
    ActionTerm,
    CommandTerm,
    EnvConfig,
    RewardTerm,
    RobotConfig,
    SensorConfig,
    SiteConfig,
    TerrainConfig,
)
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.ground import Ground
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.evaluation.evaluator import Evaluator
from mjtrain.mdp import gait, rewards, terminations
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from mjtrain.sim.robots.height_field import make_height_field
from mjtrain.sim.robots.model import list_grounds, load_model
from mjtrain.training import train_rank
from mjtrain.training.preflight.dry_step import check_task
from support.envs import ENGINES, NUM_ENVS, make_env

SMALL = TerrainConfig(kind="generated", num_levels=3, patch_m=4.0)


@pytest.fixture(scope="module")
def model_and_ground() -> tuple[mujoco.MjModel, Ground]:
    config = replace(load_task("Quadruped-Velocity-Rough").env, terrain=SMALL)
    return load_model(config), Ground(SMALL, torch.device("cpu"))


def rays_down(model: mujoco.MjModel, xy: np.ndarray) -> np.ndarray:
    """Ask MuJoCo where a ray from high above meets the ground."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    geom = np.zeros(1, dtype=np.int32)
    heights = []
    for x, y in xy:
        start = np.array([x, y, 50.0])
        distance = mujoco.mj_ray(
            model, data, start, np.array([0.0, 0.0, -1.0]), np.array([1, 0, 0, 0, 0, 0], np.uint8), 1, 1, geom
        )
        assert distance > 0
        heights.append(50.0 - distance)
    return np.array(heights)


def test_heights_are_those_of_mujoco(model_and_ground: tuple[mujoco.MjModel, Ground]) -> None:
    model, ground = model_and_ground
    rng = np.random.default_rng(0)
    half = model.hfield_size[0, :2] - 0.05
    xy = rng.uniform(-half, half, (500, 2))
    ours = ground.height(torch.tensor(xy, dtype=torch.float64)).numpy()
    theirs = rays_down(model, xy)
    assert np.ptp(theirs) > 0.3
    assert np.abs(ours - theirs).max() < 1e-5


def test_levels_grow_harder_and_kinds_differ() -> None:
    field = make_height_field(replace(SMALL, num_levels=4))
    size = round(SMALL.patch_m / SMALL.cell_m)
    border = (field.heights.shape[0] - 1 - size * len(SMALL.kinds)) // 2
    for column, kind in enumerate(SMALL.kinds):
        rows = slice(border + column * size, border + (column + 1) * size)
        spread = [
            np.ptp(field.heights[rows, border + level * size : border + (level + 1) * size]) for level in range(4)
        ]
        assert spread[-1] > 2 * spread[0], kind
        assert spread == sorted(spread) or kind == "obstacles", kind  # those are thrown at random


def test_no_cliff_parts_the_patches() -> None:
    field = make_height_field(replace(SMALL, kinds=("slope_up", "slope_down", "stairs_up", "stairs_down")))
    size = round(SMALL.patch_m / SMALL.cell_m)
    border = (field.heights.shape[0] - 1 - size * 4) // 2
    outside = field.heights[0, 0]
    for patch in range(5):
        assert np.allclose(field.heights[border + patch * size, :], outside)
        assert np.allclose(field.heights[border + patch * size - 1, :], outside)
    for patch in range(SMALL.num_levels + 1):
        assert np.allclose(field.heights[:, border + patch * size], outside)
        assert np.allclose(field.heights[:, border + patch * size - 1], outside)


def test_the_same_seed_gives_the_same_ground() -> None:
    one, same, other = (make_height_field(replace(SMALL, seed=seed)).heights for seed in (3, 3, 4))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("engine", ENGINES)
def test_robots_start_on_the_patch_of_their_level(engine: str) -> None:
    task = load_task("Quadruped-Velocity-Rough").env
    terrain = task.curriculum["terrain"]
    config = replace(task, terrain=SMALL, curriculum={"terrain": replace(terrain, initial=(0.0, 2.999))})
    env = make_env(config, engine=engine, num_envs=12, seed=1)
    field = make_height_field(env.config.terrain)
    for world in range(12):
        spawn = field.spawns[int(env.level("terrain")[world]), world % len(SMALL.kinds)]
        offset = env.qpos("base")[world, :3].numpy() - spawn
        assert np.abs(offset[:2]).max() <= 0.5 + 1e-5
        assert 0.04 - 1e-5 <= offset[2] - env.engine.layout.default_qpos[2].item() <= 0.06 + 1e-5
    heights = env.observe()["critic"][:, -45:]
    assert heights.abs().max() <= 0.5
    for _ in range(25):
        env.step(torch.zeros(12, 12))
    above = env.qpos("base")[:, 2] - env.ground.height(env.qpos("base")[:, :2])
    assert (above > 0.1).all()  # they stand on it, and do not fall through
    assert (above < 0.45).all()


@pytest.mark.parametrize(("highest", "played"), [(2.0, 3), (1.5, 2)])
def test_an_evaluation_plays_every_level(highest: float, played: int) -> None:
    task = load_task("Quadruped-Velocity-Rough").env
    terrain = replace(task.curriculum["terrain"], bounds=(0.0, highest))
    env = make_env(to_eval_config(replace(task, terrain=SMALL, curriculum={"terrain": terrain})), num_envs=96, seed=1)
    x = torch.tensor(make_height_field(SMALL).spawns[:, 0, 0])
    levels = (env.qpos("base")[:, 0:1] - x).abs().argmin(dim=1)
    counts = levels.bincount(minlength=3)
    assert counts[:played].min() > 20  # about 32 each, or 48
    assert counts[played:].sum() == 0  # a level that no training reaches


def kinds_below(env: Env) -> list[int]:
    """Kind of ground that each world of an environment has begun on."""
    field = make_height_field(env.config.terrain)
    y = torch.tensor(field.spawns[0, :, 1])
    return (env.qpos("base")[:, 1:2] - y).abs().argmin(dim=1).tolist()


def test_the_worlds_of_all_ranks_are_spread_evenly_over_the_kinds() -> None:
    """Also if each rank has fewer worlds than there are kinds, and where ranks evaluate different numbers of worlds."""
    config = make_train_config("Quadruped-Velocity-Rough", num_envs=3, eval_interval=1, eval_episodes=14)
    config = replace(config, env=replace(config.env, terrain=SMALL))
    trained, evaluated = [], []
    for rank in range(4):
        context = RankContext(rank=rank, world_size=4)
        env, evaluator = train_rank.make_env(context, config), Evaluator(context, config)
        assert evaluator._player is not None
        trained += kinds_below(env)
        evaluated += kinds_below(evaluator._player.env)
        env.close()
        evaluator.close()
    assert trained == [world % 6 for world in range(12)]
    assert evaluated == [world % 6 for world in range(14)]


def test_a_height_scan_turns_with_the_body(model_and_ground: tuple[mujoco.MjModel, Ground]) -> None:
    model, ground = model_and_ground
    pose = torch.tensor([[1.3, -2.1, 0.5, 2**-0.5, 0.0, 0.0, 2**-0.5]])  # heading along the world's y
    scan = ground.scan(pose, (0.0, 0.4, 2), (0.0, 0.3, 2))
    xy = np.array([[1.3, -2.1], [1.3, -1.7], [1.0, -2.1], [1.0, -1.7]])
    assert np.allclose(scan[0].numpy(), rays_down(model, xy), atol=1e-4)
    lists: Any = ([0.0, 0.4, 2], [0.0, 0.3, 2])
    assert torch.equal(ground.scan(pose, *lists), scan)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_heights_are_finite_everywhere(bad: float, model_and_ground: tuple[mujoco.MjModel, Ground]) -> None:
    _, ground = model_and_ground
    points = [[bad, 0.5], [0.5, bad], [bad, bad], [0.5, 0.5]]
    heights = ground.height(torch.tensor(points))
    assert heights.isfinite().all()
    assert heights[3] == ground.height(torch.tensor([0.5, 0.5]))
    pose = torch.tensor([[bad, 0.3, 0.5, 1.0, 0.0, 0.0, 0.0], [0.1, 0.3, 0.5, bad, 0.0, 0.0, 0.0]])
    assert ground.scan(pose, (0.0, 0.4, 2), (0.0, 0.3, 2)).isfinite().all()


def test_a_ground_may_have_more_columns_than_a_float32_can_count_between() -> None:
    terrain = TerrainConfig(kind="generated", kinds=("slope_up",), num_levels=550, patch_m=3.0, cell_m=0.05)
    corners = torch.cartesian_prod(*[torch.tensor([-1e4, 1e4])] * 2)
    rim_m = make_height_field(terrain).heights[0, 0]
    assert Ground(terrain, torch.device("cpu")).height(corners).tolist() == pytest.approx([rim_m] * 4)


def test_the_edge_of_the_ground_is_known(model_and_ground: tuple[mujoco.MjModel, Ground]) -> None:
    model, ground = model_and_ground
    half_x, half_y = model.hfield_size[0, :2]
    xy = torch.tensor([[0.0, 0.0], [half_x - 0.4, 0.0], [0.0, -half_y + 0.4], [half_x + 1.0, 0.0]])
    assert ground.outside(xy, 0.5).tolist() == [False, True, True, True]


@pytest.mark.parametrize("kind", ["flat", "generated"])
def test_a_file_may_have_a_ground_and_its_names(kind: Literal["flat", "generated"], tmp_path: Path) -> None:
    robot = tmp_path / "robot.xml"
    robot.write_text(
        """<mujoco><asset><texture name="ground" type="2d" builtin="checker" width="8" height="8"/>
        <material name="ground" texture="ground"/><hfield name="ground" nrow="2" ncol="2" size="1 1 1 1"/></asset>
        <worldbody><geom name="ground" type="plane" size="3 3 .1" material="ground"/>
        <geom name="wall" type="plane" size="3 3 .1" zaxis="1 0 0"/>
        <body><joint/><geom size=".1"/></body></worldbody></mujoco>"""
    )
    config = replace(
        load_task("Cartpole-Balance").env,
        robot=RobotConfig(file=str(robot)),
        terrain=replace(SMALL, kind=kind, num_levels=1),
    )
    model = load_model(config)
    assert list_grounds(model) == ["ground", "ground_2"]
    assert model.material("ground_2").texid[mujoco.mjtTextureRole.mjTEXROLE_RGB] == model.texture("ground_2").id
    if kind == "generated":
        assert model.geom("ground_2").dataid == model.hfield("ground_2").id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kinds": ("rough", "lava")}, r"--env.terrain.kinds lava: choose from rough, "),
        ({"num_levels": 0}, r"--env.terrain.num-levels 0"),
        ({"num_levels": 2**31}, rf"--env.terrain.num-levels {2**31}: must be at least 1 and at most"),
        (
            {"num_levels": 10**6},
            r"--env.terrain.cell-m 0.1: makes .* points with --env.terrain.num-levels 1000000, more",
        ),
        ({"patch_m": 1.0}, r"--env.terrain.patch-m 1.0"),
        ({"seed": -1}, r"--env.terrain.seed -1: must be at least 0"),
    ],
)
def test_ground_that_cannot_be_is_the_users_error(change: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_height_field(replace(SMALL, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell_m": np.array(0.1)}, r"--env.terrain.cell-m: is array\(0.1\); give a number"),
        ({"friction": [1.0]}, r"--env.terrain.friction: is a list; give a number"),
        ({"kinds": None}, r"--env.terrain.kinds: is None; give a tuple"),
    ],
)
def test_ground_of_another_type_is_the_users_error(change: dict, message: str) -> None:
    config = load_task("Quadruped-Velocity-Rough").env
    with pytest.raises(RequestError, match=message):
        make_env(replace(config, terrain=replace(SMALL, **change)))


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
