"""A shared policy is the one that was trained, from every place; and what a stranger puts into it does not run."""

import contextlib
import hashlib
import http.server
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

import mjtrain
from mjtrain.cli import export, play, pull, push, train
from mjtrain.config import AgentConfig, DaggerConfig
from mjtrain.env.catalog import load_task
from mjtrain.runs import bundle as bundles
from mjtrain.runs import bundle_places
from mjtrain.runs.bundle import MANIFEST, fetch_bundle, parse_manifest
from mjtrain.runs.bundle_places import GROUP, is_place, open_bundle
from mjtrain.runs.motion_places import name_place
from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.runtime.files import filling
from mjtrain.training.open_run import tell
from support import commands, noisy_task
from support.hub import TOKEN, Hub
from support.shared import make_once

pytestmark = pytest.mark.process
EPISODES = 4
ONE = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
POLICIES = Path(__file__).parents[2] / "policies"
LAYERS = ("class_name", "hidden_dims", "cnn_cfg")
"""Settings of a network that the shapes of its weights depend on."""


def make(folder: Path) -> None:
    run = mjtrain.train(
        "Cartpole-Balance",
        num_envs=8,
        max_iterations=2,
        logger="none",
        log_root=str(folder / "logs"),
        launch=ONE,
    )
    small = ["--episodes", str(EPISODES), "--observations", "10", "--license", "apache-2.0"]
    push.main([str(run.run_dir), str(folder / "bundle"), *small])


@pytest.mark.parametrize(("learner", "flags"), [({}, ""), ({"learner": "skrl"}, " --learner skrl")])
def test_the_command_on_a_card_names_the_learner(learner: dict[str, str], flags: str, tmp_path: Path) -> None:
    launch = {"task": "Cartpole-Balance", "packages": {}, "run": {"num_envs": 8}, "seed": 3}
    bundles.write_card(tmp_path, launch, {"iter": 1, **learner}, None, None)
    front = yaml.safe_load((tmp_path / "README.md").read_text().split("---\n")[1])
    assert front["command"] == f"mjtrain train Cartpole-Balance --num-envs 8 --seed 3{flags}"


def test_the_card_of_a_task_made_in_python_names_only_commands_that_find_it(tmp_path: Path) -> None:
    figures = dict.fromkeys(("num_envs", "episodes", "seed", "engine", "noise", "pushes", "randomization"))
    launch = {"task": "custom", "packages": {}, "run": {"num_envs": 8}, "seed": 3}
    bundles.write_card(tmp_path, launch, {"iter": 1}, {**figures, "reward": {"mean": 1.0}}, None)
    _, header, body = (tmp_path / "README.md").read_text().split("---\n", 2)
    assert "command" not in yaml.safe_load(header)
    assert "mjtrain play SOURCE\n" in body
    assert yaml.safe_load(header)["judge"]["command"] == "mjtrain play SOURCE"
    assert " custom" not in body.removeprefix("\n# custom")


@pytest.fixture
def bundle(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a bundle that may be changed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = make_once(tmp_path_factory, "shared_policy", make)
    shutil.copytree(made / "bundle", tmp_path / "bundle")
    return tmp_path / "bundle"


def sign(folder: Path) -> None:
    """List all files of a folder with their true hashes, as a stranger would."""
    content = json.loads((folder / MANIFEST).read_text())
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    content["files"] = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        for name in names
        if name != MANIFEST
        for data in [(folder / name).read_bytes()]
    }
    (folder / MANIFEST).write_text(json.dumps(content))


def test_it_acts_as_the_run_and_tells_nothing_of_the_machine(
    bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = make_once(tmp_path_factory, "shared_policy", make)
    (run_dir,) = made.glob("logs/*/*")
    of_run = mjtrain.play(str(run_dir), episodes=EPISODES)
    for played in (
        mjtrain.play(str(bundle), episodes=EPISODES),
        mjtrain.play("cartpole-balance", policy=str(bundle), episodes=EPISODES),
    ):
        assert played["iteration"] == 2
        assert {**played, "checkpoint": 0, "policy": 0} == {**of_run, "checkpoint": 0, "policy": 0}
    _, front, text = (bundle / "README.md").read_text().split("---\n", 2)
    card: dict[str, Any] = yaml.safe_load(front)
    assert card["figures"]["reward"]["mean"] == pytest.approx(of_run["reward"]["mean"], rel=1e-3)
    assert card["judge"]["episodes"] == EPISODES
    assert (card["task"], card["license"], card["trained"]["iterations"]) == ("Cartpole-Balance", "apache-2.0", 2)
    assert card["command"] == "mjtrain train Cartpole-Balance --num-envs 8 --max-iterations 2 --seed 0"
    assert f"| reward | {card['figures']['reward']['mean']:g} ±" in text
    told = [str(made).encode(), str(run_dir.name).encode(), os.uname().nodename.encode()]
    for file in (
        path for path in bundle.rglob("*") if path.is_file() and path.name not in ("policy.onnx", "policy.json")
    ):
        assert not [word for word in told if word in file.read_bytes()], file
    assert str(made).encode() not in (bundle / "policy.onnx").read_bytes()


def test_a_student_does_not_tell_where_its_teacher_was(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = make_once(tmp_path_factory, "shared_policy", make)
    (teacher,) = made.glob("logs/*/*")
    algorithm = DaggerConfig(teacher_run=str(teacher), num_mini_batches=2, buffer_rollouts=1)
    agent = AgentConfig(algorithm=algorithm, obs_groups={"actor": ("actor",)})
    options: dict[str, Any] = {"num_envs": 8, "max_iterations": 1, "log_root": str(tmp_path / "logs"), "logger": "none"}
    alone = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    small = ["--episodes", "1", "--observations", "10"]
    for given, told in ((None, ""), (str(made / "bundle"), ""), ("pretrained:Cartpole-Balance",) * 2):
        run = mjtrain.train("Cartpole-Balance", agent=agent, teacher=given, launch=alone, **options)
        shared = tmp_path / "shared" / run.run_dir.name
        push.main([str(run.run_dir), str(shared), *small])
        assert yaml.safe_load((shared / "params" / "agent.yaml").read_text())["algorithm"]["teacher_run"] == told
        assert (f" --teacher {told} " in (shared / "README.md").read_text()) == bool(told)
        for file in shared.rglob("*.yaml"):
            assert str(tmp_path) not in file.read_text()


def test_observations_may_draw_from_the_generator_of_torch(tmp_path: Path) -> None:
    task = f"{noisy_task.__file__}:make_blurred"
    run = mjtrain.train(task, max_iterations=1, logger="none", log_root=str(tmp_path / "logs"), launch=ONE)
    push.main([str(run.run_dir), str(tmp_path / "bundle"), "--episodes", "1", "--observations", "10"])
    assert (tmp_path / "bundle" / "policy.safetensors").is_file()


def test_nothing_that_is_passed_on_tells_where_the_file_of_a_task_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    task, out = f"{noisy_task.__file__}:make", tmp_path / "out"
    run = str(mjtrain.train(task, max_iterations=1, logger="none", log_root=str(tmp_path / "logs"), launch=ONE).run_dir)
    push.main([run, str(out / "bundle"), "--episodes", "1", "--observations", "10"])
    export.main([run, "--out", str(out / "exported"), "--observations", "10"])
    play.main([run, "--html", str(out / "page.html"), "--html-episodes", "1"])
    play.main([run, "--record", str(out / "data"), "--episodes", "1"])
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix not in (".mjb", ".pt", ".npz")]
    folder, named = str(Path(noisy_task.__file__).parent).encode(), b"noisy_task.py:make"
    assert not [path.name for path in files if folder in path.read_bytes()]
    told = {path.name for path in files if named in path.read_bytes()}
    assert told >= {"policy.json", "policy.onnx", "policy.safetensors", "page.html", "dataset.json", "README.md"}
    assert mjtrain.play(task, policy=str(out / "bundle"), episodes=1)["iteration"] == 1


def test_it_is_deployed_with_a_model_of_its_own_robot(bundle: Path) -> None:
    code = (
        "import sys; from mjtrain.cli.deploy import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit as end: print(end.code)\n"
        "print('torch' in sys.modules)"
    )
    words = [str(bundle), "--seconds", "0.2", "--standing-s", "0.1", "--damped-s", "0.1", "--max-tilt", "9"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Cartpole-Balance: completed"), done.stdout + done.stderr
    assert done.stdout.endswith("False\n")


def same(folder: Path, other: Path) -> bool:
    def read(place: Path) -> dict[str, bytes]:
        return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}

    return read(folder) == read(other)


@pytest.mark.parametrize("kind", ["folder", "zip", "s3", "file"])
def test_it_goes_to_a_place_and_comes_back(
    kind: str, bundle: Path, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    places: dict[str, Callable[[], str]] = {
        "folder": lambda: str(tmp_path / "there"),
        "zip": lambda: str(tmp_path / "there.zip"),
        "s3": lambda: request.getfixturevalue("url"),
        "file": lambda: f"file://{tmp_path}/stored",
    }
    place = places[kind]()
    push.main([str(bundle), place])
    pull.main([place, str(tmp_path / "back")])
    assert "Cartpole-Balance, 9 files" in capsys.readouterr().out
    assert same(bundle, tmp_path / "back")
    with pytest.raises(SystemExit):
        pull.main([place, str(tmp_path / "back")])
    assert "not empty" in capsys.readouterr().err


def test_a_web_server_gives_it(bundle: Path, tmp_path: Path, web: str) -> None:
    push.main([str(bundle), str(tmp_path / "packed.zip")])
    for place in (f"{web}/bundle", f"{web}/packed.zip"):
        assert same(bundle, open_bundle(place))
    with pytest.raises(RequestError, match="does not exist"):
        open_bundle(f"{web}/nothing")
    with pytest.raises(RequestError, match="https://"):
        open_bundle(f"{web}/away")
    with pytest.raises(RequestError, match="https://"):
        open_bundle("http://example.invalid/bundle")
    with pytest.raises(OutsideError, match="cannot be read"):
        open_bundle("https://127.0.0.1:1/bundle")
    with pytest.raises(OutsideError, match=r"1/gehen-ü\.zip: cannot be read"):
        open_bundle("https://127.0.0.1:1/gehen-ü.zip?signature=word")
    for place in ("https://[x/bundle", "https://[x/packed.zip", "s3://[x/bundle"):
        with pytest.raises(RequestError, match=r"\[x.*: is not a valid URL"):
            open_bundle(place)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("damaged", [MANIFEST, "policy.safetensors"])
def test_a_damaged_archive_is_named(compression: int, damaged: str, bundle: Path, tmp_path: Path) -> None:
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w", compression) as file:
        for path in bundle.rglob("*"):
            file.write(path, path.relative_to(bundle))
        begin = file.getinfo(damaged).header_offset + 30 + len(damaged)
    data = bytearray(archive.read_bytes())
    data[begin + 8 : begin + 100] = bytes(92)
    archive.write_bytes(data)
    with pytest.raises(RequestError, match=rf"packed\.zip: {damaged} cannot be read \("):
        open_bundle(str(archive))


def test_a_list_that_is_gone_from_the_cache_is_fetched_again(bundle: Path, tmp_path: Path) -> None:
    (open_bundle(str(bundle)) / MANIFEST).unlink()
    pull.main([str(bundle), str(tmp_path / "back")])
    assert same(bundle, tmp_path / "back")


def test_a_place_that_cannot_be_read_is_not_made(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=rf"file://{tmp_path}/typo: has no bundle.json; it is not a policy bundle"):
        open_bundle(f"file://{tmp_path}/typo")
    assert not (tmp_path / "typo").exists()
    (bundle / "policy.onnx").unlink()
    (bundle / "policy.onnx").symlink_to("policy.onnx")
    with pytest.raises(RequestError, match=r"policy\.onnx cannot be read \(Too many levels of symbolic links\)"):
        open_bundle(str(bundle))


def test_what_a_stranger_names_does_not_control_the_terminal(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit("params/env.yaml", "  upright:", '  "\\e[31mupright":')(bundle)
    content = json.loads((bundle / MANIFEST).read_text())
    (bundle / MANIFEST).write_text(json.dumps({**content, "task": "Pole\x1b]0;taken\x07"}))
    pull.main([str(bundle), str(tmp_path / "back")])
    play.main([str(bundle), "--episodes", "1"])
    tell("\x1b[2J was left out")
    told = capsys.readouterr()
    assert r"\x1b[2J was left out" in told.err
    assert r"Pole\x1b]0;taken\x07, 9 files" in told.out
    assert r"reward/\x1b[31mupright" in told.out
    assert "\x1b" not in told.out + told.err


def test_a_folder_may_need_a_query(bundle: Path, web: str) -> None:
    kept = bundle.rename(bundle.with_name("kept"))
    for place in (f"{web}/kept?token=word", f"{web}/kept/?token=word"):
        assert same(kept, open_bundle(place))
        shutil.rmtree(bundle_places.cache_dir("policies"))
    with pytest.raises(RequestError, match=r"/nothing/bundle\.json: does not exist"):
        open_bundle(f"{web}/nothing?token=word")
    with pytest.raises(OutsideError, match=r"/kept/bundle\.json: answers with status 403"):
        open_bundle(f"{web}/kept")


def test_a_folder_is_not_named_after_a_query(
    bundle: Path, tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push.main([str(bundle), str(tmp_path / "packed.zip")])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    pull.main([f"{web}/packed.zip?signature={300 * 'a'}/b"])
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["packed"]
    assert same(bundle, tmp_path / "here" / "packed")


def test_a_key_in_a_url_is_not_printed(
    bundle: Path, tmp_path: Path, web: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def says(module: Any, *words: str) -> str:
        with contextlib.suppress(SystemExit):
            module.main([*words])
        told = capsys.readouterr()
        assert "word" not in told.out + told.err
        return told.out + told.err

    push.main([str(bundle), str(tmp_path / "packed.zip")])
    capsys.readouterr()
    shown, query = f"{web}/packed.zip", "?signature=word"
    place = shown + query
    new = str(tmp_path / "new")
    assert f"{shown} as {tmp_path}/pulled" in says(pull, place, str(tmp_path / "pulled"))
    assert f"{shown} as {tmp_path}/pushed" in says(push, place, str(tmp_path / "pushed"))
    assert json.loads(says(play, place, "--episodes", "1", "--json"))["policy"] == shown
    assert f"{shown} is one policy" in says(play, place, "--checkpoint", "best")
    assert f"{shown} is one policy" in says(play, place, "--run", f"{place}s")
    assert f"--run {shown}: --policy {shown} names" in says(play, "Cartpole-Balance", "--policy", place, "--run", place)
    assert f"{shown} is a bundle" in says(push, place, new, "--episodes", "1")
    assert f"{shown}: mjtrain cannot write" in says(push, str(bundle), place)
    assert "give a folder too" in says(pull, f"{web}/.zip{query}")
    for load in ("--load", "--load-critic", "--teacher"):
        assert f"{load} {shown}: " in says(train, "Cartpole-Balance", load, place, "--resume", "auto")
    for name, because in (("bundle.json", "is not the list"), ("policy.onnx", "is not the file")):
        (bundle / name).write_bytes(b"{}")
        with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
            for path in bundle.rglob("*"):
                file.write(path, path.relative_to(bundle))
        shutil.rmtree(bundle_places.cache_dir("policies"), ignore_errors=True)
        for module, *words in ((play, place), (pull, place, new), (play, "Cartpole-Balance", "--policy", place)):
            assert f"{shown}: {name} {because}" in says(module, *words)
        shutil.copyfile(tmp_path / "pulled" / name, bundle / name)


def test_a_key_in_a_url_is_not_recorded(
    bundle: Path, tmp_path: Path, web: str, capfd: pytest.CaptureFixture[str]
) -> None:
    push.main([str(bundle), str(tmp_path / "packed.zip")])
    place = f"{web}/packed.zip?signature=word"
    algorithm = DaggerConfig(num_mini_batches=2, buffer_rollouts=1)
    student = AgentConfig(algorithm=algorithm, obs_groups={"actor": ("actor",)})
    options: dict[str, Any] = {"num_envs": 8, "log_root": str(tmp_path / "logs"), "logger": "tensorboard"}
    options["launch"] = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
    mjtrain.train("Cartpole-Balance", load=place, max_iterations=1, **options)
    run_dir = mjtrain.train("Cartpole-Balance", agent=student, teacher=place, max_iterations=1, **options).run_dir
    told = capfd.readouterr()
    assert "signature=word" not in told.out + told.err
    assert not [file for file in (tmp_path / "logs").rglob("*") if file.is_file() and b"=word" in file.read_bytes()]
    (tmp_path / "packed.zip").unlink()  # which a resumed run does not need
    record = run_dir / "params" / "launch.yaml"
    for iterations in (2, 3):
        options |= {"resume": str(run_dir), "max_iterations": iterations}
        mjtrain.train("Cartpole-Balance", agent=student, teacher=place, **options)
        assert name_place(place) in record.read_text()
        record.write_text(record.read_text().replace(name_place(place), place))  # as earlier versions recorded it


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


def test_the_hub_takes_it_and_gives_it(bundle: Path, tmp_path: Path, hub: Hub) -> None:
    environ = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hub")}

    def run(*words: str) -> Any:
        return commands.run([commands.BIN / "mjtrain", *words], cwd=tmp_path, environ=environ)

    hub.knows_users = False
    assert run("push", str(bundle), "hf://me/pole").returncode == 0
    hub.knows_users = True
    assert hub.files["me/pole"].keys() == {
        path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()
    }
    assert run("pull", "hf://me/pole@main").returncode == 0
    assert same(bundle, tmp_path / "pole")
    hub.files["me/pole"]["policy.safetensors"] += b"more"
    shutil.rmtree(tmp_path / "cache")
    for place, because in (
        ("hf://me/pole", "policy.safetensors"),
        ("hf://me/none", "no such repo"),
        ("hf://me", "give"),
    ):
        done = run("pull", place, "again")
        assert (done.returncode, because in done.stderr) == (2, True), done.stderr
    environ["HF_TOKEN"] = "hf_another"
    refused = run("push", "no-such-run", "hf://me/pole")  # before the policy is looked at
    assert (refused.returncode, "Invalid user token" in refused.stderr) == (1, True), refused.stderr
    assert "hf_another" not in refused.stderr
    del environ["HF_TOKEN"]
    refused = run("push", "no-such-run", "hf://me/pole")
    assert (refused.returncode, "set HF_TOKEN, or run `hf auth login`" in refused.stderr) == (2, True), refused.stderr


class Planted:
    """What runs if it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


def test_what_is_not_listed_is_not_looked_at(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    for name in ("sitecustomize.py", "mjtrain.py", "robot/torch.py", "params/yaml.py"):
        (bundle / name).write_text(f"import os; os.mkdir({str(canary)!r})")
    for name in ("model_9.pt", "policy.pt", "data.pkl"):
        (bundle / name).write_bytes(pickle.dumps(Planted(canary)))
    (bundle / "robot" / "link").symlink_to("/etc")
    archive = tmp_path / "planted.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in bundle.rglob("*"):
            if path.is_file():
                file.write(path, path.relative_to(bundle))
        file.writestr("../slipped.py", "import os")
        file.writestr(f"{tmp_path}/slipped.py", "import os")
    monkeypatch.chdir(bundle)
    for place in (str(bundle), str(archive)):
        assert mjtrain.play(place, episodes=1)["iteration"] == 2
        found = {path.suffix for path in open_bundle(place).rglob("*") if path.is_file()}
        assert found == {".json", ".md", ".onnx", ".safetensors", ".yaml", ".xml"}
    assert not canary.exists()
    assert not list(tmp_path.glob("**/slipped.py"))


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        sign(folder)

    return change


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        write(name, text.replace(old, new, 1))(folder)

    return change


def list_as(name: Any, **entry: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / MANIFEST).read_text())
        content["files"][name] = {"sha256": "ab" * 32, "size": 3, **entry}
        (folder / MANIFEST).write_text(json.dumps(content))

    return change


def link(folder: Path) -> None:
    target = folder.with_name("elsewhere.onnx")
    (folder / "policy.onnx").rename(target)
    (folder / "policy.onnx").symlink_to(target)


@pytest.mark.parametrize(
    ("change", "because"),
    [
        (write("code.py", "import os"), "code.py"),
        (write("data/code.py", "import os"), "data/code.py"),
        (write("model.mjb", b"\0"), "model.mjb"),
        (write("policy.pt", b"\x80\x04."), "policy.pt"),
        (list_as("../slip.xml"), "slip.xml"),
        (list_as("robot/../../slip.xml"), "slip.xml"),
        (list_as("/etc/slip.xml"), "slip.xml"),
        (list_as("robot//slip.xml"), "slip.xml"),
        (list_as("robot/.hidden.xml"), "hidden"),
        (list_as("robot/a\\b.xml"), "must not be"),
        (list_as("robot/missing.xml"), "missing.xml"),
        (list_as("robot/large.stl", size=1 << 40), "MiB"),
        (list_as("robot/odd.stl", size="x"), "not the list"),
        (list_as("robot/odd.stl", size=float("inf")), "not the list of"),
        (list_as("robot/odd.stl", sha256="x"), "valid hash"),
        (link, "symbolic link"),
        (lambda folder: (folder / "policy.onnx").write_bytes(b"other"), "policy.onnx is not the file"),
        (write("params/env.yaml", "[1"), "not valid YAML"),
        (edit("params/env.yaml", "robot/cartpole.xml", "/etc/passwd"), "/etc/passwd"),
        (edit("params/env.yaml", "robot/cartpole.xml", "robot/../../cartpole.xml"), "not one of its files"),
        (edit("params/env.yaml", "params: {}", "params: {file: /etc/passwd}"), "/etc/passwd"),
        (write("params/data.yaml", "clip: {copy: ../clip.npz, sha256: x}"), "clip.npz"),
        (edit("robot/cartpole.xml", "<mujoco", '<mujoco><include file="/etc/robot.xml"/></mujoco><mujoco'), "robot"),
        (edit("robot/cartpole.xml", "<worldbody>", '<asset><mesh file="../../x.stl"/></asset><worldbody>'), "x.stl"),
        (edit("robot/cartpole.xml", "<worldbody>", '<compiler meshdir="/etc"/><worldbody>'), "another folder"),
    ],
)
def test_a_stranger_cannot_have_other_files_read(
    change: Callable[[Path], Any], because: str, bundle: Path, tmp_path: Path
) -> None:
    change(bundle)
    with pytest.raises(RequestError, match="(?s)" + because.replace("/", "\\/").replace(".", "\\.")):
        open_bundle(str(bundle))
    assert not list((tmp_path / "cache").glob("mjtrain/policies/*"))


@pytest.mark.parametrize("function", ["os:system", "subprocess:run", "builtins:exec", "planted:run"])
def test_code_that_its_settings_name_is_not_run(
    function: str, bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "planted.py").write_text(f"import os; os.mkdir({str(tmp_path / 'canary')!r})\ndef run(*a): pass")
    monkeypatch.syspath_prepend(tmp_path)
    change = edit("params/env.yaml", "mjtrain_tasks.cartpole_balance.rewards:upright", function)
    change(bundle)
    for words in ([str(bundle)], ["Cartpole-Balance", "--policy", str(bundle)]):
        with pytest.raises(SystemExit) as end:
            play.main(words)
        assert end.value.code == 2
        assert function in capsys.readouterr().err
    assert not (tmp_path / "canary").exists()


def test_more_than_was_announced_is_not_kept(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = parse_manifest((bundle / MANIFEST).read_bytes(), "here")
    asked: list[int] = []

    def read(name: str, size: int) -> bytes:
        asked.append(size)
        return b"\0" * (size + 1)

    with pytest.raises(RequestError, match=r"README\.md"):
        fetch_bundle(manifest, read, "here", tmp_path)
    assert asked == [manifest.files["README.md"][1]]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(MANIFEST, b"[" * (4 << 20))
    (tmp_path / "bomb.zip").write_bytes(packed.getvalue())
    with pytest.raises(RequestError, match="not the list"):
        open_bundle(str(tmp_path / "bomb.zip"))
    monkeypatch.setattr(bundles, "MAX_BYTES", 10)
    with pytest.raises(RequestError, match="lists more"):
        open_bundle(str(bundle))


@pytest.mark.parametrize("exists", [False, True])
def test_what_is_interrupted_leaves_nothing(exists: bool, bundle: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    if exists:
        there.mkdir()
    for name in (MANIFEST, [*parse_manifest((bundle / MANIFEST).read_bytes(), "here").files][-1]):
        moved = (bundle / name).rename(tmp_path / "moved")
        with pytest.raises((OSError, OutsideError)):
            bundle_places.push_bundle(bundle, str(there))
        moved.rename(bundle / name)
        assert [path.name for path in tmp_path.glob("there*/**/*")] == []
        assert there.exists() == exists
    bundle_places.push_bundle(bundle, str(there))
    assert same(bundle, there)


def test_what_somebody_else_writes_meanwhile_is_kept(tmp_path: Path) -> None:
    def fill() -> None:
        with filling(tmp_path) as partial:
            (partial / "file").write_text("ours")
            (tmp_path / "file").write_text("theirs")

    with pytest.raises(OSError, match="not empty"):
        fill()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "theirs")]


def test_links_in_a_circle_are_no_place(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OutsideError, match="loop: cannot be written"):
        bundle_places.push_bundle(bundle, str(tmp_path / "loop"))


class _WriteOnly(http.server.BaseHTTPRequestHandler):
    """A storage whose user may write and not read."""

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.written.append(self.path.rpartition("/")[2])  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("ETag", '"0"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_who_may_write_need_not_be_allowed_to_read(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _WriteOnly) as server:
        server.written = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        bundle_places.check_destination("s3://bucket/policy")
        bundle_places.push_bundle(bundle, "s3://bucket/policy")
        server.shutdown()
        assert MANIFEST in server.written  # type: ignore[attr-defined]


def test_two_processes_may_fetch_a_bundle_at_once(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*args: Any) -> None:
        fetch_bundle(*args)
        monkeypatch.setattr(bundle_places, "fetch_bundle", fetch_bundle)
        open_bundle(str(bundle))  # as the other one

    monkeypatch.setattr(bundle_places, "fetch_bundle", fetch)
    folder = open_bundle(str(bundle))
    assert same(folder, bundle)
    assert list(folder.parent.iterdir()) == [folder]


def test_what_cannot_be_done_is_said(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_place("Cartpole-Balance")
    (tmp_path / "odd.zip").write_bytes(b"PK")
    for words, because in (
        ((play, "Cartpole-Balance", "--policy", "nothing"), "--policy nothing"),
        ((play, "Cartpole-Balance", "--policy", "x.zip", "--run", "r"), "--run r"),
        ((play, "Cartpole-Balance", "--policy", str(tmp_path / "odd.zip")), "not a .zip"),
        (
            (play, "Humanoid-Velocity-Rough", "--policy", "pretrained"),
            "no pretrained policy of Humanoid-Velocity-Rough",
        ),
        ((export, str(bundle)), "--out"),
        ((pull, "Cartpole-Balance"), "not a policy bundle"),
        ((pull, "s3://", str(tmp_path / "new")), "names no bucket"),
        ((push, "Cartpole-Balance"), "push RUN DESTINATION"),
        ((push, "Cartpole-Balance", "http://localhost/x"), "cannot write to web servers"),
        ((push, "Cartpole-Balance", "ftp://host/x"), "s3://"),
        ((push, str(tmp_path / "odd.zip"), str(tmp_path / "odd.zip")), "exists"),
        ((push, "no-run", str(tmp_path / "odd.zip" / "new")), "odd.zip/new: cannot be written"),
        ((push, "no-run", str(tmp_path / "odd.zip" / "new.zip")), "odd.zip/new.zip: cannot be written"),
        ((pull, "pretrained:nothing", str(tmp_path / "odd.zip" / "new")), "odd.zip/new: cannot be written"),
    ):
        module, *args = words
        with pytest.raises(SystemExit) as end:
            module.main(args)
        assert (end.value.code, because in (err := capsys.readouterr().err)) == (2, True), err


def test_the_pretrained_policies_are_whole_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    registered = tomllib.loads((POLICIES / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    folders = [path.parent for path in (POLICIES / "src").rglob(MANIFEST)]
    assert sorted(folder.name for folder in folders) == sorted(registered)
    for folder in folders:
        manifest = parse_manifest((folder / MANIFEST).read_bytes(), str(folder))
        assert manifest.task == folder.name
        assert sum(size for _, size in manifest.files.values()) < 2_000_000
        card = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
        assert (card["license"], card["judge"]["episodes"]) == ("apache-2.0", 100)
        assert same(folder, open_bundle(str(folder)))
        agent, env = (yaml.safe_load((folder / "params" / f"{name}.yaml").read_text()) for name in ("agent", "env"))
        task = load_task(folder.name)
        networks = {name: json.loads(json.dumps(asdict(getattr(task.agent, name)))) for name in ("actor", "critic")}
        for name, network in networks.items():
            assert {key: network[key] for key in LAYERS} == {key: agent[name][key] for key in LAYERS}, (
                "--load would fail"
            )
        for group in task.agent.obs_groups["actor"]:
            assert [*env["observations"][group]] == [*task.env.observations[group]]
    installed = tmp_path / "mjtrain_policies-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mjtrain-policies\nVersion: 0.1.0\n")
    lines = [f"{name} = {value}" for name, value in registered.items()]
    (installed / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(POLICIES / "src")
    played = mjtrain.play("cartpole-balance", policy="pretrained", episodes=2)
    assert played["length"]["mean"] == 500
    tracked = mjtrain.play("Humanoid-Track", policy="pretrained", episodes=4)
    assert tracked["successes"]["completed"]["mean"] >= 0.75
    with pytest.raises(RequestError, match=r"Humanoid-Velocity-Rough; installed packages have.*Cartpole-Balance"):
        mjtrain.play("Humanoid-Velocity-Rough", policy="pretrained")
