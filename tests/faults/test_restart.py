"""Restarts, disks that are full, and saves that are cut short."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mjtrain.runs.checkpoint import find_valid_checkpoint, list_checkpoints
from support.commands import run
from support.frozen import frozen_file_system, thaw
from support.jobs import Record, program, training

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run_benchmark(name: str, *args: str, folder: Path) -> str:
    done = run([sys.executable, BENCHMARKS / name, *args], cwd=folder, seconds=120.0)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_ranks_are_started_again(tmp_path: Path) -> None:
    """The short form of the benchmark; it checks what is lost, what is recorded and what is left."""
    assert run_benchmark("kill_ranks.py", "--kills", "2", folder=tmp_path).count("restart") == 2


def test_a_save_that_is_killed_leaves_the_one_before(tmp_path: Path) -> None:
    assert "loaded each time" in run_benchmark("kill_saves.py", "--kills", "12", "--megabytes", "24", folder=tmp_path)


def test_restarts_come_to_an_end(tmp_path: Path, record: Record) -> None:
    """A failure that comes every time is retried as often as asked, and is then the job's; one rank is enough."""
    fault = "rank=0,phase=update,kind=raise,times=2"
    outcome = training(tmp_path, "--max-restarts", "1", "--inject-fault", fault, ranks=1).finish()
    assert outcome.status == 1
    assert "in phase update: InjectedError: as asked for by --inject-fault; after" in outcome.last_block
    (metrics,) = tmp_path.glob("logs/*/*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row.get("event") for row in rows] == ["fault", "restart", "fault", "end"]
    assert rows[-1]["cause"].endswith(f"; after injected fault {fault}")
    row = rows[1]
    cause = row.pop("cause")
    assert (row["event"], row["restart"], row["iteration"]) == ("restart", 1, 0)
    assert "InjectedError: as asked for by --inject-fault" in cause
    assert cause.endswith(f"; after injected fault {fault}")
    assert row["wait_s"] in (1.0, 2.0)  # 1 s if the ranks have taken 10 s to fail, as on a busy machine
    assert f"restart 1 of 1 in {row['wait_s']:g} s" in outcome.stderr
    assert len(list(tmp_path.glob("logs/*/*/torchrunx/*"))) == 2
    record(
        "exception, each time, --max-restarts 1", "update, 1 rank", outcome, last_words=cause.partition("; after")[0]
    )


def test_a_wrong_request_is_not_tried_again(tmp_path: Path) -> None:
    flags = ["--agent.obs-groups.critic", "camera", "--max-restarts", "3"]
    job = training(tmp_path, *flags)
    outcome = job.finish(since=0.0)
    assert outcome.status == 2, outcome.stderr
    assert "train: --agent.obs-groups.critic camera: the environment observes actor" in outcome.stderr
    assert "restart" not in outcome.stderr


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = tmp_path / "logs"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", getattr(request, "param", "size=1m"), "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("small_disk", ["nr_inodes=3", "nr_inodes=6"], indirect=True)
def test_a_disk_without_room_for_a_new_run_keeps_nothing_of_it(tmp_path: Path, small_disk: Path) -> None:
    """3 inodes do not suffice for the claim of the run directory, and 6 do not for its records."""
    outcome = training(tmp_path, ranks=1).finish(since=0.0)
    assert outcome.status == 1
    assert outcome.stderr.splitlines()[-1].endswith(": cannot be written (No space left on device)")
    assert "Traceback" not in outcome.stderr
    assert list(small_disk.iterdir()) == []


EVERY_ITERATION = ["--agent.save-interval", "1", "--max-iterations", "10"]


def test_a_full_disk_ends_no_training(tmp_path: Path, small_disk: Path, record: Record) -> None:
    outcome = training(tmp_path, *EVERY_ITERATION, "--logger", "none").finish(since=0.0)
    assert "iteration 10/10" in outcome.stdout
    assert "could not be written (No space left on device); the last whole one is model_" in outcome.stdout
    # The last iteration is not on disk, and the command says so.
    assert outcome.status == 1
    last = outcome.stderr.splitlines()[-1]
    assert re.fullmatch(r"train: checkpoint .* could not be written .*; iteration 10 is not saved", last)
    (run_dir,) = small_disk.glob("*/*")
    newest, problems = find_valid_checkpoint(run_dir)
    assert newest == list_checkpoints(run_dir)[0]
    assert problems == []
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines() if '"event"' not in line]
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1))


def test_keeping_few_checkpoints_keeps_the_disk_from_filling(tmp_path: Path, small_disk: Path) -> None:
    job = training(tmp_path, *EVERY_ITERATION, "--logger", "none", "--keep-checkpoints", "2")
    outcome = job.finish(since=0.0)
    assert outcome.status == 0, outcome.stderr
    (run_dir,) = small_disk.glob("*/*")
    assert [path.name for path in list_checkpoints(run_dir)] == ["model_10.pt", "model_9.pt"]


STUCK = """
import os, pathlib, time
import mjtrain
import mjtrain.launcher.job.process_tree as process_tree

process_tree._END_PATIENCE_S = 1.0

def work(context, frozen):
    if context.restarts == 0 and context.rank == 0:
        pathlib.Path("about_to_write").write_text("")
        (pathlib.Path(frozen) / "checkpoint").write_bytes(b"x")
    if context.restarts == 0 and context.rank == 1:
        while not pathlib.Path("about_to_write").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        raise ValueError("the arm fell off")
    return "done"

launch = mjtrain.LaunchConfig(gpu_ids=None, num_workers=2, max_restarts=1)
print(mjtrain.launch(work, os.environ["FROZEN"], launch=launch))
"""


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    with frozen_file_system(tmp_path) as place:
        yield place


def test_a_rank_that_the_kernel_does_not_let_go_delays_the_restart(tmp_path: Path, frozen: Path) -> None:
    job = program(tmp_path, STUCK, FROZEN=str(frozen))
    job.wait_for("waiting for processes [", "stderr")
    thaw(frozen)
    outcome = job.finish(since=0.0)
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout == "done\n"
