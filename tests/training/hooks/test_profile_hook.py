"""The profile of a training: where its time went, and a trace with the phases."""

import gzip
import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest

import mjtrain

pytestmark = pytest.mark.usefixtures("short_trial")

STEPS = 24
TRACED = {"collect": 2, "environment": 2 * STEPS, "physics": 2 * STEPS, "rewards": 2 * STEPS, "learn: update": 2}


def test_a_profile_has_every_phase_and_changes_nothing(tmp_path: Path) -> None:
    where = {"log_root": str(tmp_path), "logger": "none", "launch": mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)}
    plain = mjtrain.train("Cartpole-Balance", num_envs=4, max_iterations=5, **where)
    run = mjtrain.train("Cartpole-Balance", num_envs=4, max_iterations=5, profile=2, **where)
    assert run.metrics["loss/value"] == plain.metrics["loss/value"]
    title, _, *rows = (run.run_dir / "profile" / "iterations_2_to_3.txt").read_text().splitlines()
    assert "iterations 2 to 3 on rank 0" in title
    outer = [row for row in rows if not row.startswith(" ")]
    assert {row.split("  ")[0] for row in outer} == {
        "collect", "learn: returns", "learn: update", "metrics, checkpoints, rest"
    }  # fmt: skip
    assert abs(sum(float(row.split()[-1].rstrip("%")) for row in outer) - 100) < 0.5
    trace = json.loads(gzip.decompress((run.run_dir / "profile" / "iterations_4_to_5.json.gz").read_bytes()))
    ranges = Counter(event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation")
    assert {name: ranges[name] for name in TRACED} == TRACED
    assert any(event["name"] == "aten::addmm" for event in trace["traceEvents"])


def test_without_a_temporary_folder_the_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "removed"))
    where = {"log_root": str(tmp_path), "logger": "none", "launch": mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)}
    run = mjtrain.train("Cartpole-Balance", num_envs=4, max_iterations=4, profile=1, **where)
    assert run.metrics["iteration"] == 4
    said = " ".join(capsys.readouterr().out.split())
    assert "iterations_3_to_3.json.gz could not be written (No such file or directory); training continues" in said
