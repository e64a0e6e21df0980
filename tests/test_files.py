"""Files that are whole or not there, whatever lies beside them and whatever the file system can do."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mjtrain.runs.checkpoint import save_checkpoint
from mjtrain.runtime import files
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import (
    check_writable,
    describe_absence,
    find_partials,
    read_regular,
    remove_partials,
    replacing,
    sync_folder,
    write_out,
    write_whole,
)
from support.frozen import dead_file_system
from support.machine import patience


def test_a_link_at_the_name_that_was_predictable_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("model_5.pt", "best.json"):
        (tmp_path / f".{name}.partial").symlink_to(victim)
    save_checkpoint(tmp_path / "model_5.pt", {"iter": 5})
    write_whole(tmp_path / "best.json", "{}")
    assert victim.read_text() == "mine"


def test_a_link_at_the_very_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, target = tmp_path / "victim", tmp_path / "file"
    victim.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda size: "ab" * size)
    files.partial_path(target).symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(target, "new")
    assert victim.read_text() == "mine"
    assert not target.exists()


def test_two_names_of_the_same_file_differ(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as one, replacing(tmp_path / "file") as other:
        one.write(b"1")
        other.write(b"22")
        assert len(find_partials(tmp_path / "file")) == 2
    assert (tmp_path / "file").read_bytes() == b"1"  # whoever is last
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_mode_is_that_of_any_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "one", "")
    (tmp_path / "other").write_text("")
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_content_and_name_are_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, original = [], os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(tmp_path / "file", "x")
    assert [path.parent if path.is_file() or "partial" in path.name else path for path in synced] == [tmp_path] * 2
    assert synced[1] == tmp_path


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_synchronise_folders_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Such a file system is not at hand here, so its answer is."""
    original = os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_dir():
            raise OSError(number, os.strerror(number))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    save_checkpoint(tmp_path / "model_1.pt", {"iter": 1})
    assert (tmp_path / "model_1.pt").is_file()
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        sync_folder(tmp_path)


def test_a_disk_that_is_full_once(tmp_path: Path) -> None:
    path = tmp_path / "model_1.pt"
    files.full.add(path)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_whole(path, b"x" * 100_000)
    assert list(tmp_path.iterdir()) == []
    write_whole(path, b"x")
    assert path.read_bytes() == b"x"


def test_left_overs_of_any_version_are_removed_and_nothing_else(tmp_path: Path) -> None:
    left = [".model_4.pt.partial", ".best.json.partial", ".env.yaml.partial", ".model_4.pt.0123456789abcdef.partial"]
    mine = [".notes.partial", "model_4.pt", "model_5.pt.partial", ".hidden"]
    for name in (*left, *mine):
        (tmp_path / name).touch()
    (tmp_path / ".export.0123456789abcdef.partial").mkdir()  # perhaps being written
    remove_partials([tmp_path, tmp_path / "missing"])
    assert {path.name for path in tmp_path.iterdir()} == {*mine, ".export.0123456789abcdef.partial"}


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(tmp_path / name)
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 3) == b"123"


def test_a_result_goes_to_the_file_of_a_link_and_into_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, target, pipe = tmp_path / "link", tmp_path / "folder" / "file", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (link, pipe):
        check_writable("--out", path)
        write_out(path, "text")
    assert (link.is_symlink(), target.read_text()) == (True, "text")
    assert (pipe.is_fifo(), os.read(reader, 9)) == (True, b"text")
    os.close(reader)


def test_a_result_in_shared_memory_is_replaced() -> None:
    """Such a file lies below /dev, and is none of the devices and streams there."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for text in ("a long text", "text"):
            write_out(path := Path(folder, "out"), text)
            assert path.read_text() == text


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/dev/null"])
def test_a_result_goes_to_standard_output_by_its_name(name: str) -> None:
    program = (
        "import sys; from pathlib import Path; from mjtrain.runtime.files import check_writable, write_out;"
        "print('before', flush=True); check_writable('--out', Path(sys.argv[1]));"
        "write_out(Path(sys.argv[1]), 'text\\n'); print('after')"
    )
    command = [sys.executable, "-c", program, name]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=patience(60))
    assert done.stdout == ("before\nafter\n" if name == "/dev/null" else "before\ntext\nafter\n")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a" * 300, "cannot be written (File name too long)"),
        ("circle", "cannot be written (Symlink loop"),
        ("a\0b", "cannot be written (embedded null byte)"),
        ("gone", "the folder "),
        (".", "is a folder; give a file"),
        ("nowhere/file", "the folder nowhere does not exist"),
        ("/proc/file", "cannot be written (No such file or directory)"),
    ],
)
def test_what_cannot_be_written_is_said_before_any_work(
    name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    Path("gone").symlink_to("there/file")
    with pytest.raises(RequestError) as error:
        check_writable("--out", Path(name))
    assert str(error.value).startswith(f"--out {name}: {problem}")


def test_a_file_system_without_a_server_is_not_taken_for_a_missing_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_dir", os.path.isdir)  # as in Python 3.14: no error is raised
    assert describe_absence(tmp_path) is None
    (tmp_path / "file").touch()
    for gone in ("file", "file/folder", "folder/folder"):
        assert describe_absence(tmp_path / gone) == "is missing (deleted or renamed)"
    with dead_file_system(tmp_path):
        assert describe_absence(tmp_path) == "cannot be reached (Transport endpoint is not connected)"
