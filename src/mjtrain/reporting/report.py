"""Everything the main rank says about a run while it goes on."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mjtrain.config import TrainConfig
from mjtrain.reporting.console import ProgressDisplay
from mjtrain.reporting.straggler import StragglerWatch
from mjtrain.reporting.writers import make_writers


class RunReport:
    """Writes metrics, shows progress and warns of stragglers. Use as a context manager."""

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        self._stack = ExitStack()
        self._writers = make_writers(config, run_dir)
        for writer in self._writers:
            self._stack.callback(writer.close)
        self._display = self._stack.enter_context(ProgressDisplay(config.run.max_iterations))
        self._stragglers = StragglerWatch()

    def __enter__(self) -> "RunReport":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def update(self, metrics: dict[str, Any]) -> None:
        """Take in one iteration."""
        self._display.update(metrics)
        warning = self._stragglers.update(metrics)
        if warning is not None:
            self._display.warn(warning)
        for writer in self._writers:
            writer.write(metrics)
