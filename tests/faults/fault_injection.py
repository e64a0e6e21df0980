"""Faults for task.py, in a module that ranks can import by name."""

import os
import time
from pathlib import Path
from typing import Any

from mjtrain.rl.ppo import Ppo


def fail(phase: str) -> None:
    """Raise if this is the phase and the rank."""
    if os.environ.get("FAULT", "none:0").split(":") != [phase, os.environ.get("RANK", "0")]:
        return
    Path(os.environ["FAULT_MARKER"]).write_text(str(time.time()))
    raise ValueError("the arm fell off")


class FaultyPpo(Ppo):
    """Learns, and fails when asked to."""

    def update(self) -> Any:
        fail("update")
        return super().update()

    def save(self) -> dict:
        fail("save")
        if (duration := os.environ.get("FAULT_SLOW_SAVE")) and os.environ.get("RANK") == "0":
            Path(os.environ["FAULT_MARKER"]).write_text(str(time.time()))
            time.sleep(float(duration))
        return super().save()
