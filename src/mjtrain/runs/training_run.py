"""A run that is about to be trained, as all its processes see it, with the version of the user's code."""

import subprocess
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mjtrain.config import EnvConfig, TrainConfig, to_plain
from mjtrain.runs.robot import record_robot
from mjtrain.runs.run_dir import read_params, save_params
from mjtrain.runs.sources import replace_data, save_code, save_data

_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null")
"""Without the programs that a repository's own configuration may name."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """What the leader of a job has decided; it travels to all processes of the job."""

    run_dir: Path
    """Where the run lives: an existing directory, absolute."""

    robot: str | None = None
    """The run's own copy of its robot, if the MJCF file that was asked for is missing."""

    motions: dict[str, str] = field(default_factory=dict)
    """Files of motions that are named by a place, by its name (see `runs.motion_places`): the run's copy, if any."""

    resume: str | None = None
    """What is resumed: the run directory or the URL of a stored run. None for a new run."""

    iteration: int = 0
    """Iterations that it has, where its directory was found or made."""

    session: str = ""
    """Session of the claim to its directory, see `runs.claim`; empty for none."""

    restarted: bool = False
    """Whether something outside (torchrun, Slurm) has started the job again; then the last checkpoint counts."""

    record: dict[str, Any] = field(default_factory=dict)
    """Plain values for params/launch.yaml: how the run was started, when, and with which versions."""

    code: dict[str, str] = field(default_factory=dict)
    """Python files of the task, which the run keeps; see `runs.sources.list_code`."""

    @property
    def origins(self) -> dict[str, str]:
        """The names of the places, by file."""
        return {file: name for name, file in self.motions.items()}

    def to_plain(self) -> dict[str, Any]:
        """Return the same as JSON values."""
        return {**asdict(self), "run_dir": str(self.run_dir)}

    @classmethod
    def from_plain(cls, content: dict[str, Any]) -> "TrainingRun":
        """Return the run that `to_plain` gave; other keys are left out."""
        run = cls(**{key: content[key] for key in cls.__dataclass_fields__ if key in content})
        return replace(run, run_dir=Path(run.run_dir))


def record_run(run: TrainingRun, config: TrainConfig, left_out: tuple[str, ...] = ()) -> list[str]:
    """Write down what is trained, once a rank has accepted the request; return a line for each copy that is missing."""
    env, notices, data = config.env, [], {}
    if isinstance(env, EnvConfig):
        robot, notices = record_robot(run.run_dir, env.robot)
        env = replace(env, robot=robot)
        data, lines = save_data(run.run_dir, env, run.origins)
        notices = [*notices, *lines]
        env = replace_data(env, {file: name for file, name in run.origins.items() if name in data})
    save_code(run.run_dir, run.code)
    launch = {**run.record, **({"left_out": list(left_out)} if left_out else {})}
    params = {"env": to_plain(env), "agent": to_plain(config.agent), "learner": to_plain(config.learner)}
    if data or read_params(run.run_dir, "data"):  # an earlier start may have used data
        params["data"] = data
    save_params(run.run_dir, **params, launch=launch)  # at once: each call that changes a file keeps those of a start
    return notices


def read_git_state(folder: Path) -> dict[str, Any] | None:
    """Ask git about the repository around a folder.

    Returns:
        commit, branch (None where none is checked out) and whether tracked files were changed since; None where there
        is not a repository, no commit or no git.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "branch": _git(folder, "symbolic-ref", "--short", "--quiet", "HEAD"),
        "dirty": None if changes is None else changes != "",
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            [*_GIT, *arguments], cwd=folder, capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
