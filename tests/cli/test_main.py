"""The one entry, and what bash completes."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest

from mjtrain.cli.command import run_command
from mjtrain.cli.main import COMMANDS, main
from mjtrain.runtime.errors import RequestError
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


@pytest.mark.parametrize(
    ("words", "status", "start", "what"),
    [
        ("--version", 0, "thread.start()", "threads that have not ended: bridge"),
        ("trian", 2, "thread.start()", "threads that have not ended: bridge"),
        ("trian", 2, "thread.daemon = True; thread.start()", "exit handlers (atexit)"),
    ],
)
def test_a_thread_that_never_ends_does_not_keep_a_command(words: str, status: int, start: str, what: str) -> None:
    code = (
        "import atexit, sys, threading, time\n"
        "from mjtrain.cli import command, main\n"
        "command.THREADS_GRACE_S = 0.5\n"
        "thread = threading.Thread(target=time.sleep, args=(10_000,), name='bridge')\n"
        f"{start}\n"
        "atexit.register(thread.join)\n"
        "main.main()\n"
    )
    command = [sys.executable, "-c", code, words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(20), check=False)
    assert done.returncode == status
    assert done.stderr.endswith(f"waiting at most 0.5 s for {what}\n")


def test_a_program_that_calls_a_command_may_continue() -> None:
    code = (
        "import time\n"
        "from mjtrain.cli import command, main\n"
        "command.THREADS_GRACE_S = 0.1\n"
        "main.main()\n"
        "time.sleep(0.5)\n"
        "print('done')\n"
    )
    command = [sys.executable, "-c", code, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(20), check=False)
    assert (done.returncode, done.stdout.splitlines()[1:], done.stderr) == (0, ["done"], "")


def test_a_command_without_memory_for_another_thread_ends_as_usual() -> None:
    code = (
        "import resource\n"
        "from mjtrain.cli import command\n"
        "with command.end_despite_threads():\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, -1))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(20), check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("within", [False, True])
def test_a_limit_of_addresses_is_one_line(capsys: pytest.CaptureFixture[str], *, within: bool) -> None:
    def load(_: list[str]) -> None:
        error = ImportError("libtorch_cpu.so: failed to map segment from shared object")
        if within:
            raise RequestError("--learner rsl_rl: cannot be imported") from error
        raise error

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
        (["pull", "nowhere.zip", "--out", "here"], "pull: unknown flag --out"),
        (["pull", "pretrained:Cartpole-Balance", f"{__file__}/a"], f"pull: {__file__}/a: cannot be written"),
        (["push", "pretrained:Cartpole-Balance", f"{__file__}/a"], f"push: {__file__}/a: cannot be written"),
        (["push", "pretrained:Cartpole-Balance", f"{__file__}/a.zip"], f"push: {__file__}/a.zip: cannot be written"),
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
        (["doctor", "--hostnames", "a", "--hostnames", "a"], "doctor: --hostnames a a: a is repeated"),
        (["doctor", "--skip", "gpu", "--skip=ranks"], "doctor: --skip gpu: give some of gpus, log-root, "),
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


def test_a_working_directory_that_was_deleted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it torch cannot be imported: Intel MKL ends the process and blames a library."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(SystemExit) as stop:
        main(["runs"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "runs: the working directory does not exist any more; change to another folder\n"


LONG = "a" * 300
"""A name that no file can have; pathlib raises an OSError for it where it returns False for other missing files."""

TRAIN = "train Cartpole-Balance --gpu-ids None --num-envs 4 --max-iterations 1 --logger none"
IMITATE = "train Arm-Lift-Cube-Vision --gpu-ids None --num-envs 4 --logger none"
PLAY = "play Cartpole-Balance --gpu-ids None"
ZERO = f"{PLAY} --policy zero"
SHARED = "pretrained:Cartpole-Balance"

MASS = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
URDF = f'<robot name="robot"><link name="base">{MASS}</link></robot>'


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (f"{TRAIN} --log-root LONG", "--log-root LONG"),
        (f"{TRAIN} --log-root LONG/logs", "--log-root LONG/logs"),
        (f"{TRAIN} --agent.experiment-name LONG", "--agent.experiment-name LONG"),
        (f"{TRAIN} --run-name LONG", "--run-name LONG"),
        (f"{TRAIN} --resume LONG", "--resume LONG"),
        (f"{TRAIN} --resume=LONG/run", "--resume LONG/run"),
        (f"{TRAIN} --resume file:///tmp/LONG", "--resume file:///tmp/LONG"),
        (f"{TRAIN} --load LONG", "--load LONG"),
        (f"{TRAIN} --load LONG/best", "--load LONG/best"),
        (f"{TRAIN} --load {SHARED} --load-critic LONG", "--load-critic LONG"),
        (f"{TRAIN} --env.robot LONG.xml", "--env.robot LONG.xml"),
        ("train Quadruped-Track --gpu-ids None --motion LONG.npz", "--motion LONG.npz"),
        (f"{TRAIN} --learner-config LONG", "--learner-config LONG"),
        (f"{TRAIN} --checkpoint-url file:///tmp/LONG", "--checkpoint-url file:///tmp/LONG"),
        (f"{IMITATE} --teacher LONG", "--teacher LONG"),
        (f"{IMITATE} --agent.algorithm.teacher-run LONG/model_1.pt", "--agent.algorithm.teacher-run LONG/model_1.pt"),
        ("play LONG", "LONG"),
        ("play LONG.py:make", "LONG.py:make"),
        (f"{PLAY} --run LONG", "--run LONG"),
        (f"{PLAY} --checkpoint LONG", "--checkpoint LONG"),
        (f"{PLAY} --checkpoint LONG/best", "--checkpoint LONG/best"),
        (f"{PLAY} --policy LONG", "--policy LONG"),
        (f"{PLAY} --policy LONG.py:make", "--policy LONG.py:make"),
        (f"{PLAY} --replay LONG", "--replay LONG"),
        (f"{ZERO} --record LONG/episodes", "--record LONG/episodes"),
        (f"{ZERO} --video LONG.mp4", "--video LONG.mp4"),
        (f"{ZERO} --html LONG.html", "--html LONG.html"),
        (f"{PLAY} --log-root LONG", "--log-root LONG"),
        ("init LONG", "LONG"),
        ("init name --folder LONG", "--folder LONG"),
        ("runs --log-root LONG", "--log-root LONG"),
        ("plot LONG", "LONG"),
        ("motion info LONG", "LONG"),
        ("motion record LONG out.npz", "LONG"),
        ("motion record Cartpole-Balance out.npz --checkpoint LONG", "--checkpoint LONG"),
        ("export LONG", "LONG"),
        (f"export {SHARED} --out LONG/export", "--out {folder}/LONG/export"),
        ("export Cartpole-Balance --checkpoint LONG", "--checkpoint LONG"),
        ("push LONG folder", "LONG"),
        (f"push {SHARED} LONG", "LONG"),
        (f"push {SHARED} LONG.zip", "LONG.zip"),
        ("pull LONG", "LONG"),
        ("pull LONG.zip", "LONG"),
        ("pull pretrained:LONG", "LONG"),
        (f"pull {SHARED} LONG/folder", "LONG/folder"),
        ("deploy LONG", "LONG"),
        ("sweep Cartpole-Balance --space LONG", "--space LONG"),
        ("doctor --json LONG", "--json LONG"),
        ("scaling Cartpole-Balance --out LONG", "--out LONG"),
        ("import-robot LONG.urdf", "LONG.urdf"),
        ("import-robot robot.urdf --out LONG", "--out LONG"),
        ("import-robot robot.urdf --mesh-dir LONG", "--mesh-dir LONG"),
        ("check-robot LONG", "LONG"),
    ],
)
def test_a_name_that_is_too_long_is_one_line(
    words: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("robot.urdf").write_text(URDF)
    with pytest.raises(SystemExit) as stop:
        main(words.replace("LONG", LONG).split())
    said = capsys.readouterr().err
    place = named.replace("LONG", LONG).format(folder=tmp_path)
    assert (stop.value.code, said.count("\n")) == (2, 1)
    assert said.startswith(f"{words.split()[0]}: {place}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["robot.urdf"]


def test_check_robot_names_its_own_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = '<keyframe><key name="up"/></keyframe>'
    (tmp_path / "robot.xml").write_text(
        f"<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody>{key}</mujoco>"
    )
    with pytest.raises(SystemExit) as stop:
        main(["check-robot", str(tmp_path / "robot.xml"), "--keyframe", "down"])
    line = "check-robot: --keyframe down: no keyframe has this name; available: up"
    assert (stop.value.code, capsys.readouterr().err.splitlines()) == (2, [line])


def give_up_right_to_search() -> None:
    """Take from this thread what lets root search all folders: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    libc = ctypes.CDLL(None)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable
    assert libc.capget(header, sets) == 0
    sets[0] &= ~0b110
    sets[1] &= ~0b110
    assert libc.capset(header, sets) == 0


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("runs --log-root {locked}/logs", "runs: --log-root {locked}/logs: cannot be used ({reason})"),
        ("plot {locked}", "plot: {locked}: cannot be used ({reason})"),
        ("plot Cartpole-Balance", "plot: Cartpole-Balance: no run of this task below logs has metrics"),
    ],
)
def test_a_folder_that_may_not_be_searched_is_named_or_passed_over(
    program: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = tmp_path / "logs" / "cartpole_balance" / "2026-01-02_03-04-05"
    locked.parent.mkdir(parents=True)
    locked.mkdir(mode=0)
    monkeypatch.chdir(tmp_path)
    thread = ThreadPoolExecutor(1, initializer=give_up_right_to_search)
    with thread, pytest.raises(SystemExit) as stop:
        thread.submit(main, program.format(locked=locked).split()).result()
    reason = f"Permission denied; the folder {locked} may not be searched"
    assert (stop.value.code, capsys.readouterr().err) == (2, says.format(locked=locked, reason=reason) + "\n")


def test_other_errors_of_files_keep_their_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for number, path, said in (
        (errno.EIO, "file", "OSError"),
        (errno.EACCES, None, "PermissionError"),
        (errno.EACCES, "/data/1/web/task.xml", "PermissionError"),  # of the code of a task
    ):

        def fail(_: list[str], number: int = number, path: str | None = path) -> None:
            raise OSError(number, "no", path)

        with pytest.raises(SystemExit, match="1"):
            run_command("train", fail, ["Cartpole-Balance", "--num-envs", "1", "--viewer=web"])
        assert f"\n{said}: " in capsys.readouterr().err


def test_the_flag_with_the_path_is_named_and_not_another_word_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()

    def fail(_: list[str]) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(logs / "model_1.pt"))

    with pytest.raises(SystemExit, match="2"):
        run_command("train", fail, ["Cartpole-Balance", "--run-name", "logs", "--log-root", str(logs)])
    assert (
        capsys.readouterr().err == f"train: --log-root {logs}: cannot be used (Permission denied: {logs}/model_1.pt)\n"
    )


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
