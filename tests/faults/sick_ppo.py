"""A PPO with one sick place: SICK=RANK:WORLD_SIZE:UPDATE fails there from that update on, and in each later start.

In a job of another size the place is left out, and the number of its rank belongs to another place.
"""

import os
from pathlib import Path
from typing import Any

from mjtrain.learning.rsl_rl.ppo import Ppo


class SickPpo(Ppo):
    """Learns as `Ppo` does, and raises where it is sick."""

    _num_updates = 0

    def update(self) -> Any:
        rank, world_size, update = os.environ.get("SICK", "0:0:0").split(":")
        self._num_updates += 1
        if (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")) == (rank, world_size):
            marker = Path(os.environ["FAULT_MARKER"])
            if marker.exists() or self._num_updates >= int(update):
                marker.touch()
                raise RuntimeError("the device is lost")
        return super().update()
