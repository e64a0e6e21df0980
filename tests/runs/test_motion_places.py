"""Motions come from object storage, web servers and W&B, once; and what is wrong is one line."""

import os
import pickle
import shutil
import signal
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.cli.main import main
from mjtrain.motion import files
from mjtrain.motion.files import read_motion
from mjtrain.runs import wandb_artifact
from mjtrain.runs.motion_places import find_motion, is_motion_place, name_place, resolve_motions
from mjtrain.runs.run_dir import load_params
from mjtrain.runs.storage.store import Storage
from mjtrain.runs.training_run import TrainingRun
from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.runtime.processes import is_ending, list_descendants
from mjtrain.training.open_run import open_run
from mjtrain.training.request import TrainRequest, resolve_training
from mjtrain_tasks.quadruped_track import CLIPS, make_env, make_task
from support import commands
from support.hub import TOKEN, Hub
from support.machine import read_proc
from support.wandb_server import KEY, ORGANIZATION, WandbServer

pytestmark = pytest.mark.process
PAW, BOW = (CLIPS / "paw.npz").read_bytes(), (CLIPS / "bow.npz").read_bytes()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mjtrain" / "motions"


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WandbServer]:
    """A server on which this process is logged in."""
    server = WandbServer()
    for name in ("WANDB_MODE", "WANDB_ENTITY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("WANDB_BASE_URL", server.url), ("WANDB_API_KEY", KEY), ("HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    yield server
    server.close()


def put(url: str, name: str, content: bytes, tmp_path: Path) -> None:
    if url.startswith("http"):
        (tmp_path / name).write_bytes(content)
        return
    (tmp_path / "given").write_bytes(content)
    with (tmp_path / "given").open("rb") as file:
        Storage(url).upload(name, file)


@pytest.mark.parametrize("kind", ["url", "web"])
def test_a_url_is_fetched(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    url = request.getfixturevalue(kind)
    place = f"{url}/a%20päw.npz"
    put(url, "a päw.npz", PAW, tmp_path)
    first = find_motion(place)
    assert (first.name, first.read_bytes()) == ("a päw.npz", PAW)
    put(url, "a päw.npz", BOW, tmp_path)
    assert find_motion(place, again=False) == first
    second = find_motion(place)
    assert (first.read_bytes(), second.read_bytes()) == (PAW, BOW)
    assert find_motion(f"{url}/a päw.npz") == second
    main(["motion", "info", place])
    assert "3.20 s" in capsys.readouterr().out
    main(["motion", "convert", place, str(tmp_path / "out.npz"), "--fps", "25"])
    assert read_motion(tmp_path / "out.npz").fps == 25
    with pytest.raises(RequestError, match=r"none\.npz"):
        find_motion(f"{url}/none.npz")


def test_a_connection_that_breaks_gives_no_part_of_a_file(tmp_path: Path, web: str, cache: Path) -> None:
    (tmp_path / "cut-walk.csv").write_text("0.1,0.2\n" * 100)
    with pytest.raises(OutsideError, match=rf"{web}/cut-walk\.csv: cannot be read .*400 more expected"):
        find_motion(f"{web}/cut-walk.csv")
    assert not cache.exists()


def test_a_key_is_hidden_however_the_scheme_is_written() -> None:
    assert name_place("HTTPS://host/a.npz?signature=word").startswith("HTTPS://host/a.npz?")
    assert "word" not in name_place("HTTPS://host/a.npz?signature=word")


def test_a_folder_that_is_misspelled_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"/typo: has no walk\.npz"):
        find_motion(f"file://{tmp_path}/typo/walk.npz")
    assert not (tmp_path / "typo").exists()


def test_a_url_with_a_null_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"/a%00b\.npz: is not a valid URL \(it contains a null character\)"):
        find_motion(f"file://{tmp_path}/a%00b.npz")


def test_a_package_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "acme_motions"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "a.npz").write_bytes(PAW)
    monkeypatch.syspath_prepend(str(tmp_path))
    place = "package://acme_motions/a.npz"
    assert find_motion(place) == package / "a.npz"
    main(["motion", "info", place])
    assert "3.70 s" in capsys.readouterr().out
    env = make_env()
    moved = env.commands["motion"].replace(params={**env.commands["motion"].params, "file": place})
    env, files = resolve_motions(replace(env, commands={"motion": moved}))
    assert (env.commands["motion"].params["file"], files) == (str(package / "a.npz"), {place: str(package / "a.npz")})


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("ftp://host/a.npz", "motions are not read from there"),
        ("https://host/a.pkl", r"ends in \.npz"),
        ("package://no_such_package/a.npz", "package no_such_package is not installed"),
        ("package://json.tool/a.npz", "is not installed"),
        ("package://__main__/a.npz", "is not installed"),
        ("package:///a.npz", "package://NAME/path"),
        ("package://mjtrain_tasks/../a.npz", r"has no file \.\./a\.npz"),
        ("package://mjtrain_tasks/none.npz", "has no file none.npz"),
        ("http://host.invalid/a.npz", "https://"),
        ("https://name:word@host.invalid/a.npz", "credentials"),
        ("https://127.0.0.1:1/a.npz", "cannot be read"),
        ("https://127.0.0.1:1/gehen-ü.npz", "cannot be read"),
        ("https://127.0.0.1:1/a.npz?signature=word", r"1/a\.npz: cannot be read"),
        ("https://127.0.0.1:1/a.pkl?signature=word", r"1/a\.pkl: is not a motion"),
        ("http://name:word@host.invalid/a.npz", "credentials"),
        ("https://[x/a.npz", "is not a valid URL"),
        ("s3://[x/a.npz", "is not a valid URL"),
        (f"https://{70 * 'a'}.invalid/a.npz", "is not a valid URL"),
        ("wandb://walk", "give wandb://entity/project/name:version"),
        ("wandb://me/motions/walk:v1:v2", "give wandb://"),
        ("wandb-registry-motions/walk", "no W&B API key"),
    ],
)
def test_what_is_wrong_is_one_line(
    place: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert is_motion_place(place)
    with pytest.raises(SystemExit):
        main(["motion", "info", place])
    message = capsys.readouterr().err
    assert message.count("\n") == 1, message
    assert "word" not in message
    with pytest.raises((RequestError, OutsideError), match=says):
        find_motion(place)


def test_paths_are_no_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb-registry-motions").mkdir()
    shutil.copy(CLIPS / "paw.npz", "wandb-registry-motions/paw.npz")
    for path in ("wandb-registry-motions/paw.npz", "a/b/c.npz", "C:\\a.npz", "clips"):
        assert find_motion(path) == Path(path)


def test_large_and_pickled_files_are_refused(
    tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "planted.npz", fps=np.array([Planted(tmp_path / "canary")], dtype=object))
    with zipfile.ZipFile(tmp_path / "planted.npz") as file:
        assert pickle.PROTO in file.read("fps.npy")
    with pytest.raises(SystemExit):
        main(["motion", "info", f"{web}/planted.npz"])
    assert "never read" in capsys.readouterr().err
    assert not (tmp_path / "canary").exists()
    monkeypatch.setattr(files, "MAX_MIB", 0)
    with pytest.raises(RequestError, match="larger than 0 MiB"):
        find_motion(f"{web}/planted.npz")


class Planted:
    """What runs if it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.canary,)


def test_the_hub_gives_it(tmp_path: Path) -> None:
    hub = Hub()
    hub.files["me/clips"] = {"paw.npz": PAW, "more/bow.npz": BOW, "two words/a paw.npz": PAW}
    hub.files["datasets/me/clips"] = {"a/bow.npz": BOW}
    environ = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hub")}
    for place, says in (
        ("me/clips/paw.npz", "3.70 s"),
        ("me/clips@main/more/bow.npz", "3.20 s"),
        ("datasets/me/clips/a/bow.npz", "3.20 s"),
        ("datasets/me/clips@main/a/bow.npz", "3.20 s"),
        ("datasets/me/clips.npz", "give hf://user/repository"),
        ("me/clips/two%20words/a%20paw.npz", "3.70 s"),
        ("me/clips/none.npz", "hf://me/clips: has no such file"),
        ("me/none/paw.npz", "no such repository"),
    ):
        words = [commands.BIN / "mjtrain", "motion", "info", f"hf://{place}"]
        done = commands.run(words, cwd=tmp_path, environ=environ)
        assert says in done.stdout + done.stderr, done
    hub.close()


def test_an_artifact_and_a_registry_give_it(wandb: WandbServer, tmp_path: Path) -> None:
    """As mjlab logs it: the file motion.npz in an artifact, linked to a registry of the organization."""
    versions = [{"motion.npz": PAW}, {"motion.npz": BOW, "a/notes.txt": b"made by hand"}]
    wandb.artifacts = {"me/csv_to_npz/walk": versions[:1], f"{ORGANIZATION}/wandb-registry-motions/walk": versions}
    for place, content in (
        ("wandb://me/csv_to_npz/walk:v0", PAW),
        ("wandb://me/csv_to_npz/walk", PAW),
        ("wandb-registry-motions/walk", BOW),
        ("wandb-registry-motions/walk:v0", PAW),
        (f"{ORGANIZATION}/wandb-registry-motions/walk:latest", BOW),
    ):
        found = find_motion(place)
        assert (found.name, found.read_bytes()) == ("motion.npz", content), place
    asked = len(wandb.requests)
    assert find_motion("wandb-registry-motions/walk:v0").read_bytes() == PAW
    assert len(wandb.requests) == asked


@pytest.mark.parametrize(("served", "says"), [(PAW[:-1], "bytes, and its artifact lists"), (PAW[:-1] + b"x", "is not")])
def test_a_file_that_arrives_damaged_is_not_kept(wandb: WandbServer, cache: Path, served: bytes, says: str) -> None:
    wandb.artifacts = {"me/motions/walk": [{"motion.npz": PAW}]}
    wandb.damaged["motion.npz"] = served
    with pytest.raises(OutsideError, match=f"wandb://me/motions/walk:v0: motion.npz .*{says}"):
        find_motion("wandb://me/motions/walk:v0")
    assert not cache.exists()
    wandb.damaged.clear()
    assert find_motion("wandb://me/motions/walk:v0").read_bytes() == PAW


@pytest.mark.parametrize("stalls", [True, False])
def test_neither_a_download_nor_the_end_of_wandb_hangs(
    stalls: bool, wandb: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the file that is an error. W&B's process is killed."""
    wandb.artifacts = {"me/motions/walk": [{"motion.npz": PAW}]}
    fetch, pids = wandb_artifact._fetch, []

    def stop_at_the_end(*args: Any) -> Any:
        try:
            return fetch(*args)
        finally:
            pids.extend(pid for pid in list_descendants(os.getpid()) if b"(wandb-core)" in read_proc(pid, "stat"))
            os.kill(pids[0], signal.SIGSTOP)

    monkeypatch.setattr(wandb_artifact, "_TIMEOUT_S", 1)
    if stalls:
        wandb.stalled = threading.Event()
        monkeypatch.setattr(wandb_artifact, "_FETCH_TIMEOUT_S", 1)
        with pytest.raises(OutsideError, match="wandb://me/motions/walk: W&B: no answer for"):
            find_motion("wandb://me/motions/walk")
        wandb.stalled.set()
    else:
        monkeypatch.setattr(wandb_artifact, "_fetch", stop_at_the_end)
        assert find_motion("wandb://me/motions/walk").read_bytes() == PAW
        assert is_ending(pids[0])


def test_artifacts_that_are_no_motions(
    wandb: WandbServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wandb_artifact, "_TIMEOUT_S", 3)
    both = {"a.npz": PAW, "b/a.npz": BOW}
    wandb.artifacts = {f"me/motions/{name}": [files] for name, files in (
        ("both", both), ("none", {"a.csv": b"1"}), ("elsewhere", {"there.npz": b""}), ("up", {"../../up.npz": PAW})
    )}  # fmt: skip
    wandb.references["there.npz"] = "file:///etc/passwd"
    for name, says in (
        ("both", "has 2 .npz files"),
        ("none", "has no .npz files"),
        ("elsewhere", "is a reference to file:///etc/passwd"),
        ("up", "W&B: .*up.npz"),
        ("walk", "W&B: .*walk"),
        ("both:v7", "W&B: .*both:v7"),
    ):
        with pytest.raises(RequestError, match=rf"wandb://me/motions/{name}: .*{says}"):
            find_motion(f"wandb://me/motions/{name}")
    with pytest.raises(RequestError, match=r"W&B: .*nothing"):
        find_motion("wandb://me/nothing/walk")
    monkeypatch.setenv("WANDB_API_KEY", KEY[::-1])
    with pytest.raises(OutsideError, match="wandb://me/motions/both: W&B: "):
        find_motion("wandb://me/motions/both")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["motion", "info", "wandb://me/motions/both"])
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert "wandb://me/motions/both: W&B: " in message
    assert message.count("\n") == 1, message


def test_a_run_keeps_it_and_does_not_ask_again(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], cache: Path
) -> None:
    """Neither after another motion is at the place and in the cache, nor after both are gone."""
    place = f"{url}/paw.npz"
    put(url, "paw.npz", PAW, tmp_path)
    task = make_task_of(place)
    options: dict[str, Any] = {"num_envs": 4, "log_root": str(tmp_path / "logs"), "logger": "none"}
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_workers=2, num_threads=1)
    run = mjtrain.train(task, launch=launch, max_iterations=1, **options)
    assert f"motion {place}: read from {cache}" in capfd.readouterr().err
    (copy,) = (run.run_dir / "data").iterdir()
    assert copy.read_bytes() == PAW
    assert load_params(run.run_dir, "env")["commands"]["motion"]["params"]["file"] == place
    assert load_params(run.run_dir, "data")[place]["copy"] == "data/paw.npz"
    put(url, "paw.npz", BOW, tmp_path)
    assert find_motion(place).read_bytes() == BOW  # as another run would have
    config = mjtrain.api.make_train_config(task, max_iterations=2, resume="auto", **options)
    assert resolve_training(config, launch).motions == {place: str(copy)}
    put(url, "paw.npz", PAW, tmp_path)
    fresh = replace(config, run=replace(config.run, run_name="fresh"))  # there is nothing to resume
    assert read_motions(resolve_training(fresh, launch)) == {place: PAW}, "asked again"
    put(url, "paw.npz", BOW, tmp_path)
    assert read_motions(resolve_training(fresh, launch)) == {place: BOW}, "asked again"
    resumed = mjtrain.train(task, launch=launch, max_iterations=2, resume=str(run.run_dir), **options)
    printed = capfd.readouterr().err
    assert f"motion {place}: read from {copy}" in printed
    assert "changed since" not in printed
    Storage(url).delete(["paw.npz"])
    shutil.rmtree(cache)
    resumed = mjtrain.train(task, launch=launch, max_iterations=3, resume=str(run.run_dir), **options)
    assert "changed since" not in capfd.readouterr().err
    assert resumed.metrics["iteration"] == 3
    assert not cache.exists()
    assert [file.read_bytes() for file in (run.run_dir / "data").iterdir()] == [PAW]
    with pytest.raises(RequestError, match=rf"--env\.commands\.motion\.params\.file {url}: has no paw\.npz"):
        mjtrain.train(task, launch=launch, max_iterations=1, **options)
    assert mjtrain.play(str(run.run_dir), episodes=1)["iteration"] == 3


def test_a_job_that_is_started_again_from_outside_keeps_it(
    web: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"{web}/paw.npz"
    put(web, "paw.npz", PAW, tmp_path)
    options: dict[str, Any] = {"num_envs": 4, "log_root": str(tmp_path / "logs"), "logger": "none"}
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    run = mjtrain.train(make_task_of(place), launch=launch, max_iterations=1, **options)
    put(web, "paw.npz", BOW, tmp_path)
    config = mjtrain.api.make_train_config(make_task_of(place), max_iterations=2, **options)
    request = resolve_training(config, launch)
    assert read_motions(request) == {place: BOW}
    with open_run(request, TrainingRun(run_dir=run.run_dir)) as opened:
        config, opened = mjtrain.api._with_copies(request, opened)
    file = config.env.commands["motion"].params["file"]
    assert file == str(run.run_dir / "data" / "paw.npz") == opened.motions[place]
    assert Path(file).read_bytes() == PAW
    assert f"motion {place}: the run's copy is used" in capsys.readouterr().err


def test_nodes_are_compared_by_content(web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(web, "paw.npz", PAW, tmp_path)
    config = mjtrain.api.make_train_config(make_task_of(f"{web}/paw.npz"), num_envs=4, log_root=str(tmp_path))

    def describe(home: str) -> str:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / home))
        request = resolve_training(config, mjtrain.LaunchConfig(gpu_ids=None, num_threads=1))
        assert str(tmp_path / home) in request.motions[f"{web}/paw.npz"]
        return mjtrain.api._describe_for_others(request)

    one = describe("one")
    assert describe("other") == one
    put(web, "paw.npz", BOW, tmp_path)
    assert describe("other") != one


def test_worlds_and_play_of_a_task_fetch_it(web: str, tmp_path: Path) -> None:
    put(web, "paw.npz", PAW, tmp_path)
    task = make_task_of(f"{web}/paw.npz")
    assert mjtrain.make_env(task, num_envs=1).observe()["actor"].shape[0] == 1
    assert mjtrain.play(task, policy="zero", episodes=1, num_envs=1)["episodes"] == 1


def test_only_motion_commands_name_motions() -> None:
    def other(env: Any, *, file: str) -> None: ...

    env = make_env()
    url = "https://127.0.0.1:1/a.npz"
    command = replace(env.commands["motion"], func=other, params={"file": url})
    env = replace(env, commands={"other": command})
    assert resolve_motions(env) == (env, {})


def test_a_query_is_not_recorded(web: str, tmp_path: Path) -> None:
    put(web, "paw.npz", PAW, tmp_path)
    place = f"{web}/paw.npz?signature=word"
    assert "word" not in name_place(place)
    assert name_place(place) not in (name_place(f"{place}s"), f"{web}/paw.npz")
    options: dict[str, Any] = {"num_envs": 4, "log_root": str(tmp_path / "logs"), "logger": "none"}
    run = mjtrain.train(
        make_task(), motion=place, launch=mjtrain.LaunchConfig(gpu_ids=None, num_threads=1), max_iterations=1, **options
    )
    files = [file for file in run.run_dir.rglob("*") if file.suffix in (".yaml", ".jsonl", ".json", ".log")]
    assert files
    assert not [file for file in files if "signature=word" in file.read_text()]
    (copy,) = run.run_dir.rglob("paw.npz")
    assert copy.read_bytes() == PAW


def test_only_a_task_that_imitates_takes_a_motion() -> None:
    config = make_train_config("Cartpole-Balance", motion=str(CLIPS / "paw.npz"))
    with pytest.raises(RequestError, match=r"--motion .*paw\.npz: Cartpole-Balance imitates no motion"):
        resolve_training(config, mjtrain.LaunchConfig(gpu_ids=None))


def make_task_of(place: str) -> mjtrain.TaskConfig:
    env = make_env()
    command = env.commands["motion"]
    command = replace(command, params={**command.params, "file": place})
    return replace(make_task(), env=replace(env, commands={"motion": command}))


def read_motions(request: TrainRequest) -> dict[str, bytes]:
    return {place: Path(file).read_bytes() for place, file in request.motions.items()}
