"""Faults of --inject-fault in trainings: each has the effect of a real one, and everything that tells of it says so."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.jobs import Job, Record, training
from support.promises import Together, run_together

HOST = os.uname().nodename
RARE = ["--eval-interval", "2", "--eval-episodes", "2"]


def read_rows(job: Job) -> list[dict[str, Any]]:
    (metrics,) = job.folder.glob("logs/*/*/metrics.jsonl")
    return [json.loads(line) for line in metrics.read_text().splitlines()]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("rank=0,phase=start,kind=raise", "rank 0 in phase start: InjectedError"),
        ("rank=1,phase=update,iteration=2,kind=raise", "rank 1 in phase update: InjectedError"),
        ("rank=1,phase=evaluation,iteration=2,kind=raise", "rank 1 in phase evaluation: InjectedError"),
        ("rank=0,phase=save,iteration=2,kind=raise", "rank 0 in phase save: InjectedError"),
        ("rank=1,phase=rollout,iteration=2,step=5,kind=sigkill", "rank 1: was killed by SIGKILL (last known phase: "),
        ("rank=1,phase=update,iteration=2,kind=nan", "FloatingPointError: rewards or values are not finite in iter"),
        ("rank=1,phase=rollout,iteration=2,kind=network", "RuntimeError: "),
    ],
)
def test_a_fault_ends_the_job(tmp_path: Path, record: Record, fault: str, says: str) -> None:
    """The block names the rank, the end of the run has the same cause, and both say that it was injected."""
    job = training(tmp_path, "--logger", "none", "--inject-fault", fault, *(RARE if "evaluation" in fault else []))
    outcome = job.finish()
    assert outcome.status == 1
    line = outcome.last_block.splitlines()[0].removeprefix("FAILED: ").replace(f" on host {HOST}", "")
    cause, _, mark = line.partition("; after injected fault ")
    assert says in cause
    assert mark == fault
    rank = fault[len("rank=")]
    assert f"[rank {rank}] injecting fault {fault}" in outcome.stderr.splitlines()
    (injected,) = job.injected()
    assert (injected["injected"], injected["fault"]) == (True, fault)
    end = read_rows(job)[-1]
    assert end["how"] == "failed"
    assert end["cause"].endswith(f"; after injected fault {fault}")
    (crash,) = tmp_path.glob("logs/*/*/crash/rank_*.txt")
    assert f"; after injected fault {fault}" in crash.read_text()
    kind = re.sub(r".*kind=", "", fault)
    where = fault.removesuffix(f",kind={kind}").replace("=", " ").replace(",", ", ")
    words = cause.partition(" This is typically")[0]  # gloo's advice
    record(f"{kind}, injected", where, outcome, last_words=words)


HANG = "rank=1,phase=rollout,iteration=15,step=5,kind=hang"
HARMLESS = (
    "rank=1,phase=rollout,iteration=2,kind=nan",
    "rank=1,phase=rollout,iteration=3,kind=slow,seconds=0.5",
    "rank=0,phase=save,iteration=4,kind=disk-full",
)
THREE_TIMES = ("rank=1,phase=build,kind=raise,times=2", "rank=0,phase=rollout,iteration=3,step=2,kind=sigkill")


def start_with(faults: tuple[str, ...], *flags: str) -> Callable[[Path], Job]:
    return lambda folder: training(folder, *flags, "--logger", "none", "--inject-fault", *faults)


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Together:
    """Jobs that mostly wait, for a time-out, a slow rank and restarts, at the same time."""
    starts = {
        "hang": start_with(
            (HANG,), "--max-iterations", "20", "--agent.save-interval", "100", "--heartbeat-floor-s", "3"
        ),
        "harmless": start_with(HARMLESS, "--max-iterations", "14", "--env.nan-guard.max-fraction", "0.5"),
        "three times": start_with(THREE_TIMES, "--max-restarts", "5"),
    }
    return run_together(tmp_path_factory.mktemp("waits"), starts)


def test_a_hang_is_found_by_what_the_phase_has_shown(waits: Together, record: Record) -> None:
    """Long before --heartbeat-timeout-s, which is 300 s; a machine that does much else may take longer to be sure."""
    outcome = waits["hang"][1].result()
    assert outcome.status == 1
    block = outcome.last_block
    found = re.match(
        rf"FAILED: rank 1 on host {HOST}: hangs: no progress for [\d.]+ s: phase rollout has taken [\d.]+ s, usually "
        r"[\d.e-]+ s and never more than [\d.e-]+ s \(limit [\d.]+ s; --heartbeat-floor-s\)",
        block,
    )
    assert found is not None, block
    assert "in _hang" in block
    assert re.search(r"\[rank 1\] warning: no progress for [\d.]+ s: phase rollout has taken ", outcome.stderr)
    assert outcome.noticed_s >= 6.0
    words = re.sub(r"phase rollout has.*\(limit", "phase rollout has taken …, usually … (limit", found[0])
    words = words.removeprefix("FAILED: ").replace(f" on host {HOST}", "")
    where = "rank 1, phase rollout, iteration 15; floor 3 s"
    record("hang, injected", where, outcome, last_words=words, patience_s=120.0)


def test_faults_that_do_not_end_a_training(waits: Together) -> None:
    """A world that breaks starts again, a rank that is slow is seen in its times, and a save that fails is reported."""
    job, ended = waits["harmless"]
    outcome = ended.result()
    assert outcome.status == 0, outcome.stderr
    assert [row["fault"] for row in job.injected()] == list(HARMLESS)
    rows = {row["iteration"]: row for row in read_rows(job) if "event" not in row}
    assert {iteration: row["nan_resets"] for iteration, row in rows.items() if row["nan_resets"]} == {2: 1}
    assert "worlds broke in iteration 2 (nan_resets 1) and begin new episodes" in outcome.stdout
    (run_dir,) = job.folder.glob("logs/*/*")
    assert [path.name for path in (run_dir / "nan").iterdir()] == ["iteration_2_rank_1_world_0.npz"]
    assert all(rows[iteration]["busy_time_by_rank_s"][1] >= 0.5 for iteration in range(3, 15))
    assert (
        "model_4.pt could not be written (No space left on device); the last whole one is model_2.pt" in outcome.stdout
    )
    assert sorted(path.name for path in run_dir.glob("*model_*")) == sorted(
        f"model_{iteration}.pt" for iteration in (2, 6, 8, 10, 12, 14)
    )


def test_a_full_disk_at_the_end_is_the_end(tmp_path: Path, record: Record) -> None:
    fault = "rank=0,phase=save,iteration=4,kind=disk-full"
    outcome = training(tmp_path, "--inject-fault", fault, "--logger", "none", ranks=1).finish()
    assert outcome.status == 1
    assert (
        "model_4.pt could not be written (No space left on device); the last whole one is model_2.pt" in outcome.stderr
    )
    assert f"injecting fault {fault}" in outcome.stderr.splitlines()
    assert f"; after injected fault {fault}" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    (run_dir,) = tmp_path.glob("logs/*/*")
    end = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert end["cause"].startswith(f"checkpoint {run_dir}/model_4.pt could not be written")
    words = "train: checkpoint … could not be written (No space left on device)"
    record("disk-full, injected", "rank 0, phase save, last iteration", outcome, last_words=words)


def test_what_fails_at_every_start_and_then_once_more(waits: Together) -> None:
    """A fault comes as often as it is asked for, however often the job is started again from an older checkpoint."""
    job, ended = waits["three times"]
    outcome = ended.result()
    assert outcome.status == 0, outcome.stderr
    rows = read_rows(job)
    first, last = THREE_TIMES
    assert [row["fault"] for row in job.injected()] == [first, first, last]
    causes = [row["cause"] for row in rows if row.get("event") == "restart"]
    assert [cause.partition("; after injected fault ")[2] for cause in causes] == [first, first, last]
    assert [row["iteration"] for row in rows if "event" not in row] == [1, 2, 3, 4]
