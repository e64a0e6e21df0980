"""An algorithm for task.py that fails when asked to."""

import os
import time
from pathlib import Path
from typing import Any

from mjtrain.learning.rsl_rl.ppo import Ppo


class FaultyPpo(Ppo):
    """Learns. MJTRAIN_TEST_FAULT=RANK:UPDATE raises there, once; MJTRAIN_TEST_SLOW=SECONDS makes each update last."""

    num_updates = 0

    def update(self) -> Any:
        rank, _, update = os.environ.get("MJTRAIN_TEST_FAULT", ":").partition(":")
        marker = Path(os.environ["MJTRAIN_TEST_MARKER"])
        self.num_updates += 1
        if rank == os.environ.get("RANK") and self.num_updates == int(update) and not marker.exists():
            marker.write_text(str(time.time()))
            raise ValueError("the arm fell off")
        time.sleep(float(os.environ.get("MJTRAIN_TEST_SLOW", "0")))
        return super().update()
