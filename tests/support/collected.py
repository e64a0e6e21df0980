"""Which tests were collected, those that are then deselected included."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
COLLECTED = pytest.StashKey[list[pytest.Item]]()


def is_whole(config: pytest.Config) -> bool:
    """Whether every test was collected, and not some files or some tests of a file."""
    files = {item.path for item in config.stash[COLLECTED]}
    return files >= set(TESTS.rglob("test_*.py")) and not any("::" in argument for argument in config.args)
