"""What the documents show is what there is."""

import builtins
import importlib.util
import re
from pathlib import Path

import pytest

import mjtrain
from mjtrain import TaskConfig
from mjtrain.cli import train
from mjtrain_tasks.cartpole_vision import make_task as make_vision_task

ROOT = Path(__file__).parents[1]


def test_the_whole_task_of_the_document_is_the_one_of_the_template() -> None:
    task = (ROOT / "src/mjtrain/tools/project_template/src/my_robots/pendulum.py").read_text()
    assert f"```python\n{task}```" in (ROOT / "docs" / "writing-a-task.md").read_text()


def test_every_code_block_begins_and_ends_and_no_section_is_there_twice() -> None:
    """Where one line of ``` is missing, the rest of a page shows its text as code and its code as text."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        inside = False
        paragraphs: set[str] = set()
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                assert not inside or line.strip() == "```", (
                    f"{page.relative_to(ROOT)}:{number} begins a block in a block"
                )
                inside = not inside
            elif not inside and len(line) > 80 and not line.startswith("|"):
                begin = line[:80]
                assert begin not in paragraphs, f"{page.relative_to(ROOT)}:{number} repeats an earlier line"
                paragraphs.add(begin)
        assert not inside, f"{page.relative_to(ROOT)} does not end a code block"


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_task_of_the_readme_passes_the_dry_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (task,) = (block for block in blocks if "TaskConfig" in block)
    (tmp_path / "balance.py").write_text(task)
    monkeypatch.chdir(ROOT)  # the robot's path is relative to the clone
    train.main([str(tmp_path / "balance.py"), "--gpu-ids", "None", "--dry-run"])
    assert "256 envs x 24 steps" in capfd.readouterr().out


def test_the_student_of_the_document_is_a_task() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/perception.md").read_text(), re.DOTALL)
    (student,) = (block for block in blocks if "make_student" in block)
    names = {"make_env": lambda: make_vision_task().env}
    exec(student, names)
    assert isinstance(names["make_student"](), TaskConfig)


def test_names_of_modules_are_those_of_the_tree() -> None:
    """Also in strings, which no type checker sees."""
    packages = {
        path.name: path for part in ("", "tasks", "learners", "policies") for path in (ROOT / part / "src").iterdir()
    }
    pattern = rf"(?<![\w./])(?:{'|'.join(packages)})(?:\.[a-z]\w*)+"
    found = [path for folder in ("benchmarks", "examples", "deploy", "docs") for path in (ROOT / folder).rglob("*.*")]
    for path in (path for path in found if "__pycache__" not in path.parts):
        for name in {*re.findall(pattern, path.read_text(errors="replace"))} - {"mjtrain.tasks", "mjtrain.learners"}:
            first, *parts = name.split(".")
            place = packages[first]
            while parts and (place / parts[0]).is_dir():
                place /= parts.pop(0)
            known = not parts or (place / f"{parts[0]}.py").exists() or parts[0] in (place / "__init__.py").read_text()
            assert known, f"{path.relative_to(ROOT)}: {name}"
    files = {path.name for path in ROOT.glob("[!.]*/**/*.py")}
    assert set(re.findall(r"`(?:\w+/)*(\w+\.py)`", (ROOT / "docs/architecture.md").read_text())) <= files


def test_names_that_programs_import_exist() -> None:
    groups_of_entry_points = {"mjtrain.tasks", "mjtrain.learners", "mjtrain.policies"}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text()
        names = {*re.findall(r"(?<![\w./@-])mjtrain(?:\.[A-Za-z_]\w*)+", text)} - groups_of_entry_points
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            for module, imported in re.findall(r"(?m)^from (mjtrain[\w.]*) import (\([^)]*\)|[^\n#]*)", block):
                plain = re.sub(r"#.*| as \w+", "", imported)
                names |= {f"{module}.{name}" for name in re.findall(r"[A-Za-z_]\w*", plain)}
        for name in names:
            assert _exists(name), f"{page.relative_to(ROOT)}: {name}"
        for error in re.findall(r"raises (?:an? )?`(\w+)`", text):
            assert hasattr(mjtrain, error) or hasattr(builtins, error), f"{page.relative_to(ROOT)}: {error}"


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, or what one has."""
    owner, _, last = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(owner), last) or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the owner is a class
        module, _, attribute = owner.rpartition(".")
        return hasattr(getattr(importlib.import_module(module), attribute, None), last)
