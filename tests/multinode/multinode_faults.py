"""What the ranks of task.py say and do: leave word of their seeds and hosts, and fail when asked to."""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mjtrain.rl.ppo import Ppo


def note(env: Any) -> None:
    """Leave word of who this rank is; in the dry step before the training there are no ranks."""
    if not dist.is_initialized():
        return
    content: dict[str, Any] = {"RANK": int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])}
    content |= {"seed": env.rng.initial_seed(), "host": socket.gethostname(), "secret": os.environ.get("WANDB_API_KEY")}
    Path(os.environ["MJTRAIN_TEST_NOTES"], f"{socket.gethostname()}_{os.getpid()}.json").write_text(json.dumps(content))


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
