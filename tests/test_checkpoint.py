import os
from pathlib import Path

import pytest
import torch

from mjtrain.checkpoint import load_checkpoint, save_checkpoint
from mjtrain.errors import RequestError


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    content = {"weights": {"a": torch.arange(3.0)}, "iter": 4, "infos": {"task": "x"}}
    save_checkpoint(tmp_path / "model_4.pt", content)
    loaded = load_checkpoint(tmp_path / "model_4.pt", "cpu")
    assert torch.equal(loaded["weights"]["a"], content["weights"]["a"])
    assert (loaded["iter"], loaded["infos"]) == (4, {"task": "x"})
    assert [path.name for path in tmp_path.iterdir()] == ["model_4.pt"]


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
    with pytest.raises(RequestError, match="not a whole checkpoint of plain values"):
        load_checkpoint(path, "cpu")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("size", [0, 10, 200])
def test_a_truncated_file_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model_1.pt"
    save_checkpoint(path, {"weights": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RequestError, match=r"checkpoint .*model_1\.pt: not a whole"):
        load_checkpoint(path, "cpu")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"model_9\.pt: no such file"):
        load_checkpoint(tmp_path / "model_9.pt", "cpu")
