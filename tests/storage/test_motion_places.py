"""Motions come from object storage, web servers and W&B, once; and what is wrong is one line."""

import functools
import http.server
import os
import pickle
import shutil
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mjtrain
from mjtrain.cli.main import main
from mjtrain.motion import npz
from mjtrain.motion.files import read_motion
from mjtrain.runs import wandb_artifact
from mjtrain.runs.motion_places import find_motion, is_motion_place
from mjtrain.runs.run_dir import load_params
from mjtrain.runs.storage import Storage
from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain_tasks.quadruped_track import CLIPS, make_env, make_task
from support import commands
from support.hub import TOKEN, Hub
from support.wandb_server import KEY, ORGANIZATION, WandbServer

pytestmark = pytest.mark.process
PAW, BOW = (CLIPS / "paw.npz").read_bytes(), (CLIPS / "bow.npz").read_bytes()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mjtrain" / "motions"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the folder `site`."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    (tmp_path / "site").mkdir()
    make = functools.partial(Handler, directory=str(tmp_path / "site"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), make)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


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
        (tmp_path / "site" / name).write_bytes(content)
        return
    (tmp_path / "given").write_bytes(content)
    with (tmp_path / "given").open("rb") as file:
        Storage(url).upload(name, file)


@pytest.mark.parametrize("kind", ["url", "web"])
def test_a_url_is_fetched(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    url = request.getfixturevalue(kind)
    place = f"{url}/a paw.npz".replace(" ", "%20" if kind == "web" else " ")
    put(url, "a paw.npz", PAW, tmp_path)
    first = find_motion(place)
    assert (first.name, first.read_bytes()) == ("a paw.npz", PAW)
    put(url, "a paw.npz", BOW, tmp_path)
    assert find_motion(place, again=False) == first
    second = find_motion(place)
    assert (first.read_bytes(), second.read_bytes()) == (PAW, BOW)
    main(["motion", "info", place])
    assert "3.20 s" in capsys.readouterr().out
    main(["motion", "convert", place, str(tmp_path / "out.npz"), "--fps", "25"])
    assert read_motion(tmp_path / "out.npz").fps == 25
    with pytest.raises(RequestError, match=r"none\.npz"):
        find_motion(f"{url}/none.npz")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("ftp://host/a.npz", "motions are not read from there"),
        ("https://host/a.pkl", r"ends in \.npz"),
        ("http://host.invalid/a.npz", "https://"),
        ("https://name:word@host.invalid/a.npz", "credentials"),
        ("https://127.0.0.1:1/a.npz", "cannot be read"),
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
    np.savez(tmp_path / "site" / "planted.npz", fps=np.array([Planted(tmp_path / "canary")], dtype=object))
    with zipfile.ZipFile(tmp_path / "site" / "planted.npz") as file:
        assert pickle.PROTO in file.read("fps.npy")
    with pytest.raises(SystemExit):
        main(["motion", "info", f"{web}/planted.npz"])
    assert "never read" in capsys.readouterr().err
    assert not (tmp_path / "canary").exists()
    monkeypatch.setattr(npz, "MAX_MIB", 0)
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
    hub.files["me/clips"] = {"paw.npz": PAW, "more/bow.npz": BOW}
    environ = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hub")}
    for place, says in (
        ("clips/paw.npz", "3.70 s"),
        ("clips@main/more/bow.npz", "3.20 s"),
        ("clips/none.npz", "hf://me/clips: has no such file"),
        ("none/paw.npz", "no such repository"),
    ):
        words = [commands.BIN / "mjtrain", "motion", "info", f"hf://me/{place}"]
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
        ("up", "up.npz"),
        ("walk", "no such artifact"),
        ("both:v7", "no such artifact"),
    ):
        with pytest.raises(RequestError, match=rf"wandb://me/motions/{name}: .*{says}"):
            find_motion(f"wandb://me/motions/{name}")
    with pytest.raises(RequestError, match="no such artifact"):
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
    place = f"{url}/paw.npz"
    put(url, "paw.npz", PAW, tmp_path)
    env = make_env()
    command = env.commands["motion"]
    command = replace(command, params={**command.params, "file": place})
    task = replace(make_task(), env=replace(env, commands={"motion": command}))
    options: dict[str, Any] = {"num_envs": 4, "log_root": str(tmp_path / "logs"), "logger": "none"}
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_workers=2, num_threads=1)
    run = mjtrain.train(task, launch=launch, max_iterations=1, **options)
    assert f"motion {place}: read from {cache}" in capfd.readouterr().err
    (copy,) = (run.run_dir / "data").iterdir()
    assert copy.read_bytes() == PAW
    recorded = load_params(run.run_dir, "env")["commands"]["motion"]["params"]["file"]
    assert Path(recorded).read_bytes() == PAW
    Storage(url).delete(["paw.npz"])
    again = mjtrain.train(task, launch=launch, max_iterations=2, resume=str(run.run_dir), **options)
    assert "changed since" not in capfd.readouterr().err
    assert again.metrics["iteration"] == 2
    with pytest.raises(RequestError, match=rf"--env\.commands\.motion\.params\.file {url}: has no paw\.npz"):
        mjtrain.train(task, launch=launch, max_iterations=1, **options)
    shutil.rmtree(cache)
    assert mjtrain.play(str(run.run_dir), episodes=1)["iteration"] == 2
