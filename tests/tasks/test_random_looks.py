"""Tasks whose cameras see other looks in each episode."""

import mujoco
import pytest
import torch

from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from support.envs import NUM_ENVS, actions_for, make_env


def _load(package: str, factory: str) -> Env:
    return make_env(load_task(f"mjtrain_tasks.{package}:{factory}").env)


@pytest.mark.parametrize(
    ("package", "repainted"),
    [
        ("arm_lift_cube_vision", ("ground", "hand")),
        ("hand_reorient_vision", ("floor", "TH_distal")),
    ],
)
def test_each_world_looks_different_except_for_the_cube(package: str, repainted: tuple[str, ...]) -> None:
    env, plain = _load(package, "make_with_random_looks"), _load(package, "make_task")
    colors, nominal = env.cameras.renderer.expand("geom_rgba"), env.cameras.renderer.nominal["geom_rgba"]
    model = env.engine.model
    for name in repainted:
        geom = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, name)
        assert len(colors[:, geom].unique(dim=0)) == NUM_ENVS, name
        assert ((colors[:, geom, :3] >= 0.2 - 1e-6) & (colors[:, geom, :3] <= 1.0)).all()
    cube = [geom for geom in range(model.ngeom) if model.body(model.geom_bodyid[geom]).name == "cube"]
    assert cube
    assert torch.equal(colors[:, cube], nominal[cube].expand_as(colors[:, cube]))
    for camera in env.config.cameras:
        seen, before = (each.cameras.images(camera, "rgb").float() for each in (env, plain))
        assert ((seen - before).abs().flatten(1).mean(dim=1) > 3.0).all(), "grey levels"
    looks = colors.clone()
    env.reset(torch.ones(NUM_ENVS, dtype=torch.bool))
    env.step(actions_for(env, 1)[0])
    assert not torch.equal(looks, env.cameras.renderer.expand("geom_rgba"))
