"""A plugin of pytest: tests that cost much are skipped while nothing that can break them has changed since they passed.

`@pytest.mark.proves("deploy/slurm", "src/mjtrain/launcher", layout=["src"])` names files and folders (or patterns of
them) whose content decides whether the test passes, and folders of which only the layout does: which files there are,
what they import from outside the project, and where they look for files or modules by name. The test's own file is one
of the former. tests/proved.json has a hash of all this for each such test; `pytest --all` runs every test and writes
there what has passed. The hash depends on neither a clock nor the history, so a fresh clone skips the same tests.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

MEMBERS = ("tasks", "learners", "policies")
"""Folders of the distributions beside mjtrain."""

PACKAGES = ("pyproject.toml", *(f"{name}/pyproject.toml" for name in MEMBERS), "requirements.lock", ".gitignore")
"""What decides what wheels hold and ask for, besides the layout of `SOURCES`."""

SOURCES = ("src", "README.md", *(f"{name}/{part}" for name in MEMBERS for part in ("src", "README.md")), "LICENSE")

_IMPORT = re.compile(r"\s*(?:import|from) (\w+)")
_BY_NAME = re.compile(r"__file__|import_module|[Dd]efer\w*\(")


def list_files(root: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """List files in a fixed order, those in folders included.

    Raises:
        ValueError: There is nothing of that name, so a change of it would not be seen.
    """
    for pattern in patterns:
        found = sorted(root.glob(pattern))
        if not found:
            raise ValueError(f"proves: there is no {pattern}")
        for path in found:
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file() and "__pycache__" not in file.parts:
                    yield file


def hash_files(root: Path, contents: Iterable[str], layout: Iterable[str] = ()) -> str:
    """Return a hash of the content of files and of the layout of folders; patterns are relative to the root."""
    contents_of = {str(path.relative_to(root)): path.read_bytes() for path in list_files(root, contents)}
    places = list(list_files(root, layout))
    outside: set[str] = set()
    for path in places:
        if path.suffix == ".py":
            for line in path.read_text().splitlines():
                outside |= {line.strip()} if _BY_NAME.search(line) else set(_IMPORT.findall(line)[:1])
    known = {
        "contents": {name: hashlib.sha256(content).hexdigest() for name, content in contents_of.items()},
        "layout": sorted({str(path.relative_to(root)) for path in places}),
        "outside": sorted(outside),
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _read_proved(root: Path) -> dict[str, str]:
    path = root / "tests" / "proved.json"
    return json.loads(path.read_text()) if path.exists() else {}


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run also what cannot break by a change since it passed, and write tests/proved.json"
    parser.addoption("--all", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Proofs(config.rootpath))


def pytest_itemcollected(item: pytest.Item) -> None:
    marks = list(item.iter_markers("proves"))
    if not marks:
        return
    root = item.config.rootpath
    contents = [str(item.path.relative_to(root)), *(pattern for mark in marks for pattern in mark.args)]
    layout = [pattern for mark in marks for pattern in mark.kwargs.get("layout", ())]
    digest = hash_files(root, contents, layout)
    item.user_properties.append(("proves", [item.nodeid, digest, contents, layout]))
    if not item.config.getoption("--all") and _read_proved(root).get(item.nodeid) == digest:
        names = ", ".join([*contents, *(f"layout of {folder}" for folder in layout)])
        item.add_marker(pytest.mark.skip(reason=f"has passed with what there is now; --all runs it ({names})"))


class _Proofs:
    """Writes down what has passed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._found: dict[str, tuple[str, list[str], list[str]]] = {}
        self._outcomes: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "proves":
                test, *found = value  # type: ignore[misc]
                self._found[test] = tuple(found)
                self._outcomes.setdefault(test, {})[str(report.when)] = report.outcome

    def pytest_sessionfinish(self) -> None:
        proved = _read_proved(self._root)
        for test, (digest, contents, layout) in self._found.items():
            outcomes = self._outcomes[test]
            if "skipped" in outcomes.values():
                continue
            proved.pop(test, None)
            is_passed = outcomes == dict.fromkeys(("setup", "call", "teardown"), "passed")
            if is_passed and hash_files(self._root, contents, layout) == digest:
                proved[test] = digest
        if self._found:
            (self._root / "tests" / "proved.json").write_text(json.dumps(proved, indent=2, sort_keys=True) + "\n")
