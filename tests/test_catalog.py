import shutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mjtrain.config import TaskConfig
from mjtrain.env.catalog import (
    folder_name,
    is_same_task,
    list_tasks,
    load_task,
    resolve_task_name,
    shared_name,
    summarise_task,
)
from mjtrain.runtime.errors import RequestError

FACTORY = """
from dataclasses import replace
from mjtrain.env.catalog import load_task

def make():
    return replace(load_task("Cartpole-Balance"), num_envs=7)

def wrong():
    return 3

def broken():
    raise KeyError("nose")

def leave():
    raise SystemExit(0)

class Wordless(Exception):
    def __str__(self):
        return 1 / 0

def wordless():
    raise Wordless

constant = 5
"""


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_task.py"
    path.write_text(FACTORY)
    return path


def test_the_built_in_tasks_are_listed() -> None:
    assert [entry.name for entry in list_tasks()] == [
        "Arm-Lift-Cube",
        "Arm-Lift-Cube-Vision",
        "Arm-Reach",
        "Arm-Reach-Vision",
        "Cartpole-Balance",
        "Cartpole-Balance-Vision",
        "Cartpole-Swingup",
        "Go2-Velocity-Flat",
        "Hand-Reorient-Cube",
        "Hand-Reorient-Cube-Vision",
        "Humanoid-Track",
        "Humanoid-Velocity-Flat",
        "Humanoid-Velocity-Rough",
        "Quadruped-Track",
        "Quadruped-Velocity-Flat",
        "Quadruped-Velocity-Rough",
    ]


def test_built_in_tasks_say_what_they_are_and_how_long_they_train() -> None:
    for task in map(summarise_task, list_tasks()):
        assert task.summary
        assert task.trains_in.endswith("on two CPU cores")


PACKAGE = """
'''Acme's tasks.

More about them.
'''
raise RuntimeError("imported")

def make_task():
    \"\"\"Stack two boxes.

    Trains in: an hour on one GPU.
    \"\"\"

def make_other():
    pass
"""


@pytest.mark.parametrize(
    ("place", "spec"), [("acme_a/__init__.py", "acme_a"), ("acme_b/tasks.py", "acme_b.tasks"), ("acme_c.py", "acme_c")]
)
def test_a_summary_is_read_without_importing(
    place: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    (file.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    file.write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)

    def summary(factory: str) -> tuple[str, str]:
        task = summarise_task(EntryPoint("Acme", factory, "mjtrain.tasks"))
        return task.summary, task.trains_in

    assert summary(f"{spec}:make_task") == ("Stack two boxes", "an hour on one GPU")
    assert summary(f"{spec}:make_other") == ("Acme's tasks", "")
    assert summary("acme_gone:make") == summary(f"{spec}.gone:make") == ("", "")
    file.write_text("def make_task(:")
    assert summary(f"{spec}:make_task") == ("", "")
    assert spec not in sys.modules


def test_names_are_found_in_any_case() -> None:
    assert resolve_task_name("cartpole-BALANCE") == "Cartpole-Balance"
    assert isinstance(load_task("CARTPOLE-balance"), TaskConfig)


def test_a_factory_in_a_module() -> None:
    assert load_task("mjtrain_tasks.cartpole_swingup:make_task") == load_task("Cartpole-Swingup")


def test_a_factory_in_a_file(task_file: Path) -> None:
    assert load_task(f"{task_file}:make").num_envs == 7


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("Cartpole-Balence", "did you mean Cartpole-Balance"),
        ("Quux", "unknown task Quux; see list-tasks"),
        ("{folder}", "the folder is neither a task nor a run directory (no params/ in it)"),
        ("{folder}/run", "run; the folder is a run directory, not a task"),
        ("logs/missing", "unknown task logs/missing; the file or folder does not exist"),
        ("no.such.module:make", "No module named 'no'"),
        ("json:make", "json has no function make"),
        (":make", "expected package.module:factory"),
        ("json:", "expected package.module:factory"),
        ("no/such/file.py:make", "no such file no/such/file.py"),
        ("{file}:mak", "has no function mak; did you mean make"),
        ("{file}:constant", "has no function constant"),
        ("{file}:wrong", "returned int; return a mjtrain.TaskConfig"),
        ("{file}:broken", "KeyError: 'nose'"),
        ("{file}:leave", "SystemExit: 0 (my_task.py, line "),
        ("{file}:wordless", "Wordless: (its __str__ raises ZeroDivisionError) (my_task.py, line "),
    ],
)
def test_what_is_wrong_is_said(task: str, words: str, task_file: Path) -> None:
    (task_file.parent / "run" / "params").mkdir(parents=True)
    with pytest.raises(RequestError) as caught:
        load_task(task.format(file=task_file, folder=task_file.parent))
    assert words in str(caught.value)


def test_a_file_that_is_no_python(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def make(:\n")
    with pytest.raises(RequestError, match="SyntaxError"):
        load_task(f"{path}:make")


@pytest.mark.parametrize(
    ("text", "factory"),
    [
        ("def make_hopper(): ...", "make_hopper"),
        ("def hopper(speed=1.0) -> TaskConfig: ...", "hopper"),
        ("def hopper() -> 'mjtrain.TaskConfig': ...\ndef make_env(): ...", "hopper"),
        ("def make_env() -> EnvConfig: ...\ndef make_task(): ...", "make_task"),
        ("from x import make_other\ndef _make_part(): ...\ndef make_leg(side): ...\ndef make_task(): ...", "make_task"),
    ],
)
def test_the_only_factory_of_a_file_is_found_without_importing_it(text: str, factory: str, tmp_path: Path) -> None:
    path = tmp_path / "hopper.py"
    path.write_text(f"{text}\nraise RuntimeError('imported')\n")
    assert resolve_task_name(str(path)) == f"{path}:{factory}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def make_a(): ...\ndef make_b(): ...", "has the factories make_a, make_b; choose one, as in {file}:make_a"),
        ("def run(): ...\ndef make(size): ...", "has no factory; one is a function without arguments"),
        ("def make(:", "SyntaxError"),
        (None, "no such file {file}"),
    ],
)
def test_a_file_without_an_only_factory_is_refused(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "hopper.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RequestError) as caught:
        load_task(str(path))
    assert words.format(file=path) in str(caught.value)


def test_a_folder_that_is_called_like_a_file_is_not_missing(tmp_path: Path) -> None:
    path = tmp_path / "hopper.py"
    path.mkdir()
    with pytest.raises(RequestError, match=r"hopper\.py: cannot be read \(Is a directory\)"):
        load_task(str(path))


def test_a_file_alone_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "alone.py"
    path.write_text(FACTORY.partition("def wrong")[0])
    assert load_task(str(path)).num_envs == 7


@pytest.mark.parametrize(
    ("task", "folder"),
    [
        ("Cartpole-Balance", "cartpole_balance"),
        ("path/to/hopper.py:make_task", "hopper_make_task"),
        ("path/to/My-Robot.py:make_Crawler", "my_robot_make_crawler"),
        ("acme/__init__.py:make_task", "acme_make_task"),
        ("acme.robots.hopper:make_task", "acme_robots_hopper_make_task"),
    ],
)
def test_a_folder_is_named_after_file_and_factory(task: str, folder: str) -> None:
    assert folder_name(task) == folder


@pytest.mark.parametrize(
    ("recorded", "task", "same"),
    [
        ("Cartpole-Balance", "cartpole-balance", True),
        ("Cartpole-Balance", "Cartpole-Swingup", False),
        ("make-task", "hopper.py:make_task", False),
        ("old/hopper.py:make_task", "hopper.py:make_task", True),
        ("hopper.py:make_task", "ant.py:make_task", False),
        ("hopper.py:make_task", "hopper.py:make_other", False),
        ("acme.tasks:make_task", "acme.tasks:make_task", True),
        ("acme.tasks:make_task", "other.tasks:make_task", False),
        (None, "hopper.py:make_task", False),
    ],
)
def test_tasks_are_the_same_by_file_and_factory(recorded: str | None, task: str, same: bool) -> None:
    assert is_same_task(recorded, task) is same


def test_a_recorded_file_that_is_there_and_another_is_another_task(tmp_path: Path) -> None:
    one, other = tmp_path / "one" / "hopper.py", tmp_path / "other" / "hopper.py"
    for path in (one, other):
        path.parent.mkdir()
        path.write_text(f"# {path.parent.name}")
    link = tmp_path / "hopper.py"
    link.symlink_to(one)
    assert not is_same_task(f"{one}:make", f"{other}:make")
    assert is_same_task(f"{one}:make", f"{link}:make")
    shutil.copy(other, one)
    assert is_same_task(f"{one}:make", f"{other}:make"), "it was copied"
    one.unlink()
    assert is_same_task(f"{one}:make", f"{other}:make"), "it may have been moved"


def test_a_shared_name_is_of_the_same_task() -> None:
    shared = {
        "Cartpole-Balance": "Cartpole-Balance",
        "acme.tasks:make": "acme.tasks:make",
        "/home/me/hopper.py:make": "hopper.py:make",
        "/home/me/hopping/__init__.py:make": "hopping/__init__.py:make",
    }
    assert {task: shared_name(task) for task in shared} == shared
    assert all(is_same_task(name, task) for task, name in shared.items())


def test_a_recorded_file_that_cannot_be_looked_at_counts_as_moved() -> None:
    """`Path.is_file` raises for a name that is too long, as it does for a folder that this user may not enter."""
    assert is_same_task(f"/{'a' * 300}/task.py:make", "task.py:make")


def test_what_is_installed_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = [entry.name for entry in list_tasks()]
    info = tmp_path / "acme_tasks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tasks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mjtrain.tasks]\nAcme-Slider = acme_tasks:make_task\n")
    assert {entry.name for entry in list_tasks()} == {*before, "Acme-Slider"}
