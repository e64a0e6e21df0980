"""Jobs that are forks of a process with all imports have the processes that an executed job has."""

import re
import signal
from pathlib import Path
from typing import Any

from support.jobs import Job, function
from support.machine import read_proc

ROLES = re.compile(rb"mjtrain\.launcher\.job\.(reaper|spawner)|functions\.py")


def describe(job: Job) -> list[dict[str, Any]]:
    """Say of each process below the command what it is, where it hangs, and what it was given."""
    pids = set(job.processes()) - {job.process.pid}
    return sorted((describe_process(pid) for pid in pids), key=repr)


def describe_process(pid: int) -> dict[str, Any]:
    found = {
        "role": role_of(pid),
        "parent": role_of(stat_of(pid)[0]),
        "leads its session": stat_of(pid)[1] == pid,
        "variables": {entry.partition(b"=")[0] for entry in read_proc(pid, "environ").split(b"\0")},
        "folder": str(Path(f"/proc/{pid}/cwd").readlink().name),
    }
    status = read_proc(pid, "status").decode()
    found |= dict(re.findall(r"^(Umask|SigBlk|SigIgn|SigCgt):\s*(.*)$", status, re.MULTILINE))
    if found["role"] == "reaper":
        found["descriptors"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return found


def stat_of(pid: int) -> tuple[int, int]:
    """Return the parent and the session."""
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]), int(fields[3])


def role_of(pid: int) -> str:
    words = read_proc(pid, "cmdline")
    named = ROLES.search(words)
    assert named is not None, words
    return (named[1] or b"command").decode()


def test_a_forked_job_is_what_an_executed_one_is(tmp_path: Path) -> None:
    seen = []
    for exec_it in (False, True):
        folder = tmp_path / str(exec_it) / "job"
        folder.mkdir(parents=True)
        job = function(folder, "save_when_asked", exec_it=exec_it)
        job.wait_for("at work")
        seen.append(describe(job))
        job.finish(job.kill(signal.SIGTERM))
    forked, executed = seen
    assert [row["role"] for row in forked].count("reaper") == 1
    assert forked == executed
