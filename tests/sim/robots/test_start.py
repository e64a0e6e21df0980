"""Which free joint is the robot's, whatever else can move."""

import mujoco
import pytest

from mjtrain.sim.robots.measured import describe_sensors
from mjtrain.sim.robots.start import find_base, find_root

BALL = '<body><freejoint name="ball"/><geom size="0.1"/></body>'
LEG = '<body><joint/><geom size="0.1" pos="0.1 0 0"/></body>'
DRAWER = '<body><freejoint name="box"/><geom size="0.1"/><body><joint/><geom size="0.1" pos="0.1 0 0"/></body></body>'
ARM = '<body><joint name="elbow"/><geom size="0.1"/><site name="tip" pos="0.2 0 0"/></body>'
DRONE = '<body><freejoint name="drone"/><geom size="0.1"/><site name="rotor"/></body>'
ON_JOINT, ON_ROTOR = '<motor joint="elbow"/>', '<motor site="rotor"/>'
ON_TENDON = '</actuator><tendon><fixed name="cord"><joint joint="elbow" coef="1"/></fixed></tendon><actuator>' + (
    '<motor tendon="cord"/>'
)
ROBOT = f'<body><freejoint name="base"/><geom size="0.1"/>{LEG}</body>'


@pytest.mark.parametrize(
    ("bodies", "actuators", "root", "base"),
    [
        (ROBOT + BALL, "", "base", "base"),
        (BALL + ROBOT, "", "base", "base"),
        (BALL, "", "ball", "ball"),
        (BALL + LEG, "", "ball", None),
        (LEG + BALL, "", "ball", None),
        (LEG, "", None, None),
        (DRAWER + ARM, ON_JOINT, "box", None),
        (ARM + DRAWER, ON_TENDON, "box", None),
        (DRAWER + DRONE, ON_ROTOR, "drone", "drone"),
    ],
)
def test_a_robot_with_a_fixed_base_and_an_object_has_no_free_base(
    bodies: str, actuators: str, root: str | None, base: str | None
) -> None:
    world = f"<worldbody>{bodies}</worldbody><actuator>{actuators}</actuator>"
    model = mujoco.MjModel.from_xml_string(f"<mujoco>{world}</mujoco>")
    names = [model.joint(joint).name if joint >= 0 else None for joint in (find_root(model), find_base(model))]
    assert names == [root, base]


def test_a_sensor_of_an_object_is_not_on_the_base() -> None:
    gyros = "".join(f'<gyro name="{name}" site="{name}"/>' for name in ("robot", "plate", "leg", "ball"))
    bodies = """<body><freejoint name="ball"/><geom size="0.1"/><site name="ball"/></body>
      <body><freejoint name="base"/><geom size="0.1"/><site name="robot"/><body><site name="plate"/></body>
        <body><joint/><geom size="0.1" pos="0.1 0 0"/><site name="leg"/></body></body>"""
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{bodies}</worldbody><sensor>{gyros}</sensor></mujoco>")
    on_base = {name: sensor["on_base"] for name, sensor in describe_sensors(model).items()}
    assert on_base == {"robot": True, "plate": True, "leg": False, "ball": False}
