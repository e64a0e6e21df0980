"""What a training is given: its run as JSON, and the state of git that is recorded."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import yaml

from mjtrain.api import make_train_config
from mjtrain.config import RewardTerm
from mjtrain.mdp.rewards import is_alive
from mjtrain.runs.run_dir import load_params
from mjtrain.runs.training_run import TrainingRun, read_git_state, record_run


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


def test_each_start_is_kept_once_with_its_data(tmp_path: Path) -> None:
    clip, run_dir, config = tmp_path / "clip.npz", tmp_path / "run", make_train_config("Cartpole-Balance")
    run_dir.mkdir()
    for started, content in enumerate(("first", "second", None)):
        params = {}
        if content is not None:
            clip.write_text(content)
            params = {"file": str(clip)}
        env = replace(config.env, rewards={"near": RewardTerm(func=is_alive, weight=1.0, params=params)})
        assert record_run(TrainingRun(run_dir=run_dir, record={"started": started}), replace(config, env=env)) == []
    previous = sorted((run_dir / "params" / "previous").iterdir())
    kept = [
        {name: yaml.safe_load((path / f"{name}.yaml").read_text()) for name in ("launch", "data")} for path in previous
    ]
    assert [start["launch"] for start in kept] == [{"started": 0}, {"started": 1}]
    assert [start["data"][str(clip)]["copy"] for start in kept] == ["data/clip.npz", "data/copy-2/clip.npz"]
    assert load_params(run_dir, "data") == {}


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
