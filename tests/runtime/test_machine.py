"""What is known of this machine."""

import importlib.metadata
from pathlib import Path

from mjtrain.runtime.machine import PACKAGES, installed_packages, is_writable, nearest_existing


def test_a_place_that_cannot_be_looked_at_does_not_exist(tmp_path: Path) -> None:
    """A name that is too long is refused, as is a folder that this user may not enter."""
    assert nearest_existing(tmp_path / ("a" * 300) / "logs") == tmp_path
    assert is_writable(tmp_path / ("a" * 300) / "logs")


def test_versions_are_those_that_python_reports() -> None:
    found = installed_packages()
    assert list(found) == list(PACKAGES)
    assert found == {name: importlib.metadata.version(name) for name in PACKAGES}
