import os
from pathlib import Path

import pytest


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of somebody else is installed, which registers the learners linear and missing; for all processes."""
    site = tmp_path / "site"
    info = site / "third_party-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mjtrain.learners]\nlinear = third_party:LIBRARY\nmissing = third_party:MISSING\n"
    )
    (site / "third_party.py").symlink_to(Path(__file__).with_name("third_party.py"))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", "")))))
