"""A logger of another package gets what a training records, and cannot end it."""

import sqlite3
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from rsl_rl.utils import LogWriter

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import TrainConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.training.reporting.writer import LogWriterAdapter, TrackioWriter, WriterError, load_log_writer

pytestmark = pytest.mark.usefixtures("short_trial")


class Notes(LogWriter):
    """Notes what it gets, in a file of the run."""

    def __init__(self, log_dir: str) -> None:
        self._file = Path(log_dir, "notes.txt")

    def _note(self, *words: object) -> None:
        with self._file.open("a") as file:
            print(*words, file=file)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        if tag == "env_steps_total":
            self._note(tag, scalar_value, global_step)

    def store_config(self, env_cfg: dict | object, train_cfg: dict) -> None:
        assert isinstance(env_cfg, dict)
        self._note("config", env_cfg["decimation"], train_cfg["task"])

    def save_model(self, model_path: str, it: int) -> None:
        self._note("model", Path(model_path).name, it)

    def stop(self) -> None:
        self._note("stop")


class Broken(Notes):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        raise KeyError(tag)


@dataclass
class NotAWriter:
    log_dir: str


def test_a_training_is_noted(tmp_path: Path) -> None:
    where = {"log_root": str(tmp_path), "launch": mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)}
    run = mjtrain.train("Cartpole-Balance", num_envs=4, max_iterations=2, logger=f"{__name__}:Notes", **where)
    lines = (run.run_dir / "notes.txt").read_text().splitlines()
    assert lines[0].startswith("config 5 Cartpole-Balance")
    assert [line.split()[-1] for line in lines if line.startswith("env_steps")] == ["1", "2"]
    assert "model model_2.pt 2" in lines
    assert lines[-1] == "stop"


needs_trackio = pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed: mjtrain[trackio]")


@needs_trackio
def test_trackio_gets_the_iterations_and_a_resumed_training_continues_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    where = {"log_root": str(tmp_path), "launch": mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)}
    run = mjtrain.train("Cartpole-Balance", num_envs=4, max_iterations=2, logger="trackio", **where)
    again = {"max_iterations": 3, "logger": "trackio", "resume": str(run.run_dir), **where}
    mjtrain.train("Cartpole-Balance", num_envs=4, **again)
    with sqlite3.connect(tmp_path / "trackio" / "mjtrain.db") as database:
        rows = database.execute("SELECT run_name, step FROM metrics ORDER BY step").fetchall()
    assert rows == [(run.run_dir.name, step) for step in (1, 2, 3)]


@needs_trackio
def test_a_trackio_run_of_the_callers_program_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    import trackio  # pyright: ignore[reportMissingImports]
    from trackio.utils import TRACKIO_DIR  # pyright: ignore[reportMissingImports]

    trackio.init(project="paper", name="outer")
    writer = TrackioWriter(make_config("trackio"), tmp_path / "inner")
    trackio.log({"reward": 1.0}, step=1)
    writer.write({"iteration": 1, "reward": 2.0})
    writer.close()
    trackio.log({"reward": 3.0}, step=2)
    trackio.finish()
    for project, name, steps in (("paper", "outer", [(1,), (2,)]), ("mjtrain", "inner", [(1,)])):
        with sqlite3.connect(Path(TRACKIO_DIR, f"{project}.db")) as database:  # read when trackio was first imported
            found = database.execute("SELECT step FROM metrics WHERE run_name = ? ORDER BY step", [name])
            assert found.fetchall() == steps


@pytest.mark.skipif(find_spec("trackio") is not None, reason="trackio is installed")
def test_without_trackio_the_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--logger trackio needs trackio; .*mjtrain\[trackio\]"):
        mjtrain.train("Cartpole-Balance", logger="trackio", log_root=str(tmp_path))


def make_config(logger: str) -> TrainConfig:
    return make_train_config("Cartpole-Balance", logger=logger)


def test_what_a_logger_raises_is_a_warning(tmp_path: Path) -> None:
    writer = LogWriterAdapter(make_config(f"{__name__}:Broken"), tmp_path)
    with pytest.raises(WriterError, match="KeyError"):
        writer.write({"iteration": 1, "reward": 2.0})
    with pytest.raises(WriterError, match="nowhere"):
        LogWriterAdapter(make_config("nowhere.to:Find"), tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.to:Find", "cannot be imported"),
        (f"{__name__}:None", "no class None"),
        (f"{__name__}:NotAWriter", "add_scalar"),
    ],
)
def test_what_is_not_a_logger_is_refused(name: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        load_log_writer(name)
