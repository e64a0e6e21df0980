"""`benchmarks/gpu.sh`, small and on a CPU."""

import re
import subprocess
from pathlib import Path

import pytest

from support.machine import patience

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.sh"

pytestmark = pytest.mark.process


def write_report(folder: Path, *flags: str) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", SCRIPT, "--device", "cpu", "--tiny", "--out", folder, *flags],
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    report = folder / "report.md"
    return done.returncode, report.read_text() if report.exists() else done.stderr


def test_a_part_is_written_and_what_fails_in_it_is_told(tmp_path: Path) -> None:
    status, report = write_report(tmp_path, "--only", "throughput", "--tasks", "No-Such-Task Cartpole-Balance")
    assert status == 1, report
    assert re.search(r"^\| No-Such-Task \| 8 \| failed: .*No-Such-Task", report, re.M), report
    measured = r"^\| Cartpole-Balance \| 8 \| [\d,]+ \| [\d,]+ \| [\d,]+ \| \d+% \| \d+% \| - \| 0, 0 \|$"
    assert re.search(measured, report, re.M), report
    assert report.endswith("1 steps failed.\n")


@pytest.mark.parametrize("flags", [("--only", "nothing"), ("--device", "tpu"), ("--fast",)])
def test_an_unknown_flag_is_named(flags: tuple[str, ...], tmp_path: Path) -> None:
    status, words = write_report(tmp_path / "report", *flags)
    assert status == 2
    assert " ".join(flags) in words
    assert not (tmp_path / "report").exists()
