"""What a URDF says that cannot be meant, and what MuJoCo reads in another way than the file says it."""

import math
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mjtrain.runtime.errors import RequestError

_RANGED = ("revolute", "prismatic")
_MOVING = (*_RANGED, "continuous")
"""Types of joints that a mimic may follow."""

_LFS = b"version https://git-lfs"

_TWO_TURNS_RAD = 4 * math.pi
"""Limits of revolute joints beyond this are probably in degrees, and beyond _NO_LIMIT_RAD none are meant."""

_NO_LIMIT_RAD = 1000.0


def check_text(file: Path, root: ET.Element) -> None:
    """Refuse numbers that are not numbers, names that are given twice, and negative damping."""
    for tag in ("link", "joint"):
        names = Counter(element.get("name", "") for element in root.findall(tag))
        if twice := [name for name, times in names.items() if times > 1]:
            raise RequestError(f"{file}: has {names[twice[0]]} {tag}s with the name '{twice[0]}'; rename them")
    for owner in root:
        for element in owner.iter():
            for attribute, value in element.attrib.items():
                if attribute not in ("name", "filename") and any(_is_nan(part) for part in value.split()):
                    raise RequestError(
                        f"{file}: {owner.tag} {owner.get('name')} has {attribute} '{value}' in its <{element.tag}>; "
                        "give numbers"
                    )
    for joint, dynamics in ((joint, joint.find("dynamics")) for joint in root.findall("joint")):
        for what in ("damping", "friction"):
            value = _number(dynamics, what)
            if value is not None and value < 0:
                raise RequestError(f"{file}: joint {joint.get('name')} has {what} {value:g}; give at least 0")


def settle_joints(root: ET.Element, spec: Any) -> Iterator[str]:
    """Remove ranges that are not finite, and yield lines about limits and mimics that are not as the file has them."""
    types = {joint.get("name", ""): joint.get("type") for joint in root.findall("joint")}
    unlimited, unused, degrees = [], [], []
    for joint in root.findall("joint"):
        name, limit = joint.get("name", ""), joint.find("limit")
        lower, upper = _number(limit, "lower"), _number(limit, "upper")
        words = f"{name} (lower {_show(lower)}, upper {_show(upper)})"
        if types[name] in _RANGED:
            low, high = spec.joint(name).range
            if not (low < high and math.isfinite(high - low)):
                spec.joint(name).range = (0, 0)
                unlimited.append(words)
            elif types[name] == "revolute" and _TWO_TURNS_RAD < max(-low, high) < _NO_LIMIT_RAD:
                degrees.append(words)
        elif types[name] == "continuous" and lower is not None and upper is not None and lower < upper:
            unused.append(words)
        mimic = joint.find("mimic")
        leader = None if mimic is None else mimic.get("joint", "")
        if leader is not None and types[name] in _MOVING and types.get(leader) not in _MOVING:
            why = f"is {types[leader]}" if leader in types else "is not in the file"
            yield f"mimics: {name} moves by itself, because joint {leader}, which it mimics, {why}"
    if unlimited:
        yield f"ranges: no limits, because lower is not below upper, or one is not finite: {', '.join(unlimited)}"
    if unused:
        yield f"ranges: no limits, because they are continuous; revolute ones have limits: {', '.join(unused)}"
    if degrees:
        yield f"ranges: more than two turns, as if in degrees; they are used in rad: {', '.join(degrees)}"


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is what Git LFS leaves in place of one that it has not fetched."""
    with path.open("rb") as stream:
        return stream.read(len(_LFS)) == _LFS


def _number(element: ET.Element | None, attribute: str) -> float | None:
    """Return a number of a file; None where it has none."""
    try:
        return None if element is None else float(element.get(attribute, ""))
    except ValueError:
        return None


def _show(number: float | None) -> str:
    return "not given" if number is None else f"{number:g}"


def _is_nan(text: str) -> bool:
    try:
        return math.isnan(float(text))
    except ValueError:
        return False
