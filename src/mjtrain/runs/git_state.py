"""Which version of the user's code ran."""

import subprocess
from pathlib import Path
from typing import Any


def read_git_state(folder: Path) -> dict[str, Any] | None:
    """Ask git about the repository around a folder.

    Returns:
        commit, branch (None where none is checked out) and whether tracked files were changed since; None where there
        is no repository, no commit or no git.
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
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
