"""What the tests of all learners do to a request that a learner refuses."""

from pathlib import Path

import pytest

from mjtrain.cli.train import main as train


def check_refused(
    learner: str, words: str, settings: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that train says so in one line, with status 2, and writes nothing.

    Args:
        learner: As --learner has it.
        words: Further flags.
        settings: Content of the file for --learner-config.
        says: Part of the line.
        folder: Where files may be written.
        capsys: Of the test.
    """
    file = folder / "own.yaml"
    file.write_text(settings)
    small = ["Cartpole-Balance", "--gpu-ids", "None", "--num-envs", "8", "--logger", "none"]
    given = ["--learner", learner, *words.split(), "--learner-config", str(file), "--log-root", str(folder / "logs")]
    with pytest.raises(SystemExit) as stop:
        train([*small, *given])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    assert stop.value.code == 2
    assert not (folder / "logs").exists()
