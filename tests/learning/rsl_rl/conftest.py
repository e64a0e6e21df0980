from pathlib import Path

import pytest

from support.shared import make_once
from support.students import train_teacher


@pytest.fixture(scope="session")
def teacher_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a teacher, which no test may change."""
    (run_dir,) = make_once(tmp_path_factory, "teacher", train_teacher).glob("*/*")
    return run_dir
