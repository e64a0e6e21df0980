"""Models that the engine tests step: smooth, rich in contacts under several solvers, and with an activation."""

SMOOTH = """
<mujoco>
  <option timestep="0.004" integrator="implicitfast"><flag contact="disable"/></option>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" damping="0.05"/>
      <geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.03" mass="0.8"/>
      <body name="lower" pos="0.4 0 0">
        <joint name="elbow" axis="0 1 0" damping="0.02" armature="0.01"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="0.4"/>
        <site name="tip" pos="0.3 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="shoulder" joint="shoulder" gear="4"/>
    <position name="elbow" joint="elbow" kp="6" kv="0.4"/>
  </actuator>
  <sensor>
    <framepos name="tip" objtype="site" objname="tip"/>
    <framelinvel name="tip_velocity" objtype="site" objname="tip"/>
    <accelerometer name="tip_acceleration" site="tip"/>
    <actuatorfrc name="elbow_force" actuator="elbow"/>
  </sensor>
  <keyframe><key name="home" qpos="0.3 -0.5"/></keyframe>
</mujoco>
"""


def _walker(option: str, leg: str) -> str:
    """Build a trunk on two pairs of legs."""
    legs = "".join(leg.format(y=y) for y in (0.12, -0.12))
    return f"""
<mujoco>
  <option timestep="0.002" {option}/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1"/>
    <body name="trunk" pos="0 0 0.33">
      <freejoint name="root"/>
      <geom type="box" size="0.18 0.1 0.05" mass="5"/>
      <site name="imu"/>
      <body name="front" pos="0.15 0 0">
        <joint name="front_hip" axis="0 1 0" damping="0.5" armature="0.01"/>
        {legs}
        <site name="front_foot" pos="0 0 -0.28" size="0.2"/>
      </body>
      <body name="rear" pos="-0.15 0 0">
        <joint name="rear_hip" axis="0 1 0" damping="0.5" armature="0.01"/>
        {legs}
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="front_hip" joint="front_hip" kp="20" ctrlrange="-1 1"/>
    <position name="rear_hip" joint="rear_hip" kp="20" ctrlrange="-1 1"/>
  </actuator>
  <sensor>
    <gyro name="gyro" site="imu"/>
    <framepos name="trunk_position" objtype="xbody" objname="trunk"/>
    <framequat name="trunk_orientation" objtype="xbody" objname="trunk"/>
    <touch name="front_touch" site="front_foot"/>
    <jointpos name="front_angle" joint="front_hip"/>
  </sensor>
</mujoco>
"""


_SHIN = '<geom type="capsule" fromto="0 {y} 0 0 {y} -0.26" size="0.015" mass="0.3" contype="0" conaffinity="0"/>'

CONTACT_RICH = _walker("", _SHIN + '<geom type="sphere" pos="0 {y} -0.28" size="0.025" mass="0.1"/>')

_CAPSULE = '<geom type="capsule" fromto="0 {y} 0 0 {y} -0.28" size="0.02" mass="0.4"/>'

ELLIPTIC = _walker('cone="elliptic" impratio="10"', _CAPSULE)

CONJUGATE_GRADIENT = _walker('solver="CG"', _CAPSULE)

WITH_ACTIVATION = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <body>
      <joint name="ball" type="ball" damping="0.1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.04" mass="1"/>
      <body pos="0 0 -0.4">
        <joint name="slide" type="slide" axis="0 0 1" range="-0.1 0.1" limited="true"/>
        <geom type="sphere" size="0.05" mass="0.3"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <general name="lagged" joint="slide" dyntype="filter" dynprm="0.1" gainprm="30"/>
  </actuator>
  <sensor>
    <jointpos name="slide" joint="slide"/>
    <ballquat name="ball" joint="ball"/>
  </sensor>
</mujoco>
"""

CUBE = """
<mujoco>
  <option timestep="0.002" cone="elliptic" impratio="10"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1"/>
    <site name="world"/>
    <body name="cube" pos="0 0 0.08">
      <freejoint name="cube"/>
      <geom type="box" size="0.03 0.03 0.03" mass="0.2"/>
      <site name="top" pos="0 0 0.03"/>
      <site name="whole" type="box" size="0.04 0.04 0.04"/>
    </body>
  </worldbody>
  <actuator>
    <motor name="push" site="top" refsite="world" gear="1 0 0 0 0 0"/>
  </actuator>
  <sensor>
    <touch name="touch" site="whole"/>
    <framelinvel name="velocity" objtype="xbody" objname="cube"/>
  </sensor>
</mujoco>
"""

ALL = {
    "smooth": SMOOTH,
    "contact_rich": CONTACT_RICH,
    "elliptic": ELLIPTIC,
    "conjugate_gradient": CONJUGATE_GRADIENT,
    "with_activation": WITH_ACTIVATION,
    "cube": CUBE,
}
