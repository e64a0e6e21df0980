"""What users and their programs rely on is as agreed in contracts.json.

`WRITE_CONTRACTS=1 uv run pytest -n 0 tests/test_contracts.py` writes that file.
"""

from pathlib import Path

import pytest

from support import commands, contracts
from support.shared import make_once

ITERATIONS = 3


def train(folder: Path) -> None:
    for ranks in (1, 2):
        done = commands.run(
            [
                *(commands.BIN / "train", "Cartpole-Balance", "--gpu-ids", "None", "--num-workers", str(ranks)),
                *("--num-threads", "1", "--num-envs", "8", "--max-iterations", str(ITERATIONS)),
                *("--eval-interval", "2", "--eval-episodes", "2", "--log-root", f"{ranks}"),
            ],
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_once(tmp_path_factory, "contracts", train)


def test_public_names_have_their_parameters_and_fields() -> None:
    contracts.check("names", contracts.list_names())


def test_commands_have_their_flags_and_defaults() -> None:
    contracts.check("flags", contracts.list_flags())


@pytest.mark.process
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_has_its_files_and_their_keys(runs: Path, ranks: int) -> None:
    (run_dir,) = runs.glob(f"{ranks}/*/*")
    contracts.check(f"run of {ranks} rank{'s' * (ranks > 1)}", contracts.list_run(run_dir))


def test_a_difference_is_one_line_that_says_what_it_is() -> None:
    agreed = {"train --seed": "INT = 0", "train --fast": "switch", "train": "command"}
    now = {"train --seed": "INT = 1", "train --slow": "switch", "train": "command"}
    assert list(contracts.find_differences(agreed, now)) == [
        "- train --fast: switch   (missing)",
        "! train --seed: was INT = 0, is INT = 1",
        "+ train --slow: switch   (new: add it with WRITE_CONTRACTS=1)",
    ]
