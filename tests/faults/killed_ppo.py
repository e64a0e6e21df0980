"""A PPO whose ranks kill themselves: KILLS=PHASE:RANK:CALL,… is one SIGKILL for each life of the job, in that order."""

import os
import signal
from pathlib import Path
from typing import Any

from mjtrain.rl.ppo import Ppo


class KilledPpo(Ppo):
    """Learns as `Ppo` does, and sends its own process SIGKILL in the given phase, rank and call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._folder = Path(os.environ["FAULT_MARKER"]).parent
        kills = [kill for kill in os.environ.get("KILLS", "").split(",") if kill]
        life = len(list(self._folder.glob("killed_*")))
        phase, rank, call = kills[life].split(":") if life < len(kills) else ("none", "0", "0")
        self._kill = (phase, rank)
        self._calls_left = int(call)
        self._marker = self._folder / f"killed_{life}_{phase}_rank_{rank}"

    def _call(self, phase: str) -> None:
        if self._kill == (phase, os.environ["RANK"]):
            self._calls_left -= 1
            if self._calls_left == 0:
                self._marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def process_env_step(self, *args: Any, **kwargs: Any) -> None:
        self._call("rollout")
        super().process_env_step(*args, **kwargs)

    def reduce_parameters(self) -> None:
        self._call("update")
        super().reduce_parameters()

    def save(self) -> dict:
        self._call("save")
        return super().save()
