"""Checkpoints are whole or refused, and whatever happens to the files of a run, its newest valid one stays."""

import errno
import itertools
import os
import random
import sys
import threading
from collections import ChainMap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.runs import checkpoint
from mjtrain.runs.checkpoint import (
    CheckpointError,
    checkpoint_iteration,
    checkpoint_path,
    find_valid_checkpoint,
    hold_checkpoint,
    list_checkpoints,
    load_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    save_checkpoint,
    set_damaged_aside,
    taking_apart,
)
from mjtrain.runs.run_dir import remove_leftovers
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import partial_path
from support.commands import run


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    content = {"weights": {"a": torch.arange(3.0)}, "iter": 4, "infos": {"task": "x"}}
    save_checkpoint(tmp_path / "model_4.pt", content)
    loaded = load_checkpoint(tmp_path / "model_4.pt", "cpu")
    assert torch.equal(loaded["weights"]["a"], content["weights"]["a"])
    assert (loaded["iter"], loaded["infos"]) == (4, {"task": "x"})
    assert [path.name for path in tmp_path.iterdir()] == ["model_4.pt"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("iter", "4", "is damaged: iter is of type str, not int"),
        ("infos", [], "is damaged: infos is of type list, not dict"),
        ("learner", None, "is damaged: learner is of type NoneType, not str"),
        ("ranks", 3, "is damaged: ranks is of type int, not list"),
        ("format", torch.zeros(2), r"has format tensor\(\[0., 0.\]\); this version reads format 1"),
    ],
)
def test_a_part_of_another_type_is_named(tmp_path: Path, key: str, value: Any, words: str) -> None:
    path = tmp_path / "model_4.pt"
    save_checkpoint(path, {"iter": 4, key: value})
    with pytest.raises(RequestError, match=f"^checkpoint {path}: {words}$"):
        load_checkpoint(path, "cpu")


def test_infos_of_rsl_rl_are_none(tmp_path: Path) -> None:
    torch.save({"iter": 4, "infos": None}, tmp_path / "model_4.pt")
    assert load_checkpoint(tmp_path / "model_4.pt", "cpu") == {"iter": 4}


class _Unsavable:
    def __reduce__(self) -> str:
        raise RuntimeError("the disk is full")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model_1.pt"
    save_checkpoint(path, {"iter": 1})
    with pytest.raises(RuntimeError, match="the disk is full"):
        save_checkpoint(path, {"iter": 2, "bad": _Unsavable()})
    assert load_checkpoint(path, "cpu") == {"iter": 1}
    assert list(tmp_path.iterdir()) == [path]


class _Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.marker),)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "model_1.pt"
    torch.save({"iter": 1, "payload": _Payload(tmp_path / "ran")}, path)
    with pytest.raises(RequestError, match="not a complete checkpoint of plain values"):
        load_checkpoint(path, "cpu")
    assert not (tmp_path / "ran").exists()


def test_the_reason_is_said_and_not_how_to_run_what_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model_1.pt"
    torch.save({"payload": _Payload(tmp_path / "ran")}, path)
    for content, because in ((path.read_bytes(), r"GLOBAL posix\.mkdir"), (b"<html>", "Unsupported operand 60")):
        path.write_bytes(content)
        with pytest.raises(RequestError, match=rf"plain values \(UnpicklingError: [^.]*{because}") as refused:
            load_checkpoint(path, "cpu")
        assert "weights_only" not in str(refused.value)


@pytest.mark.parametrize("size", [0, 10, 200])
def test_a_truncated_file_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model_1.pt"
    save_checkpoint(path, {"weights": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RequestError, match=r"checkpoint .*model_1\.pt: not a complete"):
        load_checkpoint(path, "cpu")


def test_a_held_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model_1.pt"
    with Path("/proc/self/mem").open("rb") as file:  # an error of the kernel, as of NFS
        monkeypatch.setitem(checkpoint._held, path, file)
        with pytest.raises(RequestError, match=r"model_1.pt: cannot be read \(Input/output error\)"):
            load_checkpoint(path, "cpu")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"model_9\.pt: no such file"):
        load_checkpoint(tmp_path / "model_9.pt", "cpu")


def test_a_payload_with_a_right_checksum_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "model_1.pt"
    save_checkpoint(path, {"iter": 1, "payload": _Payload(tmp_path / "ran")})
    assert find_valid_checkpoint(tmp_path) == (path, [])  # the checksum is not what stands in its way
    with pytest.raises(RequestError, match="not a complete checkpoint of plain values"):
        load_checkpoint(path, "cpu")
    assert not (tmp_path / "ran").exists()


def test_torch_reads_it_without_us(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "model_1.pt", {"weights": torch.arange(1000.0)})
    for mmap in (False, True):
        content = torch.load(tmp_path / "model_1.pt", weights_only=True, mmap=mmap)
        assert torch.equal(content["weights"], torch.arange(1000.0))


def test_one_flipped_bit_shows(tmp_path: Path) -> None:
    path = tmp_path / "model_1.pt"
    save_checkpoint(path, {"weights": torch.arange(1000.0)})
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert find_valid_checkpoint(tmp_path)[0] is None
        with pytest.raises(RequestError):
            read_checkpoint(path)


def test_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    for iteration in (9, 10, 11):
        save_checkpoint(checkpoint_path(tmp_path, iteration), {"iter": iteration})
    newest = checkpoint_path(tmp_path, 11)
    newest.write_bytes(newest.read_bytes()[:-1])
    path, problems = find_valid_checkpoint(tmp_path)
    assert path == checkpoint_path(tmp_path, 10)
    assert len(problems) == 1
    assert "model_11.pt" in problems[0]


def test_old_ones_are_pruned(tmp_path: Path) -> None:
    for iteration in (9, 10, 11):
        save_checkpoint(checkpoint_path(tmp_path, iteration), {"iter": iteration})
    (tmp_path / ".model_12.pt.partial").write_text("cut short")
    (tmp_path / "model_best.pt").write_text("somebody's own")
    prune_checkpoints(tmp_path, None)
    assert len(list_checkpoints(tmp_path)) == 3
    prune_checkpoints(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model_10.pt", "model_11.pt", "model_best.pt"]


@pytest.mark.process
def test_a_disk_that_takes_no_more_is_an_os_error(tmp_path: Path) -> None:
    """In a separate process, whose files may not grow beyond a limit."""
    code = (
        "import resource, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from mjtrain.runs.checkpoint import save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "path = Path(sys.argv[1])\n"
        "save_checkpoint(path, {'iter': 1})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "try: save_checkpoint(path, {'weights': torch.zeros(1 << 18)})\n"
        "except OSError as error: print(type(error).__name__, error.errno)\n"
    )
    path = tmp_path / "model_1.pt"
    done = run([sys.executable, "-c", code, str(path)])
    assert done.stdout.split() == ["OSError", str(errno.EFBIG)], done.stderr
    assert load_checkpoint(path, "cpu") == {"iter": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_threads_read_a_held_checkpoint_that_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "model_1.pt"
    save_checkpoint(path, {"iter": torch.zeros(1 << 20)})
    whole = path.read_bytes()
    hold_checkpoint(path)
    path.unlink()
    with ThreadPoolExecutor(8) as pool:
        assert all(data == whole for data in pool.map(lambda _: read_checkpoint(path), range(32)))


def test_only_errors_that_follow_from_the_content_are_of_a_damaged_file() -> None:
    path = Path("model_4.pt")
    for error in (
        RequestError("other networks"), torch.OutOfMemoryError("full"), torch.AcceleratorError("lost"),
        torch.distributed.DistBackendError("rank 1 is gone"), OSError("no disk"), MemoryError(), KeyboardInterrupt(),
        AttributeError("of a user's own algorithm, such as this file"),
    ):  # fmt: skip
        with pytest.raises(type(error)) as raised, taking_apart({}, path):
            raise error
        assert raised.value is error
    code = compile("def load(): [][0]", "task.py", "exec")
    exec(code, task := {"__name__": "mjtrain_task_mine"})  # as `catalog.file_module` names the file of a task
    with pytest.raises(IndexError), taking_apart({}, path):
        task["load"]()
    with pytest.raises(CheckpointError) as missing, taking_apart({}, path) as parts:
        parts["optimizer"]
    assert str(missing.value) == "checkpoint model_4.pt: is damaged: optimizer is missing"
    with pytest.raises(CheckpointError) as other, taking_apart({}, path) as parts:
        ChainMap(parts.get("counters", {}))["steps"]
    words = "is damaged: counters is not as a training saves it (KeyError: 'steps', at __init__.py:"
    assert words in str(other.value)


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


@pytest.mark.usefixtures("short_trial")
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
    """A run whose files are damaged at random."""

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
        """Prune without saying which is valid."""
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
        """End during a save, before the file has its name."""
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
