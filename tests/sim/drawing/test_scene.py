"""Pages show a checker in the colours and with the squares that MuJoCo draws."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from mjtrain.sim.drawing.scene import make_scene
from support.mujoco_pictures import SIZE, draw_with_mujoco
from support.videos import needs_drawing

WIDTH_M = 4.0
"""Width of what the camera sees."""

GROUND = """
<mujoco>
  <visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/></visual>
  <asset>
    <texture name="checks" type="2d" builtin="checker" rgb1="1 .8 0" rgb2="0 .6 1" width="64" height="64" {mark}/>
    <material name="ground" texture="checks" texrepeat="2 2" rgba=".5 1 .8 1" {uniform}/>
  </asset>
  <worldbody>
    <geom type="plane" size="{size}" material="ground" {color}/>
    <camera name="top" pos="0 0 5" projection="orthographic" fovy="4"/>
  </worldbody>
</mujoco>
"""


@needs_drawing
@pytest.mark.parametrize(
    ("size", "uniform", "color", "mark"),
    [
        pytest.param("2 2 .1", "", "", "", id="whole"),
        pytest.param("2 2 .1", "", "", 'mark="edge" markrgb="0 0 0"', id="edge"),
        pytest.param("2 2 .1", "", 'rgba=".4 .5 1 1"', "", id="own colour"),
        pytest.param("4 4 .1", 'texuniform="true"', "", "", id="uniform"),
        pytest.param("0 0 .1", "", "", "", id="infinite"),
    ],
)
def test_a_checker_is_the_one_that_mujoco_draws(size: str, uniform: str, color: str, mark: str, tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(GROUND.format(size=size, uniform=uniform, color=color, mark=mark))
    (ground,) = make_scene(model, model.qpos0).geoms
    picture = draw_with_mujoco({"ground": (model, "top", np.zeros((1, 0)))}, tmp_path)["ground"]["rgb"][0]
    colors, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    frequent = colors[np.argsort(counts)[-2:]]
    shown = np.array([ground["rgba"][:3], ground["checker"]])
    assert sorted(frequent.tolist()) == [pytest.approx(row, abs=1) for row in sorted((255 * shown).tolist())]
    between = (SIZE * (np.arange(0.5, WIDTH_M / ground["square_m"]) * ground["square_m"] / WIDTH_M)).astype(int)
    is_first = (picture[np.ix_(between, between)] == frequent[0]).all(axis=-1)
    assert (is_first[1:] != is_first[:-1]).all()
    assert (is_first[:, 1:] != is_first[:, :-1]).all()
