"""Every mistake gets the line that says what is right, status 2 and no traceback, and leaves nothing behind."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mjtrain
from mjtrain.cli.train import main
from mjtrain.runtime.errors import RequestError
from support.mistakes import HEAD, MISTAKES, ROBOT, TASK, Mistake

DOCUMENT = Path(__file__).parents[2] / "docs" / "mistakes.md"
BEGIN, END = "<!-- table of mistakes: begin -->\n", "<!-- table of mistakes: end -->\n"


def write_task(folder: Path, mistake: Mistake) -> None:
    for name, text, changes in (("task.py", TASK, mistake.changes), ("cart.xml", ROBOT, mistake.robot)):
        for old, new in changes.items():
            assert text.count(old) == 1, f"{old!r} is not in {name} once"
            text = text.replace(old, new)
        (folder / name).write_text(text)


def list_params() -> list[Any]:
    return [
        pytest.param(mistake, id=mistake.what, marks=[pytest.mark.process] if mistake.late else [])
        for mistake in MISTAKES
    ]


@pytest.mark.usefixtures("no_gpu", "short_trial")
@pytest.mark.parametrize("mistake", list_params())
def test_a_mistake_gets_its_line(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path, mistake)
    words = [*mistake.task.split(), *mistake.words.split()]
    device = [] if "--gpu-ids" in words else ["--gpu-ids", "None"]
    with pytest.raises(SystemExit) as stop:
        main([*words, *device, "--logger", "none"])
    lines = capsys.readouterr().err.strip().splitlines()
    if mistake.late:
        header, lines = lines[:3], lines[3:]
        assert header[1].startswith("each rank: ")
        assert header[2].startswith("run directory: ")
    assert lines == [f"train: {line.replace('{folder}', str(tmp_path))}" for line in mistake.says]
    assert stop.value.code == 2
    assert {path.name for path in tmp_path.iterdir()} <= {"task.py", "cart.xml", "__pycache__"}
    record_property("mistake", mistake.row)


@pytest.mark.usefixtures("no_gpu", "short_trial")
def test_without_a_mistake_the_task_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path, Mistake(what="none"))
    main(["task.py:make_task", "--gpu-ids", "None", "--dry-run"])
    assert '"plan"' in capsys.readouterr().out


@pytest.mark.usefixtures("no_gpu", "short_trial")
def test_a_dry_run_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (mistake,) = (mistake for mistake in MISTAKES if mistake.what == "several mistakes at once")
    assert len(mistake.says) == 3
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path, mistake)
    with pytest.raises(SystemExit) as stop:
        main(["task.py:make_task", "--gpu-ids", "None", "--dry-run"])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [f"train: {line}" for line in mistake.says]
    assert printed.out == ""


def test_an_option_of_the_launch_is_named_from_python() -> None:
    with pytest.raises(
        RequestError, match=r"train\(\) takes seed in launch, as in train\(…, launch=LaunchConfig\(seed="
    ):
        mjtrain.train("Cartpole-Balance", seed=3)


def test_the_table_in_the_documentation_is_up_to_date() -> None:
    """With WRITE_MISTAKE_TABLE=1, it is written first; the lines in it are those that the tests above compare."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    table = HEAD + "".join(mistake.row for mistake in MISTAKES)
    if os.environ.get("WRITE_MISTAKE_TABLE") == "1":
        DOCUMENT.write_text(before + BEGIN + table + END + after)
        old = table
    assert old == table, "docs/mistakes.md: run this test with WRITE_MISTAKE_TABLE=1"
