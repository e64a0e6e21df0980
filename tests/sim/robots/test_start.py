"""Which free joint is the robot's, whatever else can move."""

import mujoco
import pytest

from mjtrain.sim.robots.start import find_base, find_root

BALL = '<body><freejoint name="ball"/><geom size="0.1"/></body>'
LEG = '<body><joint/><geom size="0.1" pos="0.1 0 0"/></body>'
ROBOT = f'<body><freejoint name="base"/><geom size="0.1"/>{LEG}</body>'


@pytest.mark.parametrize(
    ("bodies", "root", "base"),
    [
        (ROBOT + BALL, "base", "base"),
        (BALL + ROBOT, "base", "base"),
        (BALL, "ball", "ball"),
        (BALL + LEG, "ball", None),
        (LEG + BALL, "ball", None),
        (LEG, None, None),
    ],
)
def test_a_robot_with_a_fixed_base_and_an_object_has_no_free_base(
    bodies: str, root: str | None, base: str | None
) -> None:
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{bodies}</worldbody></mujoco>")
    names = [model.joint(joint).name if joint >= 0 else None for joint in (find_root(model), find_base(model))]
    assert names == [root, base]
