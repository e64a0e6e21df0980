"""Start trainings on the nodes of the cluster, and look at what they leave."""

import json
import os
from pathlib import Path
from typing import Any

from support.cluster import PROGRAMS, TASK, TRAIN, Node
from support.jobs import Job, Outcome

FLAGS = ["--gpu-ids", "None", "--log-root", "logs", "--drift-check-interval", "1", "--num-threads", "1"]


def start(node: Node, folder: Path, *command: str, **environ: str) -> Job:
    """Start a command on a node, in a folder that all nodes share."""
    return _start(node, folder, command, environ, exec_it=False)


def start_by_exec(node: Node, folder: Path, *command: str, **environ: str) -> Job:
    """The same, in a process that has imported nothing."""
    return _start(node, folder, command, environ, exec_it=True)


def _start(node: Node, folder: Path, command: tuple[str, ...], environ: dict[str, str], *, exec_it: bool) -> Job:
    own = folder / node.name
    own.mkdir(exist_ok=True)
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    environ = {
        "MJTRAIN_TEST_NOTES": str(notes),
        "MJTRAIN_TEST_MARKER": str(folder / "fault"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PROGRAMS), os.environ.get("PYTHONPATH")))),
        "MJTRAIN_JOB_TOKEN": "of this test",  # needed where each node has a launcher
        **environ,
    }
    return Job(list(command), folder, environ, host=node.pid, out=own, exec_it=exec_it)


def train(task: str = TASK, *flags: str) -> list[str]:
    return [*TRAIN, task, *FLAGS, *flags]


def finish(jobs: list[Job]) -> list[Outcome]:
    """Wait for all; each checks that nothing of it is left."""
    return [job.finish(since=0.0) for job in jobs]


def notes(folder: Path) -> list[dict[str, Any]]:
    """What the ranks say of themselves, by rank."""
    found = [json.loads(path.read_text()) for path in (folder / "notes").iterdir()]
    return sorted(found, key=lambda note: note["RANK"])


def check_run(
    folder: Path, outcomes: list[Outcome], hosts: list[str], *, iterations: int = 4, any_order: bool = False
) -> None:
    """Every rank trained with its own seed, in one run directory; the drift check compared them bit by bit."""
    for outcome in outcomes:
        assert outcome.status == 0, outcome.stderr
    ranks = notes(folder)
    found = [note["host"] for note in ranks]
    assert found == hosts or (any_order and found == hosts[::-1])
    assert [note["seed"] for note in ranks] == list(range(len(hosts)))
    (run,) = folder.glob("logs/*/*")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "event" not in row]
    assert [row["iteration"] for row in rows] == list(range(1, iterations + 1))
    assert {row["world_size"] for row in rows} == {len(hosts)}
    assert (run / f"model_{iterations}.pt").exists()
    said = "".join(outcome.stderr for outcome in outcomes)
    assert said.count("run directory: ") == 1
