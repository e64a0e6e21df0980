"""Metrics to files and services."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mjtrain.config import TrainConfig
from mjtrain.runtime.event_log import METRICS_FILE, parse_line
from mjtrain.runtime.files import write_whole
from mjtrain.sim.drawing.video import Video
from mjtrain.training.reporting.wandb_writer import WandbWriter
from mjtrain.training.reporting.writer import Writer, WriterError, scalars


class JsonlWriter(Writer):
    """One JSON object per iteration; each line is written completely before the next iteration begins."""

    def __init__(self, path: Path, first_iteration: int) -> None:
        """Open the file and remove the lines of iterations after the first; events stay."""
        if path.exists():
            rows = ((line, parse_line(line)) for line in path.read_bytes().splitlines())
            kept = [line for line, row in rows if row and ("event" in row or row["iteration"] <= first_iteration)]
            write_whole(path, b"".join(line + b"\n" for line in kept))
        self._file = path.open("ab", buffering=0)

    def write(self, metrics: dict[str, Any]) -> None:
        """Append a line; numbers that JSON does not have become null.

        Raises:
            OSError: The line could not be written; the file is unchanged.
        """
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in metrics.items()
        }
        line = json.dumps(finite).encode() + b"\n"
        size = self._file.seek(0, os.SEEK_END)
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError:
            self._file.truncate(size)
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardWriter(Writer):
    """One scalar per number, over iterations."""

    def __init__(self, run_dir: Path, first_iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides later steps in the files of earlier starts.
        self._writer = SummaryWriter(log_dir=str(run_dir), flush_secs=10, purge_step=first_iteration + 1)

    def write(self, metrics: dict[str, Any]) -> None:
        """Add the scalars."""
        for key, value in scalars(metrics).items():
            self._writer.add_scalar(key, value, metrics["iteration"])

    def add_video(self, video: Video) -> None:
        """Show the animated picture among the images."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        if video.gif is not None:
            image = Summary.Image(encoded_image_string=video.gif.read_bytes(), colorspace=3)
            summary = Summary(value=[Summary.Value(tag="video", image=image)])
            self._writer._get_file_writer().add_summary(summary, video.iteration)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


def make_writers(config: TrainConfig, run_dir: Path, first_iteration: int, warn: Callable[[str], None]) -> list[Writer]:
    """Open metrics.jsonl and the logger of the config; see `RunReport` for the arguments."""
    writers: list[Writer] = [JsonlWriter(run_dir / METRICS_FILE, first_iteration)]
    if config.run.logger == "tensorboard":
        writers.append(TensorBoardWriter(run_dir, first_iteration))
    elif config.run.logger == "wandb":
        try:
            writers.append(WandbWriter(run_dir, config.run, warn))
        except WriterError as error:
            warn(f"W&B cannot record ({error}); training continues without it")
    return writers
