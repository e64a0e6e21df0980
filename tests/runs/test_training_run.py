"""What a training is given: its run as JSON, and the state of git that is recorded."""

import json
import subprocess
from pathlib import Path

from mjtrain.runs.training_run import TrainingRun, read_git_state


def test_a_run_travels_as_json() -> None:
    run = TrainingRun(
        run_dir=Path("/logs/cartpole/1"),
        resume="s3://bucket/one",
        restarted=True,
        code={"package/task.py": "/package/task.py"},
        record={"started": "today", "run": {"num_envs": 4}},
    )
    for each in (run, TrainingRun(run_dir=Path("/logs/cartpole/2"))):
        assert TrainingRun.from_plain(json.loads(json.dumps(each.to_plain()))) == each


def test_what_is_no_field_is_left_out() -> None:
    """A message of the launcher carries its own keys beside those of the run."""
    run = TrainingRun(run_dir=Path("/logs/1"))
    assert TrainingRun.from_plain({**run.to_plain(), "kind": "choice"}) == run


GIT = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run([*GIT, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_commit_branch_and_changes(tmp_path: Path) -> None:
    assert read_git_state(tmp_path) is None
    git(tmp_path, "init", "-q", "-b", "trunk")
    assert read_git_state(tmp_path) is None
    (tmp_path / "code.py").write_text("1")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-q", "-m", "begin")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").touch()
    assert read_git_state(tmp_path) == {"commit": commit, "branch": "trunk", "dirty": False}
    (tmp_path / "code.py").write_text("2")
    git(tmp_path, "checkout", "-q", "--detach")
    assert read_git_state(tmp_path) == {"commit": commit, "branch": None, "dirty": True}


def test_programs_that_the_repository_names_are_not_run(tmp_path: Path) -> None:
    """Its configuration may be that of somebody else's archive."""
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "begin")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    for hook in ("post-index-change", "fsmonitor-watchman"):
        (tmp_path / ".git" / "hooks" / hook).symlink_to(program)
    git(tmp_path, "config", "core.fsmonitor", str(program))
    assert read_git_state(tmp_path) is not None
    assert not (tmp_path / "ran").exists()
