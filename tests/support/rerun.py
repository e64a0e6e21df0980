"""Run pytest, and once more, alone, what failed beside other tests.

    uv run python tests/support/rerun.py [ARGUMENT OF PYTEST ...]

A busy machine, or a test on the next core, can fail a test with which nothing is wrong. What passes alone is printed at
the end with its first failure: it depends on what runs beside it, which is a defect of the test or of what it tests.
What fails alone too fails the run, and so does everything that is not the failure of a test. The last line counts.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

MAX_FAILURES = 10
"""After so many failures alone, the rest count as failed: the run fails anyway."""

_CHILD = "--recorded-child"


def strip_group(nodeid: str) -> str:
    """Return the node id without the `@group` that pytest-xdist appends."""
    file, colons, name = nodeid.partition("::")
    at = name.rfind("@")
    return file + colons + (name[:at] if at > name.rfind("]") else name)


class Recorder:
    """A plugin that writes what happens as lines of JSON, so that it is known however the process ends."""

    def __init__(self, path: Path, only: list[str] | None) -> None:
        self._file = path.open("a")
        self._only = only

    def _write(self, kind: str, tests: Sequence[str] = (), **values: str) -> None:
        json.dump({"kind": kind, "tests": [strip_group(test) for test in tests], **values}, self._file)
        self._file.write("\n")
        self._file.flush()

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Do not even import other files."""
        if self._only is None or collection_path.is_dir():
            return None
        files = {config.rootpath / test.partition("::")[0] for test in self._only}
        return None if collection_path in files else True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._only is not None:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._only])
            items[:] = [item for item in items if item.nodeid in self._only]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write("collected", [item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._write("collected", ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write("error")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write("started", [nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        text = report.longreprtext.encode("utf-8", "backslashreplace").decode() if report.failed else ""
        # A worker that crashes leaves one report, whose `when` is none of pytest's.
        is_last = report.when not in ("setup", "call")
        self._write("report", [report.nodeid], outcome=report.outcome, text=text, last="yes" if is_last else "")


class Record:
    """What a run of pytest was: its status, and what became of each test."""

    def __init__(self, arguments: list[str], only: list[str] | None = None) -> None:
        """Run pytest.

        Args:
            arguments: For pytest.
            only: Node ids of the tests to run, of those that the arguments select; None for all.
        """
        with tempfile.TemporaryDirectory() as folder:
            path, selection = Path(folder) / "record", Path(folder) / "only"
            path.touch()
            selection.write_text(json.dumps(only))
            self.status = _run_child([str(path), str(selection), *arguments])
            lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        self.has_errors = any(line["kind"] == "error" for line in lines)
        reports = [line for line in lines if line["kind"] == "report"]
        failures = [line for line in reports if line["outcome"] == "failed"]
        self.texts: dict[str, str] = {line["tests"][0]: line["text"] for line in reversed(failures)}
        self.failed = _list_tests(failures)
        skipped = _list_tests([line for line in reports if line["outcome"] == "skipped"])
        self.skipped = [test for test in skipped if test not in self.texts]
        ended = _list_tests([line for line in reports if line["last"]])
        not_passed = {*self.texts, *skipped}
        self.passed = [test for test in ended if test not in not_passed]
        self.lost = _list_open(lines, "collected", set(ended))
        """Tests that were collected and did not end."""
        self.interrupted = _list_open(lines, "started", set(ended))
        """Tests that were running when the process ended."""


def _list_tests(lines: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(test for line in lines for test in line["tests"]))


def _list_open(lines: list[dict[str, Any]], kind: str, ended: set[str]) -> list[str]:
    return [test for test in _list_tests([line for line in lines if line["kind"] == kind]) if test not in ended]


def _run_child(arguments: list[str]) -> int:
    """Run pytest in a separate process; signals that end this process end it as well."""
    # -P: the modules of this folder are not importable by their short names.
    child = subprocess.Popen([sys.executable, "-P", __file__, _CHILD, *arguments])
    for signum in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, lambda number, _: child.send_signal(number))
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to pytest, too
    status = child.wait()
    return status if status >= 0 else 128 - status


def run_alone(arguments: list[str], tests: list[str]) -> list[str]:
    """Run tests again, in one process without workers; return those that pass."""
    passed, rest = [], tests
    while rest:
        record = Record([*arguments, "-n", "0", f"--maxfail={MAX_FAILURES}"], rest)
        passed += record.passed
        # A test that waits for ever ends the process, and the tests after it with it: these are given another one.
        rest = [test for test in record.lost if test not in record.interrupted] if record.interrupted else []
    return passed


def _print_heading(text: str, fill: str = "=") -> None:
    print(f" {text} ".center(80, fill))  # noqa: T201


def main(arguments: list[str]) -> int:
    first = Record(arguments)
    only_tests_failed = first.failed and not first.has_errors and not first.lost
    can_run_again = only_tests_failed and first.status == pytest.ExitCode.TESTS_FAILED
    alone = run_alone(arguments, first.failed) if can_run_again else []
    twice = [test for test in first.failed if test not in alone]
    if alone:
        _print_heading(f"failed beside other tests and passed alone: {len(alone)}")
        for test in alone:
            _print_heading(test, "_")
            print(first.texts[test])  # noqa: T201
    if can_run_again and twice:
        _print_heading(f"failed beside other tests and alone: {len(twice)}")
        print("\n".join(twice))  # noqa: T201
    status = first.status if not can_run_again else 1 if twice else 0
    if first.lost and status == 0:
        status = 1
    counts = {
        "passed": len(first.passed) + len(alone),
        "failed": len(twice),
        "skipped": len(first.skipped),
        "not run to the end": len(first.lost),
    }
    parts = [f"{count} {word}" for word, count in counts.items() if count or word == "passed"]
    if status != 0 and not twice:
        parts.append(f"status {status} of pytest")
    _print_heading(", ".join(parts))
    return status


if __name__ == "__main__":
    if sys.argv[1:2] == [_CHILD]:
        _, _, path, only, *rest = sys.argv
        sys.exit(pytest.main(rest, plugins=[Recorder(Path(path), json.loads(Path(only).read_text()))]))
    sys.exit(main(sys.argv[1:]))
