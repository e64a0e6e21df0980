"""requirements.lock pins what is installed by hashes. It must be what pyproject.toml asks for, and name no index."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from support.machine import patience
from support.tiers import MEMBERS, PACKAGES

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"

proves_the_lock = pytest.mark.proves(*PACKAGES)


def read_command() -> list[str]:
    """The command that has made the file, as its second line says."""
    line = LOCK.read_text().splitlines()[1]
    command = shlex.split(line.removeprefix("#"))
    assert command[:3] == ["uv", "pip", "compile"]
    return command


def compile_again(folder: Path) -> str:
    """What the command of the file's header makes of `pyproject.toml`, which keeps the pins that are still allowed."""
    for member in MEMBERS:
        (folder / member).mkdir(exist_ok=True)
    for name in ("pyproject.toml", *(f"{member}/pyproject.toml" for member in MEMBERS), LOCK.name):
        if not (folder / name).exists():
            shutil.copy(ROOT / name, folder / name)
    done = subprocess.run(read_command(), cwd=folder, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stderr
    return (folder / LOCK.name).read_text()


@proves_the_lock
def test_it_is_what_pyproject_asks_for(tmp_path: Path) -> None:
    """Its pins satisfy `pyproject.toml` and are complete; a package that an index shows late changes nothing."""
    assert compile_again(tmp_path) == LOCK.read_text(), f"out of date; run: {shlex.join(read_command())}"


@proves_the_lock
@pytest.mark.parametrize(
    ("written", "instead", "line"),
    [
        pytest.param('"tyro>=1.0"', '"humanize>=4.10", "tyro>=1.0"', "humanize==", id="one-package-more"),
        pytest.param('"rich>=13.7"', '"rich>=13.7,<14"', "rich==", id="another-version"),
    ],
)
def test_a_changed_dependency_shows(tmp_path: Path, written: str, instead: str, line: str) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert text.count(written) == 1
    (tmp_path / "pyproject.toml").write_text(text.replace(written, instead))
    found = [pin for pin in compile_again(tmp_path).splitlines() if pin.startswith(line)]
    assert found
    assert found[0] not in LOCK.read_text()


def test_every_line_is_a_version_or_a_hash() -> None:
    """No address of an index, no path of a machine, and no package without a hash."""
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    entries = re.split(r"(?<!\\)\n", "\n".join(lines))
    for entry in entries:
        pin, *hashes = re.split(r" *\\\n +", entry)
        assert re.fullmatch(r"[a-z0-9._-]+==[a-z0-9.+!]+( ; [a-z_0-9 '.=<>!()A-Z]+)?", pin), pin
        assert hashes, f"{pin} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", value) for value in hashes), pin
    names = [entry.partition("==")[0] for entry in entries]
    assert {"torch", "mujoco", "warp-lang", "torchrunx", "hatchling"} <= set(names)
    assert not {"mjtrain", *(f"mjtrain-{name}" for name in MEMBERS)} & set(names)
