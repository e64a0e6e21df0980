"""Where Warp keeps compiled kernels, in a container whose home cannot be written too."""

import os
import tempfile
from pathlib import Path

import pytest

from mjtrain.runtime.deferred_imports import choose_kernel_cache
from mjtrain.runtime.errors import RequestError
from mjtrain.tools.doctor.kernels import check_kernel_cache


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WARP_CACHE_PATH", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "home"


def test_the_usual_folder(home: Path) -> None:
    assert choose_kernel_cache() == (home / ".cache" / "warp", False)
    assert check_kernel_cache(on_cpu=False).result == "ok"


def test_a_home_that_cannot_be_written(home: Path) -> None:
    home.write_text("no folder, so that root cannot write below it")
    folder, replaced = choose_kernel_cache()
    assert replaced
    assert folder == home.parent / f"mjtrain-warp-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700  # kernels are code
    assert list(folder.iterdir()) == []
    found = check_kernel_cache(on_cpu=False)
    assert (found.result, "WARP_CACHE_PATH" in found.advice) == ("warning", True)


def test_no_folder_at_all(home: Path) -> None:
    home.write_text("")
    (home.parent / f"mjtrain-warp-{os.getuid()}").write_text("")
    with pytest.raises(RequestError, match="set WARP_CACHE_PATH to a folder that can be written"):
        choose_kernel_cache()
    assert check_kernel_cache(on_cpu=False).result == "failure"
    assert check_kernel_cache(on_cpu=True).result == "warning"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_used(home: Path) -> None:
    home.write_text("")
    folder = home.parent / f"mjtrain-warp-{os.getuid()}"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(RequestError):
        choose_kernel_cache()


def test_a_folder_that_was_asked_for_is_not_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_CACHE_PATH", "/proc/1/kernels")
    with pytest.raises(RequestError, match="WARP_CACHE_PATH=/proc/1/kernels: cannot be written"):
        choose_kernel_cache()
