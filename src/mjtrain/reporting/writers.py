"""Metrics to files and services."""

import json
import math
import os
from pathlib import Path
from typing import Any, Protocol

from mjtrain.config import TrainConfig, to_plain


class Writer(Protocol):
    """Takes the metrics of every iteration."""

    def write(self, metrics: dict[str, Any]) -> None:
        """Record one iteration."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


class JsonlWriter:
    """One JSON object per iteration, each line whole and with the operating system before the next iteration begins."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, metrics: dict[str, Any]) -> None:
        """Append a line; numbers that JSON does not have become null."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in metrics.items()
        }
        self._file.write(json.dumps(finite) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardWriter:
    """One scalar per number, over iterations."""

    def __init__(self, run_dir: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(run_dir), flush_secs=10)

    def write(self, metrics: dict[str, Any]) -> None:
        """Add the scalars."""
        for key, value in _scalars(metrics).items():
            self._writer.add_scalar(key, value, metrics["iteration"])

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WandbWriter:
    """A Weights & Biases run."""

    def __init__(self, run_dir: Path, config: TrainConfig) -> None:
        import wandb

        # Without a key W&B would ask for one, and a job without a terminal would wait for the answer for ever.
        mode = "offline" if "WANDB_MODE" not in os.environ and not _has_wandb_key() else None
        self._run = wandb.init(
            project=config.run.wandb_project, name=run_dir.name, dir=run_dir, config=to_plain(config), mode=mode
        )

    def write(self, metrics: dict[str, Any]) -> None:
        """Log the scalars."""
        self._run.log(_scalars(metrics), step=metrics["iteration"])

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def make_writers(config: TrainConfig, run_dir: Path) -> list[Writer]:
    """Open what the config asks for; metrics.jsonl always."""
    writers: list[Writer] = [JsonlWriter(run_dir / "metrics.jsonl")]
    if config.run.logger == "tensorboard":
        writers.append(TensorBoardWriter(run_dir))
    elif config.run.logger == "wandb":
        writers.append(WandbWriter(run_dir, config))
    return writers


def _scalars(metrics: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if isinstance(value, int | float)}


def _has_wandb_key() -> bool:
    import wandb

    return wandb.api.api_key is not None
