"""What the ranks say of themselves: each leaves a file with its number, its seed and its host."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

NUMBERS = ("RANK", "SLURM_PROCID", "JAX_RANK")
"""Variables in which torchrun or mjtrain, srun, and skrl's launcher for JAX number ranks."""


def note(env: Any) -> None:
    """Leave word of who this rank is; in the dry step before the training there are no ranks."""
    if not dist.is_initialized():
        return
    number = next(value for name in NUMBERS if (value := os.environ.get(name)))
    content: dict[str, Any] = {"RANK": int(number), "seed": torch.initial_seed(), "host": socket.gethostname()}
    content["cores"] = len(os.sched_getaffinity(0))
    content["secret"] = os.environ.get("WANDB_API_KEY")
    Path(os.environ["MJTRAIN_TEST_NOTES"], f"{socket.gethostname()}_{os.getpid()}.json").write_text(json.dumps(content))
