"""Where a run lives."""

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from mjtrain.config import TrainConfig
from mjtrain.errors import RequestError


def name_run_dir(config: TrainConfig) -> Path:
    """Name the run directory of this second: {log_root}/{experiment}/{date}_{time}[_{run_name}], absolute.

    Raises:
        RequestError: The run name is no file name.
    """
    if "/" in config.run.run_name:
        raise RequestError(f"--run-name {config.run.run_name}: must not contain a slash; --log-root chooses the folder")
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    experiment = config.agent.experiment_name or experiment_name(config.task)
    return (Path(config.run.log_root) / experiment / "_".join(filter(None, (stamp, config.run.run_name)))).absolute()


def make_run_dir(config: TrainConfig) -> Path:
    """Create the run directory under a name that no other run has, and return it.

    Raises:
        RequestError: The log root cannot be written, or the run name is no file name.
    """
    while True:
        run_dir = name_run_dir(config)
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            time.sleep(0.1)  # another run began in this second: names are unique by waiting for the next
            continue
        except OSError as error:
            raise RequestError(f"--log-root {config.run.log_root}: cannot be written ({error.strerror})") from error
        return run_dir


def experiment_name(task: str) -> str:
    """Name the folder that holds a task's runs: the task's name, or the factory's for a task given by its path."""
    name = task.rpartition(":")[2] if ":" in task else task
    return name.lower().replace("-", "_")


def save_params(run_dir: Path, **params: Any) -> None:
    """Write each keyword argument, plain values, to params/{keyword}.yaml."""
    folder = run_dir / "params"
    folder.mkdir(exist_ok=True)
    for name, content in params.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def checkpoint_path(run_dir: Path, iteration: int) -> Path:
    """Name the checkpoint of an iteration."""
    return run_dir / f"model_{iteration}.pt"
