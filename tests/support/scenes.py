"""A small scene that the tests of rendering look at."""

import mujoco
import torch

from mjtrain.config import CameraConfig

SCENE = """
<mujoco>
  <asset>
    <texture name="checks" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="32" height="32"/>
    <texture name="dull" type="2d" builtin="flat" rgb1="0.3 0.3 0.3" width="32" height="32"/>
    <texture name="sky" type="skybox" builtin="flat" rgb1="0.2 0.4 0.6" width="16" height="16"/>
    <material name="checked" texture="checks" texrepeat="2 2" specular="0.4"/>
    <material name="green" rgba="0 1 0 1" specular="0.4"/>
  </asset>
  <worldbody>
    <light name="lamp" pos="0 0 4" diffuse="0.6 0.6 0.6" castshadow="true"/>
    <geom name="floor" type="plane" size="3 3 0.1" rgba="0.8 0.8 0.8 1"/>
    <geom name="hidden" type="box" size="0.1 0.1 0.1" pos="1.2 0 0.1" group="3"/>
    <geom name="wall" type="box" size="0.6 0.1 0.6" pos="-1 1.5 0.6" material="checked"/>
    <body name="slider" pos="0 0 0.5">
      <joint name="slide" type="slide" axis="1 0 0"/>
      <geom name="box" type="box" size="0.3 0.3 0.3" material="green"/>
      <geom type="sphere" size="0.2" pos="0 0 0.5" rgba="0.9 0.1 0.1 1"/>
      <camera name="chase" mode="track" pos="0 -3 1" xyaxes="1 0 0 0 0.3 1"/>
      <body name="arm" pos="0 0 0.5">
        <joint name="turn" type="hinge" axis="0 0 1"/>
        <geom name="rod" type="capsule" fromto="0 0 0 0.8 0 0" size="0.08" rgba="0.1 0.1 0.9 1"/>
        <camera name="eye" pos="1 0 0.1" xyaxes="0 -1 0 0.6 0 1"/>
      </body>
    </body>
    <camera name="side" pos="0 -4 1.2" xyaxes="1 0 0 0 0.15 1" fovy="50"/>
    <camera name="top" pos="0 0 5"/>
  </worldbody>
  <actuator><motor name="slide" joint="slide"/><motor name="turn" joint="turn"/></actuator>
</mujoco>
"""
"""A box with a ball and a rod that slides and turns before a wall, under a lamp and a sky; four cameras."""

CLASSES = {"rod": ("rod",), "slider": ("slider",), "floor": ("floor",), "wall": ("wall",)}
"""The ball has no name: it is of its body's class."""

SIDE = CameraConfig(width=48, height=40, streams=("rgb", "depth", "segmentation"), classes=CLASSES)
"""All streams of the camera side."""


HANGING = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <light pos="0 0 4"/>
    <geom name="floor" type="plane" size="3 3 0.1" rgba="0 0 1 1"/>
    <camera name="top" pos="0 0 5" fovy="30"/>
    <body name="crane" mocap="true" pos="9 9 -2">
      <geom type="box" size="0.8 0.8 0.1" rgba="1 0 0 1"/>
      <body name="arm" pos="0.1 0.2 -0.3">
        <joint name="swing" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.05"/>
      </body>
    </body>
  </worldbody>
  <sensor>
    <framepos name="arm" objtype="xbody" objname="arm"/>
    <framequat name="arm_turn" objtype="xbody" objname="arm"/>
    <framelinvel name="arm_speed" objtype="xbody" objname="arm"/>
  </sensor>
  <keyframe><key name="home" mpos="0 0 2" mquat="0.8 0 0 0.6" qpos="0.3"/></keyframe>
</mujoco>
"""
"""An arm on a mocap body, which keyframe home takes from below the floor to under the camera top."""


def load_hanging() -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(HANGING)


def load_scene() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


def poses(num_envs: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(num_envs, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
