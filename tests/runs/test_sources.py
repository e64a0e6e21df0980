"""A run keeps the code of its task and the data that parameters name, and says where they have changed."""

import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mjtrain.cli import play, train
from mjtrain.config import CommandTerm, EnvConfig, RewardTerm, to_plain
from mjtrain.env.catalog import load_task
from mjtrain.runs import sources
from mjtrain.runs.claim import claim_run_dir
from mjtrain.runs.run_dir import save_params
from mjtrain.runs.sources import (
    list_code,
    list_code_changes,
    list_data_changes,
    list_term_code,
    measure,
    restore_data,
    save_code,
    save_data,
    with_digests,
)
from mjtrain.runtime.errors import RequestError

HELPER = """
def scaled(value):
    return 2 * value
"""
TASK = """
from dataclasses import replace
from pathlib import Path
from typing import Any
import numpy as np
from tracking_helper import scaled
from mjtrain.env.catalog import load_task
from mjtrain.mdp import reward, torch

def near(env, *, file):
    frame = torch.as_tensor(np.load(file)["qpos"])[0]
    return scaled(torch.exp(-(env.state.qpos - frame).square().sum(dim=1)))

def make():
    task = load_task("Cartpole-Balance")
    motion = str(Path(__file__).parent / "motions" / "swing.npz")
    return replace(task, env=replace(task.env, rewards={"near": reward(near, 1.0, file=motion)}))
"""
SMALL = ["--gpu-ids", "None", "--num-threads", "1", "--num-envs", "2", "--logger", "none"]
NETWORKS = ["--agent.num-steps-per-env", "4", "--agent.algorithm.num-mini-batches", "2"]
PLAY = ["--episodes", "2", "--json", "--gpu-ids", "None"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task of two files with a motion, and a run of it, whose path is in run.txt."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tracking_helper", raising=False)
    (tmp_path / "track.py").write_text(TASK)
    (tmp_path / "tracking_helper.py").write_text(HELPER)
    (tmp_path / "motions").mkdir()
    np.savez(tmp_path / "motions" / "swing.npz", qpos=np.zeros((3, 2), np.float32))
    return tmp_path


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may search, as they may not search those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def play_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[float, str]:
    capsys.readouterr()
    play.main([*arguments, *PLAY])
    output = capsys.readouterr()
    return json.loads(output.out)["reward_terms"]["near"]["mean"], output.err


@pytest.mark.process
def test_a_run_plays_what_was_trained_or_says_what_is_different(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = f"{folder / 'track.py'}:make"
    train.main([task, *SMALL, *NETWORKS, "--max-iterations", "1", "--log-root", str(folder / "logs")])
    (run,) = (folder / "logs" / "track_make").iterdir()
    assert (run / "code" / "mjtrain_task_track.py").read_text() == TASK
    assert (run / "code" / "tracking_helper.py").read_text() == HELPER
    assert (run / "data" / "swing.npz").is_file()
    trained, lines = play_json(capsys, task, "--run", str(run))
    assert lines == ""
    # the data is gone, or is another one: the copy is used
    (folder / "motions" / "swing.npz").unlink()
    assert play_json(capsys, task, "--run", str(run)) == (trained, "")
    np.savez(folder / "motions" / "swing.npz", qpos=np.ones((3, 2), np.float32))
    again, lines = play_json(capsys, task, "--run", str(run))
    assert again == trained
    assert "motions/swing.npz is not what the run was trained with; using the copy" in lines
    assert f"the copy in the run, {run}/data/swing.npz" in lines
    # the code is another one: that is said, and resuming says both
    (folder / "track.py").write_text(TASK.replace("return scaled(", "return 0 * scaled("))
    again, lines = play_json(capsys, task, "--run", str(run))
    assert again == 0
    assert f"code: {folder / 'track.py'} is not what the run was trained with, which is {run}/code/mjtrain_" in lines
    capsys.readouterr()
    train.main([task, *SMALL, *NETWORKS, "--max-iterations", "2", "--resume", str(run)])
    lines = "".join(capsys.readouterr())
    assert f"changed since: code: {folder / 'track.py'} is not what" in lines
    assert f"changed since: data: {folder / 'motions' / 'swing.npz'}, whose content differs" in lines
    assert (run / "code" / "previous" / "1" / "mjtrain_task_track.py").read_text() == TASK
    assert sorted(path.parent.name for path in (run / "data").rglob("swing.npz")) == ["copy-2", "data"]
    assert play_json(capsys, task, "--run", str(run)) == (0, "")


def near(env, *, file, note=""):
    """Never called."""


def config_with(**params: object) -> EnvConfig:
    config = load_task("Cartpole-Balance").env
    return replace(config, rewards={"near": RewardTerm(func=near, weight=1.0, params=params)})


def keep_data(run: Path, env: EnvConfig) -> list[str]:
    record, lines = save_data(run, env)
    save_params(run, data=record)
    return lines


def test_folders_are_data_and_mere_words_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, motions = tmp_path / "run", tmp_path / "motions"
    for name in ("walk.csv", "deep/run.csv"):
        (motions / name).parent.mkdir(parents=True, exist_ok=True)
        (motions / name).write_text(name)
    (tmp_path / "hinge").write_text("a file that is called like a joint")
    (tmp_path / "own.npz").write_text("relative")
    run.mkdir()
    env = config_with(file=("own.npz", str(motions)), note="hinge")
    assert keep_data(run, env) == []
    assert sorted(path.name for path in (run / "data").iterdir()) == ["motions", "own.npz"]
    assert list_data_changes(run, env) == []
    assert restore_data(run, env) == (env, [])
    (motions / "deep" / "run.csv").write_text("another")
    (tmp_path / "own.npz").unlink()
    assert list_data_changes(run, env) == [f"data: {motions}, whose content differs"]
    restored, (line,) = restore_data(run, env)
    assert restored.rewards["near"].params["file"] == (str(run / "data/own.npz"), str(run / "data/motions"))
    assert restored.rewards["near"].params["note"] == "hinge"
    assert str(motions) in line
    shutil.rmtree(run / "data")
    with pytest.raises(RequestError, match=r"run: its file own.npz is not here, and the run has no copy"):
        restore_data(run, env)


@pytest.mark.parametrize("place", [".", "..", "clips"])
def test_a_folder_of_motions_needs_no_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    clips, run = tmp_path / "clips", tmp_path / "run"
    (clips / "inner").mkdir(parents=True)
    run.mkdir()
    (clips / "walk.npz").write_text("walk")
    monkeypatch.chdir({".": clips, "..": clips / "inner", "clips": tmp_path}[place])
    env = config_with(note=place)
    assert keep_data(run, env) == []
    assert not (run / "data").exists()  # elsewhere it is a mere word
    env = replace(env, commands={"motion": CommandTerm(func=near, params={"file": place})})
    assert keep_data(run, env) == []
    assert [path.name for path in (run / "data").iterdir()] == ["clips"]
    (clips / "walk.npz").write_text("another")
    restored, _ = restore_data(run, env)
    assert restored.commands["motion"].params["file"] == str(run / "data" / "clips")
    assert (run / "data" / "clips" / "walk.npz").read_text() == "walk"


def test_the_copy_of_a_folder_is_without_the_runs_in_it(tmp_path: Path) -> None:
    """The run that keeps the copy would copy itself without end."""
    env, first, second = config_with(file=str(tmp_path)), tmp_path / "logs" / "1", tmp_path / "logs" / "2"
    (tmp_path / "walk.npz").write_text("walk")
    for run in (first, second):
        run.mkdir(parents=True)
        with claim_run_dir(run):
            assert keep_data(run, env) == []
        (copy,) = (run / "data").iterdir()
        assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == ["logs", "walk.npz"]
    assert list_data_changes(first, env) == []
    assert restore_data(first, env) == (env, [])


def test_a_folder_with_the_lock_of_another_program_is_copied(tmp_path: Path) -> None:
    folder, run = tmp_path / "motions" / "more", tmp_path / "run"
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    (folder / "walk.npz").write_text("walk")
    assert keep_data(run, config_with(file=f"{folder.parent}/")) == []
    assert (run / "data" / "motions" / "more" / "walk.npz").read_text() == "walk"


def test_what_is_not_a_file_is_left_out_of_a_copy_and_said(tmp_path: Path) -> None:
    motions, run = tmp_path / "motions", tmp_path / "run"
    motions.mkdir()
    run.mkdir()
    (motions / "a.csv").write_text("a")
    (motions / ".#a.csv").symlink_to("me@host.1:2")  # as Emacs locks a file
    os.mkfifo(motions / "pipe")
    (line,) = keep_data(run, config_with(file=str(motions)))
    first = motions / ".#a.csv"
    assert line == f"the run's copy of {motions} is without 2 items that cannot be read, such as {first}"
    assert [path.name for path in (run / "data" / "motions").iterdir()] == ["a.csv"]
    assert keep_data(run, config_with(file=str(motions))) == []


def test_what_may_not_be_read_is_left_out_of_a_copy_and_said(open_folder: Path) -> None:
    motions, secret, run = open_folder / "motions", open_folder / "secret.npz", open_folder / "run"
    for folder in (motions, motions / "closed", run):
        folder.mkdir()
    for file in (secret, motions / "a.csv", motions / "b.csv", motions / "closed" / "c.csv"):
        file.write_text(file.name)
    run.chmod(0o777)
    for path in (secret, motions / "b.csv", motions / "closed"):
        path.chmod(0)
    user = os.geteuid()
    try:
        os.seteuid(65534 if user == 0 else user)  # root may read every file
        first, second = keep_data(run, config_with(file=(str(motions), str(secret))))
    finally:
        os.seteuid(user)
        (motions / "closed").chmod(0o755)
    b = motions / "b.csv"
    assert first == f"the run's copy of {motions} is without 2 items that cannot be read, such as {b}"
    assert second == f"the run keeps no copy of {secret} (it cannot be read), so it needs that later"
    assert [path.name for path in (run / "data" / "motions").iterdir()] == ["a.csv"]


@dataclass
class Gait:
    phases: np.ndarray


def test_data_is_found_beside_objects_that_cannot_be_compared(tmp_path: Path) -> None:
    file, gait, run = tmp_path / "walk.npz", Gait(np.arange(4.0)), tmp_path / "run"
    file.write_text("walk")
    run.mkdir()
    env = config_with(file=[str(file)], gait=gait)
    assert keep_data(run, env) == []
    file.unlink()
    params = restore_data(run, env)[0].rewards["near"].params
    assert params == {"file": [str(run / "data/walk.npz")], "gait": gait}
    assert params["gait"] is gait


def test_copies_of_files_of_the_same_name_keep_it(tmp_path: Path) -> None:
    """Failures of a motion are counted by its name, also when a run is resumed with its copy."""
    files = [tmp_path / folder / "motion.npz" for folder in ("trot", "bow", "walk")]
    for file in files:
        file.parent.mkdir()
        file.write_text(file.parent.name)
    env, run = config_with(file=tuple(map(str, files))), tmp_path / "run"
    run.mkdir()
    keep_data(run, env)
    for file in files:
        file.unlink()
    copies = [Path(copy) for copy in restore_data(run, env)[0].rewards["near"].params["file"]]
    assert [copy.name for copy in copies] == ["motion.npz"] * 3
    assert [copy.read_text() for copy in copies] == ["trot", "bow", "walk"]


def test_a_copy_that_is_missing_is_made_again(tmp_path: Path) -> None:
    """A storage has the record of a run's data, but not the copies; and a user may have deleted one."""
    file, run = tmp_path / "walk.npz", tmp_path / "run"
    file.write_text("walk")
    env = config_with(file=str(file))
    run.mkdir()
    keep_data(run, env)
    shutil.rmtree(run / "data")
    assert keep_data(run, env) == []
    file.unlink()
    assert restore_data(run, env)[0].rewards["near"].params["file"] == str(run / "data" / "walk.npz")


def test_data_of_an_earlier_start_is_not_needed(tmp_path: Path) -> None:
    """Earlier versions left its record where a later start used no data."""
    save_params(tmp_path, data={f"{tmp_path}/gone.npz": {"copy": None, "sha256": "0"}})
    env = config_with(file="walk.npz")
    assert restore_data(tmp_path, env) == (env, [])
    with pytest.raises(RequestError, match=r"its file .*gone\.npz is not here, and the run has no copy"):
        restore_data(tmp_path, config_with(file=f"{tmp_path}/gone.npz"))


def test_data_that_is_too_large_is_hashed_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_DATA_MIB", 0)
    file = tmp_path / "large.npz"
    file.write_bytes(b"1")
    env = config_with(file=str(file))
    (line,) = keep_data(tmp_path, env)
    assert line.startswith(f"the run keeps no copy of {file} (more than 0 MiB")
    file.write_bytes(b"2")
    (line,) = restore_data(tmp_path, env)[1]
    assert line == f"data: {file} is not what the run was trained with, and the run has no copy"


def test_a_folder_is_read_up_to_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record or a parameter may name the whole disk."""
    folder, run = tmp_path / "motions", tmp_path / "run"
    run.mkdir()
    for name in ("a", "b", "c", "d"):
        (folder / name).mkdir(parents=True)
        (folder / name / "walk.csv").write_text(name)
    env = config_with(file=str(folder))
    opened: list[str] = []
    hash_file = sources._hash_file
    monkeypatch.setattr(sources, "_hash_file", lambda path, limit: opened.append(str(path)) or hash_file(path, limit))
    monkeypatch.setattr(sources, "MAX_DATA_FILES", 4)
    (line,) = keep_data(run, env)
    assert line.startswith(f"the run keeps no copy of {folder} (more than 256 MiB or 4 files")
    assert opened == [f"{folder}/a/walk.csv", f"{folder}/b/walk.csv"]
    assert list_data_changes(run, env) == []
    (folder / "a" / "walk.csv").write_text("A")
    assert list_data_changes(run, env) == [f"data: {folder}, whose content differs"]
    # a run of an earlier version has the digest of all of it, which this one cannot compare
    record = run / "params" / "data.yaml"
    record.write_text(record.read_text().replace("part:", ""))
    assert list_data_changes(run, env) == []
    monkeypatch.undo()
    assert measure(Path("/proc/kmsg"))[1] == 0  # reading it would wait forever


def test_hosts_may_have_the_same_files_in_other_folders(tmp_path: Path) -> None:
    env = load_task("Cartpole-Balance").env

    def describe(folder: str, text: str) -> dict[str, Any]:
        (tmp_path / folder).mkdir(exist_ok=True)
        file = tmp_path / folder / f"{folder}.xml"
        file.write_text(text)
        return with_digests(to_plain(replace(env, robot=replace(env.robot, file=str(file)))))

    text = Path(env.robot.file).read_text()
    first = describe("a", text)
    assert first == describe("b", text)
    edited = describe("b", text.replace("0.05", "0.06"))
    assert edited != first
    assert edited["robot"]["file"].startswith("*.xml with the digest ")
    assert {**edited, "robot": 0} == {**first, "robot": 0}


def test_hosts_compare_files_of_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = []
    for folder, text in (("a", "walk"), ("b", "walk"), ("c", "run")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.npz").write_text(text)
        (tmp_path / folder / "hinge").write_text(f"a file in {folder} that is called like a joint")
        monkeypatch.chdir(tmp_path / folder)
        described.append(with_digests({"file": "own.npz", "joint": "hinge"}))
    assert described[0] == described[1]
    assert described[2]["file"] != described[0]["file"]
    assert described[2]["joint"] == "hinge"


def test_code_is_that_of_the_task_and_not_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "robot_tasks_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    text = "import torch, vendor_of_mine\nfrom .sizes import SIDE\nclass near:\n    def __call__(self, env): pass\n"
    (package / "terms.py").write_text(text)
    (package / "sizes.py").write_text("from . import shapes\nSIDE = shapes.SIDE")
    (package / "shapes.py").write_text("from . import sizes\nSIDE = 1")
    (package / "others.py").write_text("SIDE = 1")
    installed = tmp_path / "dist-packages"  # of Debian
    installed.mkdir()
    (installed / "vendor_of_mine.py").write_text("")
    for folder in (tmp_path, installed):
        monkeypatch.syspath_prepend(str(folder))
    terms = importlib.import_module("robot_tasks_of_mine.terms")
    others = importlib.import_module("robot_tasks_of_mine.others")
    vars(others)["__file__"] = package / "others.py"  # as some tools set it
    (package / "terms.py").write_text(text + "import gone_since\nfrom . import others\nfrom ...above import x\n")
    env = replace(load_task("Cartpole-Balance").env, rewards={"x": RewardTerm(func=terms.near, weight=1.0)})
    files = {label: path for label, path in list_code(env).items() if label.startswith("robot_tasks")}
    used = {
        f"robot_tasks_of_mine/{name}.py": str(package / f"{name}.py")
        for name in ("__init__", "shapes", "sizes", "terms")
    }
    assert files == used
    assert not any("torch" in label or label.startswith("mjtrain/") for label in list_code(env))
    assert list_term_code(env) == used
    save_code(tmp_path / "run", files)
    assert list_code_changes(tmp_path / "run", files) == []
    (package / "shapes.py").write_text("SIDE = 2")
    (line,) = list_code_changes(tmp_path / "run", files)
    assert line.startswith(f"code: {package / 'shapes.py'} is not what the run was trained with")
    assert list_code_changes(tmp_path / "older_run", files) == []
