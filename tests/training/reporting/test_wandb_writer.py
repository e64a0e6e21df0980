"""W&B as it is: its own process, its files, its absence."""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wandb.proto import wandb_internal_pb2

from mjtrain.runs.wandb_artifact import call_within
from mjtrain.runtime import heartbeat
from mjtrain.runtime.processes import is_ending
from mjtrain.training.reporting.wandb_writer import _read_id, resolve_mode
from support.commands import run, start
from support.machine import read_proc, wait_until

KEY = "0123456789abcdef0123456789abcdef01234567"
OWN = {"CUDA_VISIBLE_DEVICES": "", "WANDB_SILENT": "true"}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what this user has set for W&B."""
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("asked", "environ", "has_key", "mode"),
    [
        ("auto", {}, True, "online"),
        ("auto", {}, False, "offline"),
        ("auto", {"WANDB_MODE": "offline"}, True, "offline"),
        ("auto", {"WANDB_MODE": "dryrun"}, True, "offline"),
        ("auto", {"WANDB_MODE": "disabled"}, True, "disabled"),
        ("auto", {"WANDB_MODE": "online"}, False, "offline"),
        ("online", {"WANDB_MODE": "offline"}, True, "online"),
        ("online", {}, False, "offline"),
        ("offline", {}, True, "offline"),
    ],
)
def test_modes(asked: str, environ: dict[str, str], has_key: bool, mode: str) -> None:
    assert resolve_mode(asked, environ, lambda: has_key) == mode


def read_recording(path: Path) -> Iterator[Any]:
    """W&B's file of an offline run: a header, then records in pieces that do not cross blocks, as LevelDB's log has."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, or the last piece
            record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
            record.ParseFromString(whole)
            whole = b""
            yield record


def recordings_below(folder: Path) -> list[list[Any]]:
    paths = sorted(folder.glob("logs/*/*/wandb/offline-run-*/run-*.wandb"))
    return [list(read_recording(path)) for path in paths]


def history_of(records: list[Any]) -> list[dict[str, Any]]:
    rows = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    return [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in rows]


def train(
    folder: Path, *flags: str, exec_it: bool = False, **environ: str
) -> tuple[subprocess.CompletedProcess[str], set[bytes]]:
    """Train two iterations more, and return also the arguments of all processes that were seen meanwhile."""
    command = [sys.executable, "-m", "mjtrain.cli.train", "Cartpole-Balance", "--gpu-ids", "None", "--num-envs", "4"]
    command += ["--logger", "wandb", *flags]
    seen: set[bytes] = set()

    def look() -> bool:
        seen.update(read_proc(int(folder.name), "cmdline") for folder in Path("/proc").glob("[0-9]*"))
        return process.poll() is not None

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(
            command, cwd=folder, environ={**os.environ, **OWN, **environ}, stdout=out, stderr=err, exec_it=exec_it
        )
        try:
            wait_until(look, "the training has ended")
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, process.wait(), out.read(), err.read()), seen


def run_program(source: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-c", source], cwd=folder, environ=OWN | environ)


def test_an_offline_run_and_its_resumption(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run([*git, "init", "-q", "-b", "trunk"], cwd=tmp_path, check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "begin"], cwd=tmp_path, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True)
    names = ["--wandb-project", "carts", "--wandb-entity", "lab", "--wandb-group", "night", "--wandb-name", "first"]
    flags = [*names, "--wandb-tags", "small", "new", "--wandb-mode"]
    nowhere = {"HOME": "/dev/null/home", "XDG_CACHE_HOME": ""}
    first, seen = train(
        tmp_path, *flags, "offline", "--max-iterations", "2", exec_it=True, WANDB_API_KEY=KEY, **nowhere
    )
    assert first.returncode == 0, first.stderr
    assert "INFO" not in first.stderr + first.stdout  # the log of W&B's process
    assert any(b"wandb-core" in arguments for arguments in seen)
    assert not any(KEY.encode() in arguments for arguments in seen)
    more = ["--wandb-upload-checkpoints", "--max-iterations", "4", "--resume"]
    second, _ = train(tmp_path, *flags, "online", *more, HOME=str(tmp_path))
    assert second.returncode == 0, second.stderr
    assert "no W&B API key found" in second.stdout

    begun, resumed = recordings_below(tmp_path)
    (run_dir,) = tmp_path.glob("logs/*/*")
    run_id = (run_dir / "wandb_run_id").read_text()
    for records in (begun, resumed):
        (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
        assert (run.run_id, run.project, run.entity) == (run_id, "carts", "lab")
        assert (run.run_group, run.display_name, list(run.tags)) == ("night", "first", ["small", "new"])
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config["env"]["rewards"]["upright"]["weight"] == 1.0
        assert config["agent"]["num_steps_per_env"] == 24
        assert config["launch"]["plan"]["ranks"][0]["device"] == "cpu"
        assert config["launch"]["git"] == {"commit": commit.stdout.strip(), "branch": "trunk", "dirty": False}
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines() if '"event"' not in line]
    logged = history_of(begun) + history_of(resumed)
    assert [row["iteration"] for row in logged] == [row["_step"] for row in logged] == [1, 2, 3, 4]
    for row, entry in zip(rows, logged, strict=True):
        assert {key: entry[key] for key in row if row[key] is not None} == {
            k: v for k, v in row.items() if v is not None
        }

    def artifacts(records: list[Any]) -> list[str]:
        found = [record.request.log_artifact.artifact for record in records if record.request.HasField("log_artifact")]
        found += [record.artifact for record in records if record.WhichOneof("record_type") == "artifact"]
        return [entry.path for artifact in found for entry in artifact.manifest.contents]

    assert artifacts(begun) == []
    assert artifacts(resumed) == ["model_4.pt"]
    assert not any(KEY.encode() in path.read_bytes() for path in run_dir.rglob("*") if path.is_file())


TROUBLE = """
import os, signal, sys
import torch
import mjtrain
from mjtrain.runtime.processes import list_descendants
from mjtrain.training.reporting import wandb_writer
from support.machine import patience, read_proc
wandb_writer.INIT_TIMEOUT_S, wandb_writer.FINISH_TIMEOUT_S = patience(0.5), 1.0
write = wandb_writer.WandbWriter.write
pids = []

def signal_then_write(self, metrics):
    if metrics["iteration"] == 3:
        pids.extend(pid for pid in list_descendants(os.getpid()) if b"(wandb-core)" in read_proc(pid, "stat"))
        os.kill(pids[-1], signum)
        print("to W&B's process", pids[-1], flush=True)
    write(self, metrics)

wandb_writer.WandbWriter.write = signal_then_write
for signum, mode in ((signal.SIGKILL, "online"), (signal.SIGSTOP, "offline")):
    child = os.fork()
    if child == 0:
        mjtrain.train("Cartpole-Balance", num_envs=4, max_iterations=8, logger="wandb", run_name=signum.name,
            wandb_mode=mode, launch=mjtrain.LaunchConfig(gpu_ids=None))
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""


def test_trouble_is_a_warning_and_training_goes_on(tmp_path: Path) -> None:
    """W&B's process is killed, and that of another training stops; nothing waits for it at the end."""
    environ = {"HOME": str(tmp_path), "WANDB_API_KEY": KEY, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = run_program(TROUBLE, tmp_path, **environ)
    assert done.returncode == 0, done.stderr
    for line in ("W&B cannot be reached", "recording offline", "to W&B's process", "WandbWriter cannot write"):
        assert line in done.stdout
    assert "no answer for 1 s" in done.stdout
    assert "atexit" not in done.stderr
    assert all(is_ending(int(pid)) for pid in re.findall(r"to W&B's process (\d+)", done.stdout))
    for name in ("SIGKILL", "SIGSTOP"):
        (run_dir,) = tmp_path.glob(f"logs/*/*{name}")
        assert (run_dir / "metrics.jsonl").read_text().count('{"iteration"') == 8
        assert (run_dir / "model_8.pt").is_file()


OWN_RUN = """
import mjtrain, wandb
own = wandb.init(project="own", dir="mine")
own.log({"x": 1.0})
mjtrain.train("Cartpole-Balance", num_envs=4, max_iterations=1, logger="wandb",
    launch=mjtrain.LaunchConfig(gpu_ids=None))
assert wandb.run is own
own.log({"x": 2.0})
own.finish()
"""


def test_a_damaged_record_of_the_run_begins_another_run(tmp_path: Path) -> None:
    """The second start finds a folder in the place of wandb_run_id, which cannot be replaced."""
    first, _ = train(tmp_path, "--wandb-mode", "offline", "--max-iterations", "1")
    assert first.returncode == 0, first.stderr
    (run_dir,) = tmp_path.glob("logs/*/*")
    (run_dir / "wandb_run_id").unlink()
    (run_dir / "wandb_run_id").mkdir()
    second, _ = train(tmp_path, "--wandb-mode", "offline", "--max-iterations", "2", "--resume")
    assert second.returncode == 0, second.stderr
    said = "wandb_run_id cannot be written (Is a directory); a resumed run begins another W&B run"
    assert said in " ".join(second.stdout.split())
    assert len(recordings_below(tmp_path)) == 2


@pytest.mark.parametrize(("text", "run_id"), [("a/b", None), ("a\nb", None), ("", None), ("my run-1\n", "my run-1")])
def test_an_id_that_wandb_does_not_take_is_none(text: str, run_id: str | None, tmp_path: Path) -> None:
    (tmp_path / "wandb_run_id").write_text(text)
    assert _read_id(tmp_path) == run_id


def test_a_run_from_a_storage_continues_its_wandb_run_and_a_copy_does_not(tmp_path: Path) -> None:
    stored, copy = f"file://{tmp_path}/stored", f"file://{tmp_path}/copy"
    begun = (["--checkpoint-url", stored], {})
    continued = (["--checkpoint-url", stored, "--resume", stored], {})
    copied = (["--checkpoint-url", copy, "--resume", stored], {})
    given = (["--resume", stored], {"WANDB_RUN_ID": "mine"})
    ids = []
    for number, (flags, environ) in enumerate((begun, continued, copied, given)):
        folder = tmp_path / str(number)
        folder.mkdir()
        more = ["--max-iterations", str(number + 1), *flags]
        done, _ = train(folder, "--wandb-mode", "offline", *more, exec_it=False, **environ)
        assert done.returncode == 0, done.stderr
        (records,) = recordings_below(folder)
        ids += [record.run.run_id for record in records if record.WhichOneof("record_type") == "run"]
    assert ids[0] == ids[1] != ids[2]
    assert ids[3:] == ["mine"]


def test_a_run_of_the_program_that_trains_is_not_the_trainings(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = run_program(OWN_RUN, tmp_path, HOME=str(tmp_path), WANDB_MODE="offline", WANDB_RUN_ID="mine")
    assert done.returncode == 0, done.stderr
    (own,) = [history_of(list(read_recording(path))) for path in tmp_path.glob("mine/wandb/offline-run-*/run-*.wandb")]
    (training,) = [history_of(records) for records in recordings_below(tmp_path)]
    assert [(row["x"], row.keys() & {"iteration"}) for row in own] == [(1.0, set()), (2.0, set())]
    assert [row["iteration"] for row in training] == [1]


def test_a_training_in_a_sweep_of_wandb_writes_into_the_run_of_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    sweep = {"WANDB_RUN_ID": "mine", "WANDB_SWEEP_ID": "all"}
    done = run_program(OWN_RUN, tmp_path, HOME=str(tmp_path), WANDB_MODE="offline", **sweep)
    assert done.returncode == 0, done.stderr
    (own,) = [history_of(list(read_recording(path))) for path in tmp_path.glob("mine/wandb/offline-run-*/run-*.wandb")]
    assert [(row.get("x"), row.get("iteration")) for row in own] == [(1.0, None), (2.0, 1)]  # W&B joins rows of a step
    assert not list(recordings_below(tmp_path))


def test_a_training_that_waits_for_wandb_does_not_hang() -> None:
    """A large checkpoint may take longer than a rank may go without a beat, and W&B must not end a run."""
    over, before = threading.Event(), heartbeat.current.beats
    with pytest.raises(TimeoutError, match=r"no answer for 0\.2 s"):
        call_within(0.2, over.wait)
    over.set()
    assert heartbeat.current.beats > before + 1
