"""Whatever happens to the files of a run, its newest valid checkpoint stays."""

import itertools
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import mjtrain
from mjtrain.runs.checkpoint import (
    checkpoint_iteration,
    checkpoint_path,
    find_valid_checkpoint,
    list_checkpoints,
    prune_checkpoints,
    save_checkpoint,
    set_damaged_aside,
)
from mjtrain.runs.run_dir import remove_leftovers
from mjtrain.runtime.files import partial_path

DAMAGE = {
    "cut short": lambda data: data[:-7],
    "empty": lambda data: b"",
    "one bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "something else": lambda data: b"x" * len(data),
}


def train(log_root: Path, iterations: int, **options: Any) -> Any:
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    fixed: dict[str, Any] = {"num_envs": 4, "logger": "none", "log_root": str(log_root), "launch": launch}
    return mjtrain.train("Cartpole-Balance", max_iterations=iterations, **fixed, **options)


def test_a_damaged_newer_file_costs_no_valid_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = train(tmp_path, 2).run_dir
    newer = checkpoint_path(run_dir, 4)
    newer.write_bytes(checkpoint_path(run_dir, 2).read_bytes()[:-7])
    result = train(tmp_path, 3, resume=str(run_dir), keep_checkpoints=1)
    assert find_valid_checkpoint(run_dir) == (result.checkpoint, [])
    assert [path.name for path in list_checkpoints(run_dir)] == ["model_3.pt"]
    assert (run_dir / "model_4.pt.damaged").is_file()
    assert "checkpoint model_4.pt is damaged, and is now model_4.pt.damaged" in capfd.readouterr().out


def test_what_is_damaged_again_gets_another_name(tmp_path: Path) -> None:
    for _ in range(3):
        checkpoint_path(tmp_path, 7).write_bytes(b"")
        set_damaged_aside(tmp_path, 0)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["model_7.pt.damaged", "model_7.pt.damaged-2", "model_7.pt.damaged-3"]


def test_the_newest_is_found_while_a_training_saves_and_deletes(tmp_path: Path) -> None:
    def train() -> None:
        for iteration in range(2, 100):
            save_checkpoint(checkpoint_path(tmp_path, iteration), {"iter": iteration})
            prune_checkpoints(tmp_path, 1, newest=iteration)

    save_checkpoint(checkpoint_path(tmp_path, 1), {"iter": 1})
    training = threading.Thread(target=train)
    training.start()
    found = []
    while training.is_alive():
        found.append(find_valid_checkpoint(tmp_path))
    training.join()
    assert [problems for path, problems in found if path is None] == []


def test_a_folder_that_may_be_listed_but_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, user = Path("run"), os.geteuid()
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # another user may not come here from the root
    run_dir.mkdir()
    save_checkpoint(checkpoint_path(run_dir, 1), {"iter": 1})
    run_dir.chmod(0o444)
    try:
        os.seteuid(65534 if user == 0 else user)  # root may search every folder
        found = find_valid_checkpoint(run_dir)
    finally:
        os.seteuid(user)
        run_dir.chmod(0o755)
    assert found == (None, ["checkpoint run/model_1.pt: cannot be read (Permission denied)"])


class Walk:
    """A run whose files suffer what chance brings."""

    def __init__(self, run_dir: Path, seed: int) -> None:
        self.run_dir = run_dir
        self.chance = random.Random(seed)
        self.iteration = 0
        self.best: int | None = None
        self.is_training = True

    def save(self) -> None:
        """Save a later iteration and prune, as `CheckpointHook` does."""
        if not self.is_training:
            return
        self.iteration += self.chance.randint(1, 3)
        save_checkpoint(checkpoint_path(self.run_dir, self.iteration), {"iter": self.iteration})
        if self.chance.random() < 0.3:
            self.best = self.iteration
        prune_checkpoints(self.run_dir, self.chance.choice((None, 1, 1, 2, 3)), self.best, self.iteration)

    def prune(self) -> None:
        """Prune without a word about which is valid."""
        prune_checkpoints(self.run_dir, self.chance.choice((1, 2)), self.best)

    def damage(self) -> None:
        """Damage one file, the newest more often than others; or have a damaged one come from elsewhere."""
        paths = list_checkpoints(self.run_dir)
        if len(paths) < 2 or self.chance.random() < 0.2:
            self.chance.choice(paths or [checkpoint_path(self.run_dir, 1)])
            later = checkpoint_path(self.run_dir, self.iteration + self.chance.randint(1, 9))
            later.write_bytes(b"from elsewhere")
            return
        path = paths[0] if self.chance.random() < 0.6 else self.chance.choice(paths)
        path.write_bytes(DAMAGE[self.chance.choice(list(DAMAGE))](path.read_bytes() or b"x"))

    def kill(self) -> None:
        """End in the midst of a save, before the file has its name."""
        partial_path(checkpoint_path(self.run_dir, self.iteration + 1)).write_bytes(b"half a checkp")
        self.is_training = False

    def resume(self) -> None:
        """Resume from the newest valid one."""
        checkpoint, _ = find_valid_checkpoint(self.run_dir)
        self.iteration = 0 if checkpoint is None else checkpoint_iteration(checkpoint)
        remove_leftovers(self.run_dir)
        set_damaged_aside(self.run_dir, self.iteration)
        self.is_training = True


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_valid_one_survives_whatever_happens(tmp_path: Path, seed: int) -> None:
    walk = Walk(tmp_path, seed)
    history = []
    for _ in range(60):
        step = walk.chance.choice((walk.save, walk.save, walk.prune, walk.damage, walk.kill, walk.resume))
        before, _ = find_valid_checkpoint(tmp_path)
        content = None if before is None else before.read_bytes()
        history.append(step.__name__)
        step()
        if step == walk.damage or before is None:
            continue
        after, _ = find_valid_checkpoint(tmp_path)
        assert after is not None, history
        assert checkpoint_iteration(after) >= checkpoint_iteration(before), history
        if step != walk.save:  # a save may be newer, and what is older may then go
            assert before.read_bytes() == content, history
    walk.resume()
    assert not list(tmp_path.glob(".*"))
    assert {step for step, _ in itertools.groupby(sorted(history))} == {"save", "prune", "damage", "kill", "resume"}
