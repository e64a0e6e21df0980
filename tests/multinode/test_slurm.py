"""The template for Slurm, both ways, on a real one."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import PROGRAMS, PYTHON, TASK, Cluster
from support.machine import wait_until
from support.multinode_jobs import FLAGS, notes
from support.slurm import Slurm, why_no_slurm

ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
TEMPLATES = PROGRAMS.parents[1] / "deploy" / "slurm"

pytestmark = pytest.mark.proves(
    "deploy/slurm",
    "requirements.lock",
    "src/mjtrain/api.py",
    *[f"src/mjtrain/cli/{name}.py" for name in ("doctor", "sweep", "train")],
    "src/mjtrain/config/launch.py",
    *[f"src/mjtrain/{name}" for name in ("launcher", "runs", "runtime", "tools/doctor", "tools/sweep", "training")],
    *[f"tests/multinode/{name}.py" for name in ("conftest", "multinode_faults", "rank_notes", "task")],
    *[f"tests/support/{name}.py" for name in ("cluster", "machine", "multinode_jobs", "slurm")],
)


@pytest.fixture(scope="module")
def slurm(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    reason = why_no_slurm()
    if reason is not None:
        pytest.skip(reason)
    slurm = Slurm(cluster, tmp_path_factory.mktemp("slurm"))
    yield slurm
    slurm.stop()


def write_script(folder: Path, *flags: str, second_way: bool) -> Path:
    """Take the template as it is, except for the task, the GPUs, and where things are."""
    *lines, first, _, _, second = (TEMPLATES / "train.sbatch").read_text().splitlines()
    command = second.removeprefix("# ") if second_way else first
    train = f"{Path(PYTHON).parent}/train {TASK} {' '.join([*FLAGS, *flags])}"
    command = command.replace(".venv/bin/train Quadruped-Velocity-Flat", train).replace("--gpu-ids all", "")
    lines = [line for line in lines if not re.match(r"#SBATCH --(gpus|ntasks|cpus|time|signal)", line)]
    lines += ["#SBATCH --ntasks-per-node=1", "#SBATCH --cpus-per-task=2", "#SBATCH --time=10"]
    settings = {"MJTRAIN_TEST_NOTES": folder / "notes", "MJTRAIN_TEST_MARKER": folder / "fault", "PYTHONPATH": PROGRAMS}
    exports = [f"export {name}={value}" for name, value in settings.items()]
    (folder / "notes").mkdir()
    script = folder / "train.sbatch"
    script.write_text("\n".join([*lines, *exports, "export MJTRAIN_TEST_SLOW=0.2", command]) + "\n")
    return script


def check_run(folder: Path, job: str, shown: dict[str, str], said: str, iterations: int) -> None:
    assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), said
    (run,) = folder.glob("logs/*/*")
    assert run.name.endswith(f"slurm-{job}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"event"' not in line]
    assert [row["iteration"] for row in rows] == list(range(1, iterations + 1))
    assert {row["world_size"] for row in rows} == {2}
    # Slurm sorts the nodes by name.
    assert {(note["RANK"], note["host"], note["seed"]) for note in notes(folder)} == {(0, "alpha", 0), (1, "zeta", 1)}
    assert {note["cores"] for note in notes(folder)} == {2}  # by default srun binds each task to one core
    assert "SLURM_CPUS_PER_TASK" not in said


@pytest.mark.supports("training", start="Slurm, one task per rank", hosts="2")
def test_srun_and_a_requeue(slurm: Slurm, tmp_path: Path) -> None:
    """A signal as before the time limit: the run saves, is queued again, and resumes in the same run directory."""
    job = slurm.submit(write_script(tmp_path, "--max-iterations", "30", second_way=False))
    log = tmp_path / f"slurm-{job}.log"

    def is_at_work() -> bool:
        said = log.read_text() if log.exists() else ""
        assert slurm.show(job)["JobState"] in ("PENDING", "CONFIGURING", "RUNNING"), said
        return "iteration 3/" in said

    wait_until(is_at_work, f"{log} has iteration 3")
    slurm.run("scancel", "--signal=USR1", job)
    assert slurm.wait_for(job, "PENDING")["Restarts"] == "1"
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+10")  # seconds, instead of two minutes
    shown = slurm.wait_for(job, *ENDS)
    said = log.read_text()
    assert f"requeueing Slurm job {job}" in said
    assert "resuming from " in said
    check_run(tmp_path, job, shown, said, 30)


@pytest.mark.supports("training", start="Slurm, one command", hosts="2")
def test_one_command_for_all_nodes(slurm: Slurm, tmp_path: Path) -> None:
    job = slurm.submit(write_script(tmp_path, second_way=True))
    shown = slurm.wait_for(job, *ENDS)
    check_run(tmp_path, job, shown, (tmp_path / f"slurm-{job}.log").read_text(), 4)


def write_sweep_script(folder: Path) -> Path:
    """Take the template of a sweep as it is, except for the GPUs, how many trials there are, and how long they take."""
    flags = "--num-envs 16 --max-iterations 40 --agent.save-interval 2"
    text = (TEMPLATES / "sweep.sbatch").read_text()
    for mine, theirs in (
        (f"{Path(PYTHON).parent}/sweep Cartpole-Balance", ".venv/bin/sweep Quadruped-Velocity-Flat"),
        ("--trials 4 --jobs 1 --metric mean_reward --pruner none", "--trials 64"),
        (f'$SLURM_ARRAY_JOB_ID" -- {flags} &', '$SLURM_ARRAY_JOB_ID" &'),
    ):
        assert theirs in text
        text = text.replace(theirs, mine)
    lines = [line for line in text.splitlines() if not re.match(r"#SBATCH --(array|gpus|cpus|time|signal)", line)]
    own = ["#SBATCH --array=0-1", "#SBATCH --nodes=1", "#SBATCH --time=10"]
    script = folder / "sweep.sbatch"
    script.write_text("\n".join([lines[0], *own, *lines[1:]]) + "\n")
    return script


def read_sweep(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("sweeps/*/sweep.json")
    return json.loads(path.read_text())


def test_a_sweep_of_an_array_goes_on_when_a_node_is_lost(slurm: Slurm, tmp_path: Path) -> None:
    """A process of the sweep on each node; one is killed for good, and the other one takes up what it ran.

    Before that, the other one gets the signal that comes before the time limit: it is queued again.
    """
    job = slurm.submit(write_sweep_script(tmp_path))
    logs = [tmp_path / f"slurm-{job}-{index}.log" for index in range(2)]
    wait_until(lambda: all(log.exists() and " begins: " in log.read_text() for log in logs), "both tasks begin a trial")
    slurm.run("scancel", "--batch", "--signal=USR1", f"{job}_1")
    assert slurm.wait_for(f"{job}_1", "PENDING")["Restarts"] == "1"
    stopped = logs[1].read_text()
    slurm.run("scontrol", "update", f"JobId={job}_1", "StartTime=now+5")  # seconds, instead of two minutes
    slurm.run("scancel", "--signal=KILL", "--full", f"{job}_0")
    slurm.wait_for(f"{job}_0", "FAILED", "CANCELLED")
    shown = slurm.wait_for(f"{job}_1", *ENDS)
    assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), logs[1].read_text()
    summary = read_sweep(tmp_path)
    assert summary["counts"] == {"complete": 4, "pruned": 0, "failed": 0, "paused": 0, "running": 0}
    said = [log.read_text() for log in logs]
    lost = set(re.findall(r"trial (\d+) (?:begins|continues)", said[0])) - set(
        re.findall(r"trial (\d+) complete", said[0])
    )
    taken_up = set(re.findall(r"trial (\d+) continues", said[1]))
    assert lost <= taken_up <= lost | set(re.findall(r"trial (\d+) begins", stopped))


def test_doctor(slurm: Slurm, tmp_path: Path) -> None:
    """As one task per rank, and as one command that asks the nodes of the allocation."""
    doctor = f"{PYTHON} -m mjtrain.cli.doctor --gpu-ids None --num-threads 1 --skip kernels rendering"
    script = tmp_path / "doctor.sbatch"
    lines = ["#!/bin/bash", "#SBATCH --nodes=2 --ntasks-per-node=1", "#SBATCH --output=slurm-%j.log"]
    lines += [f"srun {doctor} --json tasks.json", f"{doctor} ranks --hostnames slurm --json hosts.json"]
    script.write_text("\n".join(lines) + "\n")
    job = slurm.submit(script)
    slurm.wait_for(job, *ENDS)
    said = (tmp_path / f"slurm-{job}.log").read_text()
    assert said.count("nothing is wrong") + said.count("a run works") == 2, said
    tasks, hosts = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("tasks", "hosts")]
    for answer in (tasks, hosts):
        places = [one["place"] for one in answer["findings"] if one["check"] == "log root"]
        assert sorted(places) == ["alpha", "zeta"]
        assert not answer["would_fail"]
    (shared,) = [one for one in tasks["findings"] if one["check"] == "shared folder"]
    assert (shared["result"], shared["figure"]) == ("ok", "all 2 hosts see the same log root")
