"""The suite itself: hangs are ended, a busy machine fails nothing, and what is proved is skipped."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.machine import patience, read_proc, wait_until
from support.rerun import strip_group
from support.tiers import hash_files

ROOT = Path(__file__).parents[1]
RERUN = ROOT / "tests" / "support" / "rerun.py"
BUSY = ROOT / "benchmarks" / "busy.py"

pytestmark = pytest.mark.process

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run pytest, or what runs it, with the settings of the project on the tests of a folder."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["support.hangs", "support.tiers"]\n')
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}

    def run(*arguments: str, program: tuple[str, ...] = ("-m", "pytest")) -> subprocess.CompletedProcess[str]:
        settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
        command = [sys.executable, *program, *settings, *arguments, str(tmp_path)]
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=patience(60), check=False
        )

    return run


HANGS = """
import ctypes, time
import pytest

@pytest.mark.timeout(0.5)
@pytest.mark.xdist_group("shared")
def test_sleeps_for_ever():
    time.sleep(10**6)

@pytest.mark.xdist_group("shared")
def test_is_in_its_group():
    pass

@pytest.mark.timeout(0.5)
def test_keeps_the_lock_of_the_interpreter():
    ctypes.PyDLL(None).sleep(10**6)

@pytest.fixture
def late():
    yield
    time.sleep(10**6)

@pytest.mark.timeout(1)
def test_fails_and_then_hangs(late):
    assert 1 == 2

def test_passes():
    pass
"""


def test_what_hangs_is_ended_with_its_stacks_and_the_rest_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    done = run("-n", "1")  # two workers that run out of time at the same moment mix the lines of their stacks
    assert done.returncode == 1
    # The test that failed has two reports.
    assert " 4 failed, 2 passed in " in done.stdout.splitlines()[-1], done.stdout
    for name in ("sleeps_for_ever@shared", "keeps_the_lock_of_the_interpreter", "fails_and_then_hangs"):
        crashes = re.findall(rf"^worker '\w+' crashed while running 'test_hangs.py::test_{name}'$", done.stdout, re.M)
        assert len(crashes) == 1, done.stdout
    assert "assert 1 == 2" in done.stdout
    for function in ("test_sleeps_for_ever", "test_keeps_the_lock_of_the_interpreter", "late"):
        assert f'test_hangs.py", line {line_of(function)} in {function}\n' in done.stderr, done.stderr


def line_of(function: str) -> int:
    """The number of the line of HANGS in which a function waits."""
    lines = HANGS.splitlines()
    begin = lines.index(next(line for line in lines if line.startswith(f"def {function}(")))
    return next(number for number, line in enumerate(lines[begin:], begin + 1) if "sleep(" in line)


BESIDE = """
import os, signal
import pytest

IS_BESIDE = "PYTEST_XDIST_WORKER" in os.environ

@pytest.mark.parametrize("value", ["a b", "[x]::y@z", "\\u00fc", "'\\"$"])
def test_any_name(value):
    assert not IS_BESIDE, "too slow"

class TestÄ:
    @pytest.mark.xdist_group("a group")
    def test_grouped(self):
        assert not IS_BESIDE, "too slow"

def test_crashes():
    if IS_BESIDE:
        os.kill(os.getpid(), signal.SIGKILL)

@pytest.fixture
def fixture():
    assert not IS_BESIDE, "too slow"

def test_with_a_fixture(fixture):
    pass

def test_passes():
    pass

def test_skipped():
    pytest.skip("nothing to see")
"""


def test_what_passes_alone_is_told_and_fails_nothing(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "a folder [1]"
    folder.mkdir()
    (folder / "test_beside.py").write_text(BESIDE)
    (folder / "test_other.py").write_text("def test_other():\n    pass\n")
    done = run("-n", "2", program=(str(RERUN),))
    assert done.returncode == 0, done.stdout + done.stderr
    first, heading, told = done.stdout.partition(" failed beside other tests and passed alone: 7 ")
    assert heading, done.stdout
    assert " 6 failed, 2 passed, 1 skipped, 1 error in " in first
    assert " 7 passed, 2 deselected in " in first
    assert done.stdout.splitlines()[-1].strip("=") == " 9 passed, 1 skipped "
    assert told.count("AssertionError: too slow") == 6
    assert "crashed while running" in told
    assert "::TestÄ::test_grouped _" in told
    assert "test_any_name[a b]" in told


def test_what_fails_alone_too_fails_the_run(run: Run, tmp_path: Path) -> None:
    """A test that waits for ever alone as well does not keep the others from their second run."""
    (tmp_path / "test_beside.py").write_text(
        'import os, time, pytest\nIS_BESIDE = "PYTEST_XDIST_WORKER" in os.environ\n'
        "@pytest.mark.timeout(0.5)\ndef test_a_hang():\n    time.sleep(10**6)\n"
        "def test_fails():\n    assert False\n"
        "def test_skipped_alone():\n    if not IS_BESIDE: pytest.skip('cannot tell')\n    assert False\n"
        "def test_passes_alone():\n    assert not IS_BESIDE\n"
    )
    done = run("-n", "2", program=(str(RERUN),))
    assert done.returncode == 1
    assert " failed beside other tests and passed alone: 1 " in done.stdout, done.stdout
    assert " failed beside other tests and alone: 3 " in done.stdout
    assert done.stdout.splitlines()[-1].strip("=") == " 1 passed, 3 failed "


@pytest.mark.parametrize(
    ("files", "status"),
    [
        pytest.param({"test_x.py": "def test(): pass\n", "test_y.py": "import no_such_module\n"}, 1, id="not-imported"),
        pytest.param({"test_x.py": ""}, pytest.ExitCode.NO_TESTS_COLLECTED, id="no-tests"),
        pytest.param({"conftest.py": "1 / 0\n"}, pytest.ExitCode.USAGE_ERROR, id="conftest"),
    ],
)
def test_what_is_no_test_that_fails_fails_the_run(run: Run, tmp_path: Path, files: dict[str, str], status: int) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = run("-n", "1", program=(str(RERUN),))
    assert done.returncode == status, done.stdout + done.stderr
    assert "alone" not in done.stdout
    assert done.stdout.splitlines()[-1].strip("=").endswith(f", status {status} of pytest ")


def test_the_group_is_taken_from_a_name_and_nothing_else() -> None:
    for name in ("a@b/test_x.py::test_y", "test_x.py::test_y[a@b]", "test_x.py::TestZ::test_y[[x]::y@z]"):
        assert strip_group(name) == strip_group(f"{name}@a group") == name


def test_what_was_proved_is_skipped_until_it_changes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    proved, proof = tmp_path / "tests" / "proved.json", tmp_path / "proof.txt"
    proof.write_text("good")
    (tmp_path / "test_proof.py").write_text(
        "import pathlib, pytest\n"
        '@pytest.mark.proves("*.txt")\n@pytest.mark.xdist_group("shared")\n@pytest.mark.parametrize("value", [1, 2])\n'
        f"def test_it(value):\n    assert value == 1 or pathlib.Path({str(proof)!r}).read_text() == 'good'\n"
    )

    def look(*arguments: str) -> tuple[str, set[str]]:
        last = run(*arguments).stdout.splitlines()[-1]
        return last.strip("= ").partition(" in ")[0], set(json.loads(proved.read_text())) if proved.exists() else set()

    first, second = "test_proof.py::test_it[1]", "test_proof.py::test_it[2]"
    assert look("-n", "0") == ("2 passed", set())
    assert look("-n", "2", "--all") == ("2 passed", {first, second})
    assert look("-n", "0", "--all") == ("2 passed", {first, second})
    done = run("-n", "0")
    assert "2 skipped in " in done.stdout
    assert "--all runs it (test_proof.py, *.txt)" in done.stdout
    proof.write_text("bad")
    assert look("-n", "0") == ("1 failed, 1 passed", {first, second})
    assert look("-n", "0", "--all") == ("1 failed, 1 passed", {first})
    assert look("-n", "0") == ("1 failed, 1 skipped", {first})


def test_a_layout_is_names_and_what_is_outside(tmp_path: Path) -> None:
    source = tmp_path / "src" / "module.py"
    source.parent.mkdir()
    source.write_text("import torch\nfrom torch import nn\n")
    before = hash_files(tmp_path, (), ["src"])
    source.write_text("from torch import nn\nx = 1\n")
    (source.parent / "__pycache__").mkdir()
    (source.parent / "__pycache__" / "module.pyc").touch()
    assert hash_files(tmp_path, (), ["src"]) == before
    for text in ("from torch import nn\nimport psutil\n", "from torch import nn\nx = open(__file__)\n"):
        source.write_text(text)
        assert hash_files(tmp_path, (), ["src"]) != before
    source.write_text("import torch\n")
    (source.parent / "robot.xml").touch()
    assert hash_files(tmp_path, (), ["src"]) != before
    with pytest.raises(ValueError, match="there is no docs"):
        hash_files(tmp_path, ["docs"])


def list_children(pid: int) -> list[int]:
    return [int(child) for child in read_proc(pid, f"task/{pid}/children").split()]


def is_gone(pid: int) -> bool:
    return read_proc(pid, "cmdline") == b""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_processes_that_keep_cores_busy_end_with_their_parent(signum: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, BUSY, "2"], stdout=subprocess.PIPE, preexec_fn=restore_signals) as busy:
        assert busy.stdout is not None
        assert busy.stdout.readline() == b"2 processes compute\n"
        children = list_children(busy.pid)
        busy.send_signal(signum)
        assert busy.wait(patience(10)) == -signum
    assert len(children) == 2
    wait_until(lambda: all(is_gone(child) for child in children), "the processes are gone", 5)


def restore_signals() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_cores_are_busy_while_a_command_runs() -> None:
    code = "import os, pathlib; print(pathlib.Path(f'/proc/self/task/{os.getpid()}/children').read_text()); exit(3)"
    command = [sys.executable, str(BUSY), "2", "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 3, done.stderr
    children = [int(child) for child in done.stdout.split()]
    assert len(children) == 2
    wait_until(lambda: all(is_gone(child) for child in children), "the processes are gone", 5)
