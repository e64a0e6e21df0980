"""Robots as MJCF files."""

from pathlib import Path

CARTPOLE = Path(__file__).parent / "cartpole.xml"
QUADRUPED = Path(__file__).parent / "quadruped.xml"
ARM = Path(__file__).parent / "arm.xml"
ARM_GRIPPER = Path(__file__).parent / "arm_gripper.xml"
HAND = Path(__file__).parent / "hand.xml"
HUMANOID = Path(__file__).parent / "humanoid.xml"
