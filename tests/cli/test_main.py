"""The one entry, and what bash completes."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from mjtrain.cli.command import run_command
from mjtrain.cli.main import COMMANDS, main
from support.machine import patience


def test_every_command_is_listed_and_there(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for name in COMMANDS:
        assert f"  {name} " in text
        try:
            main([name, "--help"])
        except SystemExit as stop:
            assert stop.code == 0  # noqa: PT017
        assert "usage: " in capsys.readouterr().out
        main([name, "--version"])
        assert capsys.readouterr().out == f"mjtrain {version('mjtrain')}\n"


@pytest.mark.parametrize(("num_lines", "status"), [(1, None), (100_000, 128 + signal.SIGPIPE)])
def test_a_reader_that_has_enough_is_no_error(
    num_lines: int, status: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `mjtrain runs | head`: no traceback, and nothing that Python complains about when it ends."""
    read, write = os.pipe()
    os.close(read)
    code = None
    with open(write, "w") as stdout:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr(sys, "stdout", stdout)
        try:
            run_command("runs", lambda _: stdout.writelines(["a run\n"] * num_lines), [])
        except SystemExit as stop:
            code = stop.code
    monkeypatch.undo()
    assert (code, capsys.readouterr().err) == (status, "")


def test_a_limit_of_addresses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def load(_: list[str]) -> None:
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")

    with pytest.raises(SystemExit, match="1"):
        run_command("train", load, [])
    said = capsys.readouterr().err
    assert said.startswith("train: libtorch_cpu.so: failed to map segment from shared object: `ulimit -v` limits")
    assert said.count("\n") == 1


@pytest.mark.process
def test_python_m_mjtrain(tmp_path: Path) -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mjtrain", *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60), check=False)

    assert run("--version").stdout == f"mjtrain {version('mjtrain')}\n"
    assert "Cartpole-Balance" in run("list-tasks").stdout
    done = run("train", "Cartpole-Balnce")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("train: unknown task Cartpole-Balnce; did you mean Cartpole-Balance")


def test_a_command_ends_without_looking_for_cycles() -> None:
    program = (
        "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0));"  # the first is called last
        "from mjtrain.cli.main import main; main(['--version'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert done.stdout == f"mjtrain {version('mjtrain')}\nTrue\n"


def test_an_end_with_triton_is_silent() -> None:
    """PyTorch's exporter imports it. Without a last collection its nanobind would print a page about leaks."""
    pytest.importorskip("triton")  # PyTorch has it on Linux only
    program = "from mjtrain.cli.command import run_command; run_command('export', lambda _: __import__('triton'), [])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["trian"], "mjtrain: unknown command trian; did you mean train?"),
        (["--trian"], "mjtrain: unknown flag --trian"),
        (["quux"], "mjtrain: unknown command quux; give one of train, play"),
        (["runs", "--log-root", "nowhere"], "runs: --log-root nowhere: no such folder"),
        (["runs", "--log-root", __file__], f"runs: --log-root {__file__}: is a file"),
        (
            ["push", "pretrained:Cartpole-Balance", "nowhere", "--license", "mit"],
            "push: --license: is for runs, and pretrained:Cartpole-Balance is a bundle, which is copied as it is",
        ),
        (["pull", "nowhere.zip"], "pull: nowhere.zip: no such file"),
        (["motion", "info", "nowhere"], "motion: nowhere: no such file"),
        (["runs", "Cartpole-Balance", "--jsn"], "runs: unknown flag --jsn; did you mean --json?"),
        (["doctor", "--skip", "gpu"], "doctor: --skip gpu: give some of gpus, log-root, "),
        (["doctor", "--timeout-s", "0"], "doctor: --timeout-s 0: must be more than 0"),
        (
            ["doctor", "--json", "nowhere/report.json"],
            "doctor: --json nowhere/report.json: the folder nowhere does not exist",
        ),
        (["doctor", "--json", "/proc/report.json"], "doctor: --json /proc/report.json: cannot be written"),
        (["doctor", "--timeout-s", "1e10"], "doctor: --timeout-s 1e+10: must be more than 0 and at most 1,000,000"),
        (["scaling", "Cartpole-Balance", "--out", "/proc/self"], "scaling: --out /proc/self: cannot be written"),
        (["doctor", "--json", "."], "doctor: --json .: is a folder; give a file"),
        (["doctor", "--hostnames", "a", "a"], "doctor: --hostnames a a: a is repeated"),
        (["doctor", "--checkpoint-url", "here"], "doctor: --checkpoint-url here: give a URL that begins with one of "),
        (["completion", "powershell"], "completion: powershell: give a shell, one of bash"),
    ],
)
def test_wrong_requests_are_one_line(args: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(line)
    assert said.count("\n") == 1


COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "script"
    command = [sys.executable, "-m", "mjtrain", "completion", "bash"]
    path.write_text(subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True).stdout)
    return path


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("mjtrain pl", ["play", "plot"]),
        ("mjtrain train Quad", ["Quadruped-Track", "Quadruped-Velocity-Flat", "Quadruped-Velocity-Rough"]),
        ("train Cartpole-B", ["Cartpole-Balance", "Cartpole-Balance-Vision"]),
        ("train Cartpole-Balance --max", ["--max-iterations", "--max-restarts"]),
        ("train Cartpole-Balance --env.rewards.upright.w", ["--env.rewards.upright.weight"]),
        ("train Cartpole-Balance --engine ", ["auto", "native", "warp"]),
        ("play Cartpole-Balance --viewer w", ["web"]),
        ("play Quadruped-Velocity-Flat --env.rewards.slip.w", ["--env.rewards.slip.weight"]),
        ("scaling Arm", ["Arm-Lift-Cube", "Arm-Lift-Cube-Vision", "Arm-Reach", "Arm-Reach-Vision"]),
        ("list-tasks --j", ["--json"]),
        ("mjtrain runs --l", ["--log-root"]),
        ("mjtrain export --obs", ["--observations"]),
        ("doctor --log", ["--log-root"]),
    ],
)
def test_bash_completes_commands_tasks_and_flags(script: Path, words: str, completed: list[str]) -> None:
    command = ["bash", "-c", COMPLETE, "bash", str(script), *words.split(" ")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True)
    assert sorted(done.stdout.split()) == completed


@pytest.mark.process
def test_the_builtin_export_keeps_its_own_completion(script: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"source {script}; complete -p export"], capture_output=True, timeout=patience(60), check=False
    )
    assert done.returncode != 0
