"""The command init: a project that trains, tests and is listed as soon as it is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mjtrain.cli import init
from mjtrain.cli.init import main
from support.machine import patience

BIN = Path(sys.executable).parent


def write(folder: Path, *args: str) -> None:
    main([*args, "--folder", str(folder)])


def test_names_follow_the_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "my work", "Lab-arms")
    project = tmp_path / "my work" / "Lab-arms"
    assert f"  cd '{project}'\n  uv run train Lab-Arms-Pendulum\n" in capsys.readouterr().out
    assert sorted(str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()) == [
        ".gitignore",
        "README.md",
        "pyproject.toml",
        "src/lab_arms/__init__.py",
        "src/lab_arms/pendulum.py",
        "src/lab_arms/pendulum.xml",
        "tests/test_pendulum.py",
    ]
    text = "".join(path.read_text() for path in project.rglob("*") if path.is_file())
    assert "obots-" not in text
    assert "my_robots" not in text
    assert 'name = "lab-arms"' in text
    assert "[tool.uv.sources]" in text  # mjtrain is not installed from an index here, and uv must find this one


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["3d-robots"], "3d-robots: give a name of letters"),
        (["my_arm_"], "my_arm_: give a name of letters"),
        (["my robots"], "my robots: give a name of letters"),
        (["class"], "class: give a name of letters"),
        (["mjtrain"], "mjtrain: is the name of another package"),
        (["mjtrain-tasks"], "mjtrain-tasks: is the name of another package"),
        (["json"], "json: is the name of another package"),
        (["NumPy"], "NumPy: is the name of another package"),
        (["there"], "exists already"),
        (["--folder"], "the name comes first"),
        (["new", "--folder", "file"], "cannot be written"),
    ],
)
def test_one_line_and_status_2(
    args: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("init: ")
    assert words in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there"]


def test_what_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = shutil.copytree(init.TEMPLATE, tmp_path / "template")
    (template / "zzz").write_bytes(b"\xff")  # is not text, which ends the writing
    with monkeypatch.context() as patch:
        patch.setattr(init, "TEMPLATE", template)
        with pytest.raises(UnicodeDecodeError):
            init.write_project("arms", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["template"]
    assert init.write_project("arms", tmp_path)[0] == tmp_path / "arms"


@pytest.mark.process
def test_it_is_listed_trains_and_passes_its_test_once_installed(tmp_path: Path) -> None:
    write(tmp_path, "my_arms")
    uv = shutil.which("uv")
    assert uv is not None
    site = tmp_path / "site"
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    subprocess.run([*install, "--python", sys.executable, str(tmp_path / "my_arms")], check=True, timeout=patience(60))
    environ = os.environ | {"PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": ""}

    def run(*command: str) -> str:
        done = subprocess.run(
            command,
            cwd=tmp_path / "my_arms",
            env=environ,
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (line,) = [line for line in run(str(BIN / "list-tasks")).splitlines() if line.startswith("My-Arms-Pendulum")]
    assert "Swing a rod up and hold it there" in line
    assert "1 passed" in run(sys.executable, "-m", "pytest", "-q")
