"""What a URDF says that cannot be meant, and what MuJoCo reads in another way than the file says it."""

import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mjtrain.runtime.errors import RequestError

_MOVING = ("revolute", "prismatic", "continuous")
"""Types of joints that may mimic others, and be mimicked."""

_MEASURED = ("origin", "axis", "mass", "inertia", "box", "sphere", "cylinder", "capsule", "mesh", "dynamics", "mimic")
"""Elements of links and joints whose numbers a robot cannot do without; a limit that is NaN is none."""

_LFS = b"version https://git-lfs"

_TWO_TURNS_RAD = 4 * math.pi
"""Limits of revolute joints beyond this are probably in degrees, and beyond _NO_LIMIT_RAD none are meant."""

_NO_LIMIT_RAD = 1000.0


def check_text(file: Path, root: ET.Element) -> None:
    """Refuse numbers that are not numbers, names that are given twice, and negative damping."""
    moving = [joint for joint in root.findall("joint") if joint.get("type") != "fixed"]  # MuJoCo drops fixed ones
    for tag, elements in (("link", root.findall("link")), ("joint", moving)):
        for name, times in Counter(element.get("name") for element in elements).items():
            if name and times > 1:
                raise RequestError(f"{file}: has {times} {tag}s with the name '{name}'; rename them")
    for owner in (*root.findall("link"), *root.findall("joint")):
        for element in (element for element in owner.iter() if element.tag in _MEASURED):
            for attribute, value in element.attrib.items():
                if attribute not in ("filename", "joint") and re.search(r"\bnan\b", value, re.IGNORECASE):
                    raise RequestError(
                        f"{file}: {owner.tag} {owner.get('name')} has {attribute} '{value}' in its <{element.tag}>; "
                        "give numbers"
                    )
    for joint in moving:
        for what in ("damping", "friction"):
            if (value := _number(joint.find("dynamics"), what)) < 0:
                raise RequestError(f"{file}: joint {joint.get('name')} has {what} {value:g}; give at least 0")


def settle_joints(root: ET.Element, spec: Any) -> Iterator[str]:
    """Remove ranges that are not finite, and yield lines about limits and mimics that are not as the file has them."""
    moving = {joint.get("name", ""): joint for joint in root.findall("joint") if joint.get("type") in _MOVING}
    unlimited, unused, degrees = [], [], []
    for name, joint in moving.items():
        limit = joint.find("limit")
        given = {} if limit is None else limit.attrib
        words = f"{name} (lower {given.get('lower', 'not given')}, upper {given.get('upper', 'not given')})"
        if joint.get("type") == "continuous":
            if _number(limit, "lower") < _number(limit, "upper"):
                unused.append(words)
        else:
            low, high = spec.joint(name).range
            if not (low < high and math.isfinite(high - low)):
                spec.joint(name).range = (0, 0)
                unlimited.append(words)
            elif joint.get("type") == "revolute" and _TWO_TURNS_RAD < max(-low, high) < _NO_LIMIT_RAD:
                degrees.append(words)
        mimic = joint.find("mimic")
        if mimic is not None and (leader := mimic.get("joint", "")) not in moving:
            yield (
                f"mimics: {name} moves by itself, because {leader}, which it mimics, is not the name of a revolute, "
                "continuous or prismatic joint"
            )
    if unlimited:
        yield f"ranges: no limits, because lower is not below upper, or one is not finite: {', '.join(unlimited)}"
    if unused:
        yield f"ranges: no limits, because they are continuous; revolute ones have limits: {', '.join(unused)}"
    if degrees:
        yield f"ranges: more than two turns, as if in degrees; they are used in rad: {', '.join(degrees)}"


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is what Git LFS leaves in place of one that it has not fetched."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_LFS)) == _LFS
    except OSError:  # MuJoCo says so when it reads the mesh
        return False


def _number(element: ET.Element | None, attribute: str) -> float:
    """Return a number of a file; NaN, which compares with nothing, where it has none."""
    try:
        return math.nan if element is None else float(element.get(attribute, ""))
    except ValueError:
        return math.nan
