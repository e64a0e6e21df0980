"""Sweeps with real trainings: killed, stopped, with trials that fail, hang, report no number, and fill the disk."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mjtrain
from mjtrain.runs.run_dir import load_params
from mjtrain.tools.sweep.run_sweep import run_sweep
from support import commands
from support.jobs import BIN, Job
from support.machine import read_proc, wait_until
from support.students import write_student_task
from support.sweep_plans import plan_sweep

TASK = f"{Path(__file__).parent / 'task.py'}:make"
MODE = "env.curriculum.quality.params.mode"
METRIC = ("--metric", "curriculum/quality")
ON_CORE = (
    "import os, sys; os.sched_setaffinity(0, [int(sys.argv.pop(1))]);"
    "from mjtrain.cli.sweep import main; sys.exit(main())"
)
"""The command on one core."""


def sweep(folder: Path, *args: str, **environ: str) -> Job:
    return Job([str(BIN / "sweep"), *args], folder, environ)


def refuse(folder: Path, *args: str) -> tuple[int, str]:
    """Make a request that is refused; return the status and what the command prints."""
    done = commands.run([BIN / "sweep", *args], cwd=folder)
    return done.returncode, done.stderr


def finish(job: Job) -> Any:
    return job.finish(since=0.0, timeout_s=90.0)


def read_summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "sweep.json").read_text())


def list_trainings(job: Job) -> list[int]:
    """Process ids of the commands that train."""
    return [pid for pid in job.processes() if b"mjtrain.cli.train" in read_proc(pid, "cmdline").split(b"\0")]


def wait_until_or_end(job: Job, condition: Callable[[], object], what: str) -> None:
    """Wait until a condition is true, while the command runs."""

    def holds() -> bool:
        assert job.process.poll() is None, (job.folder / "stderr").read_text()
        return bool(condition())

    wait_until(holds, what)


def wait_for_checkpoint(job: Job, folder: Path) -> Path:
    """Wait until the first trial has saved; return its run directory."""
    saved = "runs/*/*_trial_0000_*/model_*.pt"
    wait_until_or_end(job, lambda: list(folder.glob(saved)), "the first trial has saved")
    return next(folder.glob(saved)).parent


def read_iterations(run_dir: Path) -> list[int]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["iteration"] for line in lines if '"event"' not in line]


def test_kills_lose_nothing_and_the_same_command_goes_on(tmp_path: Path) -> None:
    folder, cores = tmp_path / "search", sorted(os.sched_getaffinity(0))
    search = ("--param", "agent.algorithm.learning-rate", "log", "1e-4", "1e-2", "--pruner", "none")
    command = [TASK, *search, "--trials", "2", "--metric", "mean_reward", "--sweep-dir", "search"]
    command += ["--", "--num-envs", "16", "--max-iterations", "40", "--agent.save-interval", "2"]
    hold = tmp_path / "hold"
    hold.touch()
    job = sweep(tmp_path, *command, MJTRAIN_TEST_HOLD=str(hold))
    run_dir = wait_for_checkpoint(job, folder)
    wait_until_or_end(job, lambda: len(list_trainings(job)) == min(2, len(cores)), "as many trainings as fit")
    trainings = list_trainings(job)
    assert [len(os.sched_getaffinity(pid)) for pid in trainings] == [max(1, len(cores) // 2)] * len(trainings)
    for pid in trainings:
        os.kill(pid, signal.SIGSTOP)  # the reaper ends those that are stopped, too
    assert refuse(tmp_path, *command) == (
        2,
        f"sweep: --sweep-dir {folder}: another sweep is at work there; with --shared processes may share one sweep\n",
    )
    job.kill(signal.SIGKILL)
    assert finish(job).status == -signal.SIGKILL
    assert 0 < len(read_iterations(run_dir)) < 40

    job = sweep(tmp_path, *command, MJTRAIN_TEST_HOLD=str(hold))
    job.wait_for(" continues: learning-rate ")
    said = folder / "output" / "trial_0000_seed_0.stderr"
    job.wait_for_file(said)
    wait_until_or_end(job, lambda: "resuming from" in said.read_text(), "the first trial resumes")
    job.kill(signal.SIGINT)
    job.wait_for("running trials save and end")
    hold.unlink()
    outcome = finish(job)
    assert outcome.status == 130
    assert "running trials save and end" in outcome.stdout
    assert outcome.stderr == "sweep: stopped by SIGINT\n"

    job = sweep(tmp_path, *command)
    wait_until_or_end(job, lambda: list_trainings(job), "a training")
    os.kill(list_trainings(job)[0], signal.SIGKILL)
    outcome = finish(job)
    assert outcome.status == 0, outcome.stderr
    summary = read_summary(folder)
    assert summary["counts"] == {"complete": 1, "pruned": 0, "failed": 1, "paused": 0, "running": 0}
    (failed,) = (trial for trial in summary["trials"] if trial["state"] == "failed")
    assert failed["cause"] == "was killed by SIGKILL"
    (run,) = summary["best"]["runs"]
    assert read_iterations(folder / run) == list(range(1, 41))
    assert summary["best"]["env_steps"] == 40 * 16 * 24
    begun = [path.name.partition("_trial_")[2] for path in folder.glob("runs/*/*")]
    assert len(set(begun)) == len(begun), "a trial began a second run"
    assert f"  {summary['best']['command']}\n" in outcome.stdout
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")

    command[command.index("1e-2")] = "1e-1"
    assert refuse(tmp_path, *command) == (
        2,
        f"sweep: --sweep-dir {folder}: holds a sweep with --param agent.algorithm.learning-rate log 0.0001 0.01, "
        "not agent.algorithm.learning-rate log 0.0001 0.1; give another --sweep-dir\n",
    )


def test_a_trial_that_goes_wrong_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    modes = ("fine", "low", "raise", "nan", "stop")
    options = ["--sampler", "grid", "--trials", "99", "--jobs", "1", "--stall-timeout-s", "15", "--sweep-dir", "search"]
    outcome = finish(sweep(tmp_path, TASK, "--param", MODE, "choice", *modes, *METRIC, *options))
    assert outcome.status == 0, outcome.stderr
    summary = read_summary(tmp_path / "search")
    trials = {trial["params"][MODE]: trial for trial in summary["trials"]}
    assert len(summary["trials"]) == len(trials) == 5
    assert {mode: trial["state"] for mode, trial in trials.items()} == {
        "fine": "complete",
        "low": "pruned",
        "raise": "failed",
        "nan": "failed",
        "stop": "failed",
    }
    assert trials["raise"]["cause"] == "ValueError: the arm fell off"
    assert trials["nan"]["cause"] == "curriculum/quality is not a finite number at the end (iteration 12)"
    assert trials["stop"]["cause"] == "no iteration for 15 s (--stall-timeout-s)"
    assert (trials["fine"]["value"], trials["low"]["value"]) == (1.0, 0.5)
    # Pruning ended the run like a signal does: saved, and recorded as stopped.
    (run,) = trials["low"]["runs"]
    run_dir = tmp_path / "search" / run
    iterations = read_iterations(run_dir)
    assert 1 <= len(iterations) < 12
    assert (run_dir / f"model_{iterations[-1]}.pt").exists()
    assert '"how": "stopped", "signal": "SIGTERM"' in (run_dir / "metrics.jsonl").read_text()
    # The best one waited at the rung until all others had come, and continued from its checkpoint.
    (run,) = trials["fine"]["runs"]
    assert read_iterations(tmp_path / "search" / run) == list(range(1, 13))
    assert f"trial {trials['fine']['number']} paused after iteration 3: curriculum/quality 1 | " in outcome.stdout
    assert f"trial {trials['fine']['number']} continues: mode fine\n" in outcome.stdout
    assert f"trial {trials['raise']['number']} failed: ValueError: the arm fell off | " in outcome.stdout


def test_a_trial_that_hangs_before_its_first_iteration_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """The limit of the other iterations is the default, half an hour."""
    search = ("--param", "agent.algorithm.learning-rate", "log", "1e-4", "1e-2", "--trials", "1", *METRIC)
    job = sweep(tmp_path, TASK, *search, "--start-timeout-s", "5", "--sweep-dir", "s", "--", f"--{MODE}", "stop_early")
    outcome = finish(job)
    assert outcome.status == 1
    cause = "no new iteration within 5 s of its start (--start-timeout-s)"
    assert f"trial 0 failed: {cause}" in outcome.stderr
    (trial,) = read_summary(tmp_path / "s")["trials"]
    assert (trial["state"], trial["cause"], trial["iterations"]) == ("failed", cause, 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "search"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_stops_the_sweep_and_the_same_command_goes_on(tmp_path: Path, small_disk: Path) -> None:
    command = [TASK, "--param", MODE, "choice", "fine", "fair", *METRIC, "--trials", "1", "--sweep-dir", "search"]
    command += ["--", "--agent.save-interval", "1", "--keep-checkpoints", "20"]
    outcome = finish(sweep(tmp_path, *command))
    assert outcome.status == 1, outcome.stdout
    (line,) = outcome.stderr.splitlines()
    assert "No space left on device" in line
    assert "rerun the same command to resume the sweep when there is room" in line
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    outcome = finish(sweep(tmp_path, *command))
    assert outcome.status == 0, outcome.stderr
    assert "trial 0 continues: mode " in outcome.stdout
    summary = read_summary(small_disk)
    assert summary["counts"] == {"complete": 1, "pruned": 0, "failed": 0, "paused": 0, "running": 0}
    (run,) = summary["best"]["runs"]
    assert read_iterations(small_disk / run) == list(range(1, 13))


def test_a_trial_has_several_seeds(tmp_path: Path) -> None:
    command = ["Cartpole-Balance", "--param", "agent.algorithm.entropy-coef", "uniform", "0", "0.01", "--trials", "1"]
    command += ["--seeds-per-trial", "2", "--", "--num-envs", "16", "--max-iterations", "2"]
    outcome = finish(sweep(tmp_path, *command))
    assert outcome.status == 0, outcome.stderr
    folder = tmp_path / "sweeps" / "cartpole_balance"
    best = read_summary(folder)["best"]
    finals = []
    for run in best["runs"]:
        rows = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
        finals.append([row["eval/return"] for row in rows if "eval/return" in row][-1])
    assert len(set(finals)) == 2
    assert best["seed_values"] == finals
    assert best["value"] == pytest.approx(sum(finals) / 2)
    assert best["env_steps"] == 2 * 2 * 16 * 24
    seeds = {path.read_text().partition("\n  seed: ")[2].partition("\n")[0] for path in folder.rglob("launch.yaml")}
    assert seeds == {"0", "1000"}

    # As if the sweep had been killed before it could tell the study how the trial ended, and a signal had prevented the
    # last evaluation of its first run.
    journal = folder / "study.jsonl"
    *lines, _ = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines))
    metrics = folder / best["runs"][0] / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows[1] = {key: value for key, value in rows[1].items() if not key.startswith("eval")}
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = finish(sweep(tmp_path, *command))
    assert outcome.status == 0, outcome.stderr
    assert "trial 0 continues: " in outcome.stdout
    assert read_summary(folder)["best"] == best
    begun = [path.name.partition("_trial_")[2] for path in folder.glob("runs/*/*")]
    assert len(set(begun)) == len(begun), "a trial began a second run"


def test_two_processes_share_a_sweep_and_one_is_killed(tmp_path: Path) -> None:
    """On a core each, as on a host each; what the killed one ran is taken up by the other."""
    folder, cores = tmp_path / "search", sorted(os.sched_getaffinity(0))
    options = ["--pruner", "none", "--trials", "3", "--metric", "mean_reward", "--sweep-dir", str(folder), "--shared"]
    command = [TASK, "--param", "agent.algorithm.learning-rate", "log", "1e-4", "1e-2", *options]
    command += ["--", "--num-envs", "16", "--max-iterations", "40", "--agent.save-interval", "2"]

    hold = tmp_path / "hold"
    hold.touch()
    environ = {"MJTRAIN_TEST_HOLD": str(hold)}

    def start(name: str, core: int) -> Job:
        (tmp_path / name).mkdir()
        return Job([sys.executable, "-c", ON_CORE, str(core), *command], tmp_path / name, environ)

    first = start("first", cores[0])
    run_dir = wait_for_checkpoint(first, folder)
    for pid in list_trainings(first):
        os.kill(pid, signal.SIGSTOP)  # the reaper ends one that is stopped, too
    second = start("second", cores[-1])
    if len(cores) > 1:
        second.wait_for("trial 1 begins")
    first.kill(signal.SIGKILL)
    assert finish(first).status == -signal.SIGKILL
    assert 0 < len(read_iterations(run_dir)) < 40
    hold.unlink()
    outcome = finish(second)
    assert outcome.status == 0, outcome.stderr
    assert "trial 0 continues: learning-rate " in outcome.stdout
    summary = read_summary(folder)
    assert summary["counts"] == {"complete": 3, "pruned": 0, "failed": 0, "paused": 0, "running": 0}
    begun = [path.name.partition("_trial_")[2] for path in folder.glob("runs/*/*")]
    assert len(set(begun)) == len(begun), "a trial began a second run"
    for trial in summary["trials"]:
        (run,) = trial["runs"]
        assert read_iterations(folder / run) == list(range(1, 41))


def test_new_trials_learn_from_the_teacher_of_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer run of it has finished when the sweep is started again."""
    monkeypatch.chdir(tmp_path)
    student, teacher = write_student_task(tmp_path)
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    first, _ = mjtrain.train(teacher, launch=launch, logger="none").run_dir, run_sweep(plan_sweep(student))
    newer = mjtrain.train(teacher, launch=launch, logger="none").run_dir
    plan = plan_sweep(student, trials=2)
    assert plan.teacher == str(newer)
    assert [trial.state for trial in run_sweep(plan)] == ["complete", "complete"]
    taught = [load_params(path, "agent")["algorithm"]["teacher_run"] for path in plan.log_root.glob("*/*_trial_*")]
    assert taught == [str(first / "model_1.pt")] * 2
