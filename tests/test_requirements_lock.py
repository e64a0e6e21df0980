"""requirements.lock pins what is installed by hashes. It must be what the resolution gives, and name no index."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"


def read_command() -> list[str]:
    """The command that has made the file, as its second line says."""
    line = LOCK.read_text().splitlines()[1]
    command = shlex.split(line.removeprefix("#"))
    assert command[:2] == ["uv", "export"]
    return command


def test_it_is_what_the_resolution_gives(tmp_path: Path) -> None:
    """The command of its header gives the same file again, from pyproject.toml and the uv.lock of the environment."""
    (tmp_path / "tasks").mkdir()
    for name in ("pyproject.toml", "tasks/pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    command = read_command()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / LOCK.name).read_text() == LOCK.read_text(), f"out of date; run: {shlex.join(command)}"


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
    assert not {"mjtrain", "mjtrain-tasks"} & set(names)
