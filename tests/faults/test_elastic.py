"""Jobs that continue with what is left."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from support.jobs import BIN, Job
from support.promises import Together, run_together

TIMES = ("_time", "_per_second", "slowest_rank", "by_rank")
"""What may differ between two runs of the same training."""

FLAGS = ("--num-envs", "16")
"""Of the job whose worker is left out, and of the one by hand that it is compared with."""


def train(folder: Path, num_workers: int, *flags: str, sick: str = "0:0:0") -> Job:
    folder.mkdir(exist_ok=True)
    command = [str(BIN / "train"), "Cartpole-Balance", "--gpu-ids", "None", "--num-workers", str(num_workers)]
    command += ["--num-threads", "1", "--max-iterations", "5", "--seed", "3", "--agent.save-interval", "2"]
    command += ["--agent.algorithm.class-name", "sick_ppo:SickPpo", "--logger", "none", "--log-root", "logs"]
    return Job([*command, *flags], folder, {"SICK": sick})


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the metrics of the iterations, without times."""
    rows = [row for row in read_rows(run_dir) if "event" not in row]
    return [{key: row[key] for key in row if not any(part in key for part in TIMES)} for row in rows]


def find_restarts(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(run_dir) if row.get("event") == "restart"]


def resume_by_hand(folder: Path, run_dir: Path, iteration: int, num_workers: int, *flags: str) -> Path:
    """Resume a copy of a run from one of its checkpoints, with another number of ranks; return its directory."""
    copy = folder / "by_hand" / run_dir.name
    shutil.copytree(run_dir, copy)
    for path in copy.glob("model_*.pt"):
        if path.name != f"model_{iteration}.pt":
            path.unlink()
    outcome = train(folder / "hand", num_workers, *flags, "--resume", str(copy)).finish(since=0.0)
    assert outcome.status == 0, outcome.stderr
    return copy


def check_equal(one: Path, other: Path, names: tuple[str, ...]) -> None:
    assert read_metrics(one) == read_metrics(other)
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Together:
    """All of them at the same time, as they wait before each restart."""
    left_out = ("--max-restarts", "3", "--min-ranks", "2")
    split = ("--num-envs-total", "36", "--max-restarts", "2", "--min-ranks", "1")
    needed = ("--max-restarts", "2", "--min-ranks", "2")
    starts: dict[str, Callable[[Path], Job]] = {
        "left out": lambda folder: train(folder, 3, *FLAGS, *left_out, sick="1:3:3"),
        "split": lambda folder: train(folder, 3, *split, sick="2:3:1"),
        "needed": lambda folder: train(folder, 2, *needed, sick="1:2:1"),
    }
    return run_together(tmp_path_factory.mktemp("elastic"), starts, since=0.0)


def test_a_sick_worker_is_left_out_and_the_rest_goes_on_bit_for_bit(jobs: Together, tmp_path: Path) -> None:
    """The second of three ranks fails twice after a save; two continue as two would that were given that checkpoint."""
    job, ended = jobs["left out"]
    outcome = ended.result()
    assert outcome.status == 0, outcome.stderr
    (run,) = job.folder.glob("logs/*/*")

    first, second = find_restarts(run)
    reason = "worker 1 (rank 1): it failed twice, and nothing was saved between"
    assert "left_out" not in first
    assert (second["iteration"], second["world_size"], second["left_out"]) == (2, 2, [reason])
    assert "the device is lost" in second["cause"]
    assert f"2 of 3 ranks continue, without {reason}" in outcome.stderr
    assert "environments and random numbers of rank 2 are left out, those of the other ranks continue" in outcome.stdout
    assert yaml.safe_load((run / "params" / "launch.yaml").read_text())["left_out"] == ["worker 1"]
    assert [row["world_size"] for row in read_metrics(run)] == [3, 3, 2, 2, 2]

    check_equal(run, resume_by_hand(tmp_path, run, 2, 2, *FLAGS), ("model_4.pt", "model_5.pt"))
    saved, last = (torch.load(run / f"model_{iteration}.pt", weights_only=True) for iteration in (2, 5))
    assert (len(saved["ranks"]), len(last["ranks"])) == (3, 2)


def test_a_total_of_environments_is_split_anew(jobs: Together) -> None:
    """With 3 ranks 12 each, with 2 ranks 18; they start again, as their number per rank is another."""
    job, ended = jobs["split"]
    outcome = ended.result()
    assert outcome.status == 0, outcome.stderr
    (run,) = job.folder.glob("logs/*/*")
    assert [(row["world_size"], row["num_envs_total"]) for row in read_metrics(run)] == [(2, 36)] * 5


def test_a_rank_that_the_job_cannot_do_without_is_tried_as_often_as_the_restarts_allow(jobs: Together) -> None:
    job, ended = jobs["needed"]
    outcome = ended.result()
    assert outcome.status == 1
    assert "RuntimeError: the device is lost" in outcome.last_block
    (run,) = job.folder.glob("logs/*/*")
    assert [row.get("left_out") for row in find_restarts(run)] == [None, None]
