"""A deployment from its settings to its report."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mjtrain.deployment.control_loop import Controller
from mjtrain.deployment.policy import DeployedPolicy
from mjtrain.deployment.robot import Robot
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.processes import module_path


class SimulatedProcess:
    """The process of the simulated robot."""

    def __init__(self, simulation: dict[str, Any], policy: DeployedPolicy) -> None:
        """Start it and wait for its port; a RequestError if it cannot simulate the model, a RuntimeError if it ends."""
        if not Path(simulation["model"]).is_file():
            raise RequestError(f"--model {simulation['model']}: is missing; export writes model.mjb beside the policy")
        # The operator's Ctrl-C is for the controller, which damps the robot: a separate session does not hear it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mjtrain.deployment.simulated_robot"],
            env={**os.environ, "PYTHONPATH": module_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdin as settings:
            json.dump({"simulation": simulation, "metadata": policy.metadata, "parent": os.getpid()}, settings)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of the simulated robot ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "problem" in answer:
            self._process.wait()
            raise RequestError(f"--model {simulation['model']}: cannot be simulated ({answer['problem']})")
        self.port: int = answer["port"]
        self.pid = self._process.pid

    def find_end(self) -> str | None:
        """Say how the process has ended; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        return f"the robot's process ended ({f'signal {-status}' if status < 0 else f'status {status}'})"

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


def report(controller: Controller, robot: Robot, policy: DeployedPolicy, cause: str) -> dict[str, Any]:
    """Return what a deployment amounts to: how it ended, errors of commands, timing, packets."""
    rows = controller.rows
    acted = [row for row in rows if "action" in row]
    period_s = policy.metadata["control_period_s"]
    names = dict.fromkeys(name for row in acted for name in row["errors"])
    errors = {name: _spread([row["errors"][name] for row in acted if name in row["errors"]]) for name in names}
    tilts = [row["tilt"] for row in rows if row["state"] == "policy" and row["tilt"] is not None]
    return {
        "task": policy.metadata["task"],
        "ended": cause,
        "policy_s": round(acted[-1]["time_s"] + period_s, 3) if acted else 0.0,
        "errors": errors,
        "max_tilt_rad": round(max(tilts), 4) if tilts else None,
        "rate_hz": round(1 / period_s, 3),
        "ticks": len(rows),
        "missed_ticks": sum(row["missed"] for row in rows),
        "late_ms": _spread([row["late_ms"] for row in rows]),
        "work_ms": _spread([row["work_ms"] for row in acted]),
        "network_ms": _spread([row["network_ms"] for row in acted]),
        "age_ms": _spread([row["age_ms"] for row in rows]),
        "at_torque_limit": round(sum(bool(row["at_torque_limit"]) for row in acted) / len(acted), 4) if acted else 0.0,
        "readings": {name: getattr(robot, name) for name in ("received", "lost", "invalid") if hasattr(robot, name)},
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return mean, 99th percentile and maximum; None of nothing."""
    if not len(values):
        return None
    array = np.asarray(values, dtype=float)
    return {
        "mean": round(float(array.mean()), 4),
        "p99": round(float(np.percentile(array, 99)), 4),
        "max": round(float(array.max()), 4),
    }
