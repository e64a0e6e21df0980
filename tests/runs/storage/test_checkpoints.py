"""Objects are complete before latest.json names them, and writers do not undo each other; what is newest is known."""

import json
import threading
from pathlib import Path

import pytest
import torch

from mjtrain.runs.checkpoint import (
    WANDB_ID_FILE,
    BestCheckpoint,
    checkpoint_path,
    load_checkpoint,
    read_best,
    save_checkpoint,
    write_best,
)
from mjtrain.runs.storage.checkpoints import (
    LATEST,
    Latest,
    NewerThereError,
    choose_stale,
    fetch_checkpoint,
    find_stored_iteration,
    newest_first,
    object_iteration,
    object_name,
    parse_latest,
    publish,
    read_latest,
)
from mjtrain.runs.storage.store import Storage
from support.storage import Proxy

pytestmark = pytest.mark.xdist_group("moto")  # its first requests import for seconds


def save(folder: Path, iteration: int, content: float | None = None, size: int = 100) -> Path:
    """Save a checkpoint that knows its number."""
    (folder / "params").mkdir(parents=True, exist_ok=True)
    (folder / "params" / "env.yaml").write_text("physics: real\n")
    path = checkpoint_path(folder, iteration)
    save_checkpoint(path, {"iter": iteration, "weights": torch.full((size,), content or float(iteration))})
    return path


def put(storage: Storage, path: Path, keep: int | None = None) -> None:
    with path.open("rb") as file:
        publish(storage, path, file, keep=keep)


def fetch(url: str, folder: Path) -> tuple[int | None, list[str]]:
    """Fetch into a new folder; return the iteration that the content says, and the lines."""
    folder.mkdir()
    path, lines = fetch_checkpoint(url, folder)
    assert not list(folder.glob(".*"))
    return None if path is None else load_checkpoint(path, "cpu")["iter"], lines


def object_names(storage: Storage) -> list[str]:
    return newest_first(list(storage.list_objects()), None)


def test_what_is_stored_comes_back_with_its_params(any_url: str, tmp_path: Path) -> None:
    storage = Storage(any_url)
    assert find_stored_iteration(any_url) == 0
    assert fetch(any_url, tmp_path / "nothing") == (None, [])
    for iteration in (2, 4):
        put(storage, save(tmp_path / "run", iteration, size=3_000_000))  # 12 MB: several pieces
    assert find_stored_iteration(any_url) == 4
    assert fetch(any_url, tmp_path / "there") == (4, [])
    assert (tmp_path / "there" / "model_4.pt").read_bytes() == (tmp_path / "run" / "model_4.pt").read_bytes()
    assert (tmp_path / "there" / "params" / "env.yaml").read_text() == "physics: real\n"


def test_the_best_one_is_kept_and_comes_back(any_url: str, tmp_path: Path) -> None:
    storage = Storage(any_url)
    best = BestCheckpoint(metric="eval/return", value=3.5, iteration=4)
    for iteration in (2, 4, 6, 8):
        path = save(tmp_path / "run", iteration)
        if iteration == 4:
            write_best(tmp_path / "run", best)
        put(storage, path, keep=1)
    assert [object_iteration(name) for name in object_names(storage)] == [8, 4]
    assert fetch(any_url, tmp_path / "there") == (8, [])
    assert read_best(tmp_path / "there") == best
    assert (tmp_path / "there" / "model_4.pt").read_bytes() == (tmp_path / "run" / "model_4.pt").read_bytes()
    storage.delete([name for name in object_names(storage) if object_iteration(name) == 4])
    lines = [f"the best checkpoint, model_4.pt, is not stored at {storage.url}"]
    assert fetch(any_url, tmp_path / "without") == (8, lines)
    assert read_best(tmp_path / "without") is None


def test_the_robot_is_stored_and_comes_back(any_url: str, tmp_path: Path) -> None:
    storage = Storage(any_url)
    path = save(tmp_path / "run", 2)
    mesh = path.parent / "robot" / "assets" / "0123456789ab" / "leg.stl"
    mesh.parent.mkdir(parents=True)
    mesh.write_bytes(bytes(range(256)) * 30_000)  # 7.7 MB: two pieces
    (path.parent / "robot" / "dog.xml").write_text("<mujoco/>")
    (path.parent / "robot" / ".dog.xml.partial").write_text("<muj")
    put(storage, path)
    (path.parent / "robot" / "dog-2.xml").write_text("<mujoco model='2'/>")
    put(storage, save(tmp_path / "run", 4))
    there = tmp_path / "there"
    (there / "robot").mkdir(parents=True)
    (there / "robot" / "dog.xml").write_text("<mujoco model='mine'/>")
    assert fetch_checkpoint(any_url, there)[0] == there / "model_4.pt"
    assert (there / "robot" / "assets" / "0123456789ab" / "leg.stl").read_bytes() == mesh.read_bytes()
    assert (there / "robot" / "dog-2.xml").read_text() == "<mujoco model='2'/>"
    assert (there / "robot" / "dog.xml").read_text() == "<mujoco model='mine'/>"  # what already exists stays
    assert not [path for path in there.rglob("*") if path.name.endswith(".partial")]


def test_metrics_come_back_though_a_restart_was_recorded_before(any_url: str, tmp_path: Path) -> None:
    """As on another machine after a restart, and on one whose disk is older than the storage."""
    path, there = save(tmp_path / "run", 4), tmp_path / "there"
    stored = ['{"iteration": 1}', '{"event": "restart", "iteration": 1}', '{"iteration": 2}', '{"iteration": 4}']
    (path.parent / "metrics.jsonl").write_text("\n".join(stored) + "\n")
    put(Storage(any_url), path)
    there.mkdir()
    later = ['{"iteration": 5}', '{"event": "end"}', '{"iteration": 6}']
    (there / "metrics.jsonl").write_text("\n".join([*stored[:3], '{"iteration": 3}', *later, '{"event']))
    assert fetch_checkpoint(any_url, there) == (there / "model_4.pt", [])
    assert (there / "metrics.jsonl").read_text().splitlines() == [*stored, *later]


def test_which_run_of_wandb_continues_is_stored_and_comes_back(any_url: str, tmp_path: Path) -> None:
    storage, record = Storage(any_url), tmp_path / "run" / WANDB_ID_FILE
    path = save(tmp_path / "run", 2)
    record.mkdir()
    put(storage, path)
    record.rmdir()
    record.write_text("r1")
    put(storage, save(tmp_path / "run", 4))
    assert fetch(any_url, tmp_path / "there") == (4, [])
    assert (tmp_path / "there" / WANDB_ID_FILE).read_text() == "r1"


def test_a_folder_that_cannot_be_made_costs_a_line_or_nothing(any_url: str, tmp_path: Path) -> None:
    path = save(tmp_path / "run", 2)
    (path.parent / "robot").mkdir()
    (path.parent / "robot" / "dog.xml").write_text("<mujoco/>")
    put(Storage(any_url), path)
    there = tmp_path / "there"
    there.mkdir()
    for name in ("params", "robot"):
        (there / name).write_text("in the way")
    lines = [f"{there / 'robot' / 'dog.xml'}: cannot be written (File exists)"]
    assert fetch_checkpoint(any_url, there) == (there / "model_2.pt", lines)


def test_a_newer_one_stays_the_latest(any_url: str, tmp_path: Path) -> None:
    storage = Storage(any_url)
    put(storage, save(tmp_path / "one", 30))
    with pytest.raises(NewerThereError, match="holds iteration 30 of run one on host"):
        put(storage, save(tmp_path / "two", 20))
    assert fetch(any_url, tmp_path / "there") == (30, [])
    put(storage, save(tmp_path / "two", 40))
    assert fetch(any_url, tmp_path / "again") == (40, [])


def test_conditional_writes_conflict(any_url: str, tmp_path: Path) -> None:
    """Eight writers at once: in the end latest.json names the newest, and everything is whole."""
    storage = Storage(any_url)
    put(storage, save(tmp_path / "first", 1))
    refused, failed = [], []

    def write(iteration: int) -> None:
        path = save(tmp_path / f"run_{iteration}", iteration)
        barrier.wait()
        try:
            put(Storage(any_url), path)
        except NewerThereError:
            refused.append(iteration)
        except Exception as error:
            failed.append(error)

    barrier = threading.Barrier(8)
    threads = [threading.Thread(target=write, args=(iteration,)) for iteration in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert 9 not in refused
    latest, _ = read_latest(storage)
    assert latest is not None
    assert (latest.iteration, latest.run) == (9, "run_9")
    assert fetch(any_url, tmp_path / "there") == (9, [])
    assert len(object_names(storage)) == 9


def test_the_object_is_complete_before_latest_json_names_it(url: str, network: Proxy, tmp_path: Path) -> None:
    storage = Storage(url)
    put(storage, save(tmp_path / "run", 2))
    network.requests.clear()
    put(storage, save(tmp_path / "run", 4))
    puts = [line.split()[1].rpartition("/")[2].partition("-")[0] for line in network.requests if "PUT" in line]
    assert puts == ["model_4", "env.yaml", LATEST]


@pytest.mark.parametrize("damage", ["missing", "garbage", "no name", "names what is gone", "names an old one"])
def test_a_latest_json_that_is_not_true_costs_a_line(any_url: str, tmp_path: Path, damage: str) -> None:
    storage = Storage(any_url)
    put(storage, save(tmp_path / "run", 2))
    old, _ = storage.read(LATEST) or pytest.fail("it is not there")
    put(storage, save(tmp_path / "run", 4))
    put(storage, save(tmp_path / "run", 6))
    newest = object_names(storage)[0]
    content, version = storage.read(LATEST) or pytest.fail("it is not there")
    expected = 6
    if damage == "missing":
        storage.delete([LATEST])
    elif damage == "garbage":
        storage.replace(LATEST, content[:50], version)
    elif damage == "no name":
        storage.replace(LATEST, json.dumps(json.loads(content) | {"object": None}).encode(), version)
    elif damage == "names what is gone":
        storage.delete([newest])
        expected = 4
    else:
        storage.replace(LATEST, old, version)
    iteration, lines = fetch(any_url, tmp_path / "there")
    assert iteration == expected
    (line,) = lines
    assert LATEST in line
    put(storage, save(tmp_path / "run", 8))  # and the next save mends it
    assert fetch(any_url, tmp_path / "again") == (8, [])


def test_after_its_object_is_gone_latest_json_can_be_replaced_by_an_older_one(any_url: str, tmp_path: Path) -> None:
    storage = Storage(any_url)
    for iteration in (2, 6):
        put(storage, save(tmp_path / "run", iteration))
    storage.delete([object_names(storage)[0]])
    put(storage, save(tmp_path / "other", 4))
    assert fetch(any_url, tmp_path / "there") == (4, [])


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "no checkpoint"])
def test_a_damaged_object_is_passed_over_with_a_line(any_url: str, tmp_path: Path, damage: str) -> None:
    import hashlib
    import io

    from mjtrain.runs.storage.checkpoints import object_name

    storage = Storage(any_url)
    for iteration in (2, 4):
        put(storage, save(tmp_path / "run", iteration))
    newest = object_names(storage)[0]
    data = bytearray((tmp_path / "run" / "model_4.pt").read_bytes())
    if damage == "flipped":
        data[100] ^= 1
    elif damage == "truncated":
        del data[-1000:]
    elif damage == "empty":
        data.clear()
    else:
        data = bytearray(b"something else")
        newest = object_name(5, hashlib.sha256(data).hexdigest())
    storage.upload(newest, io.BytesIO(data))
    iteration, lines = fetch(any_url, tmp_path / "there")
    assert iteration == (2 if damage != "no checkpoint" else 4)
    assert f"passed over {any_url}/{newest}" in lines[-1]


def test_only_the_newest_are_kept(any_url: str, tmp_path: Path) -> None:
    storage = Storage(any_url)
    for iteration in (2, 4, 6, 8):
        put(storage, save(tmp_path / "run", iteration), keep=2)
    assert [name.partition("-")[0] for name in object_names(storage)] == ["model_8", "model_6"]
    assert fetch(any_url, tmp_path / "there") == (8, [])


def latest(iteration: int) -> Latest:
    name = object_name(iteration, "ab" * 32)
    return Latest(iteration=iteration, object=name, sha256="ab" * 32, size=1, run="r", host="h", time=0.0)


def test_latest_json_is_read_back_or_known_to_be_damaged() -> None:
    assert parse_latest(latest(7).to_json()) == latest(7)
    for damaged in (b"", latest(7).to_json()[:-5], b"[]", b"{}", latest(7).to_json().replace(b"model_7", b"model_8")):
        assert parse_latest(damaged) is None


def test_the_newest_leads_and_what_latest_json_names_wins_a_tie() -> None:
    names = [object_name(5, "00" * 32), object_name(40, "ff" * 32), object_name(40, "ab" * 32), "params/env.yaml", "x"]
    assert newest_first(names, latest(40)) == [names[2], names[1], names[0]]
    assert newest_first(names, None) == [names[1], names[2], names[0]]


def test_what_is_newer_than_the_latest_is_not_deleted() -> None:
    names = [object_name(iteration, "ab" * 32) for iteration in (10, 20, 30, 40)]
    assert choose_stale(names, latest(30), keep=2) == [names[0]]
    assert choose_stale(names, latest(30), keep=1) == [names[1], names[0]]
