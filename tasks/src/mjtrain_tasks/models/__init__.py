"""Robots as MJCF files."""

from pathlib import Path

CARTPOLE = Path(__file__).parent / "cartpole.xml"
