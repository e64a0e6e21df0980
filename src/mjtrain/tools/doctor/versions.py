"""Versions of Python and of packages, on one host and compared between hosts; pure except for `describe_host`."""

import platform
import socket
import sys
from collections.abc import Mapping
from typing import Any

from mjtrain.runtime.machine import installed_packages
from mjtrain.tools.doctor.finding import Finding, failure, ok

_NEEDED = ("mjtrain", "torch", "torchrunx", "rsl-rl-lib", "tensordict", "mujoco", "mujoco-warp", "warp-lang", "numpy")


def describe_host() -> dict[str, Any]:
    """Return what must be the same on all hosts, and where it is."""
    facts = {"host": socket.gethostname(), "python": platform.python_version(), "prefix": sys.prefix}
    return {**facts, "packages": installed_packages()}


def check_versions(facts: Mapping[str, Any]) -> list[Finding]:
    """Look at the versions of one host."""
    packages = facts["packages"]
    missing = ", ".join(name for name in _NEEDED if packages.get(name) is None)
    there = ", ".join(f"{name} {packages[name]}" for name in ("mjtrain", "torch", "mujoco", "warp-lang"))
    if missing:
        advice = f"install {missing} into {facts['prefix']}: `uv sync`, or pip install mjtrain again"
        return [ok("python", facts["python"]), failure("packages", f"{missing} missing", advice)]
    return [ok("python", facts["python"]), ok("packages", there)]


def compare_versions(facts: Mapping[str, Any], first: Mapping[str, Any]) -> list[Finding]:
    """Compare a host with the first one; empty where they have the same versions."""
    found = []
    if facts["python"] != first["python"]:
        figure = f"{facts['python']}, and {first['python']} on {first['host']}"
        advice = f"use Python {first['python']} on every host, at the same path ({first['prefix']})"
        found.append(failure("python", figure, advice).at(facts["host"]))
    pairs = [(name, facts["packages"].get(name), version) for name, version in first["packages"].items()]
    differences = [(name, theirs, mine) for name, theirs, mine in pairs if theirs != mine]
    if differences:
        words = [f"{name} {theirs or 'missing'}, and {mine or 'none'}" for name, theirs, mine in differences]
        wanted = " ".join(f"{name}=={mine}" for name, _, mine in differences if mine)
        figure = f"{'; '.join(words)} on {first['host']}"
        advice = f"install the same on every host, into {facts['prefix']}: pip install {wanted}"
        if not wanted:
            advice = f"install the same on every host: pip uninstall {' '.join(name for name, *_ in differences)}"
        found.append(failure("packages", figure, advice).at(facts["host"]))
    return found
