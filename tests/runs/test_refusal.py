"""A refused request leaves no run folder and changes no file; an accepted one keeps the params of earlier starts."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import ModelConfig, RewardTerm
from mjtrain.env.env import Env
from mjtrain.runs.checkpoint import list_checkpoints
from mjtrain.runs.run_dir import removing_on_refusal
from mjtrain.runtime.errors import RequestError

pytestmark = pytest.mark.usefixtures("short_trial")

ONE = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
TWO = replace(ONE, num_workers=2)
TASK = make_train_config("Cartpole-Balance")


def train(log_root: Path, launch: mjtrain.LaunchConfig = ONE, task: str = "Cartpole-Balance", **options: Any) -> Path:
    defaults = {"num_envs": 4, "logger": "none", "max_iterations": 4, "log_root": str(log_root)}
    return mjtrain.train(task, launch=launch, **{**defaults, **options}).run_dir


def look_at(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every path below a folder, with its time of change and its content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
        for path in folder.rglob("*")
    }


def small_networks() -> mjtrain.AgentConfig:
    return replace(TASK.agent, actor=replace(TASK.agent.actor, hidden_dims=(8,)))


def env_without(joint: str) -> mjtrain.EnvConfig:
    term = replace(TASK.env.terminations["pole_fell"], params={"joint": joint, "limit": 0.2})
    return replace(TASK.env, terminations={"pole_fell": term})


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("logs"))


@pytest.fixture
def run_dir(first_run: Path, tmp_path: Path) -> Path:
    """A copy of a run of four iterations, alone below its log root."""
    return Path(shutil.copytree(first_run, tmp_path / "cartpole_balance" / first_run.name))


RESUMED = {
    "other networks": ({"agent": small_networks()}, "actor mlp.0.weight has shape"),
    "another task": ({"task": "Cartpole-Swingup"}, "is of task Cartpole-Balance, and this is Cartpole-Swingup"),
    "a complete run": ({"max_iterations": 4}, "--max-iterations 4: the run has 4 already"),
    "no such group": (
        {"agent": replace(TASK.agent, obs_groups={"actor": ("eyes",), "critic": ("actor",)})},
        "--agent.obs-groups.actor eyes",
    ),
    "an actor without a distribution": (
        {"agent": replace(TASK.agent, actor=ModelConfig())},
        "--agent.actor.distribution-cfg None",
    ),
    "no such joint": ({"env": env_without("knee")}, "joint knee (for terminations.pole_fell)"),
    "no such robot": ({"env": replace(TASK.env, robot="nowhere.xml")}, "--env.robot nowhere.xml: no such file"),
    "two sources": ({"load": "nowhere.pt"}, "--load nowhere.pt: cannot be combined with --resume"),
    "a mode with graphs": (
        {"agent": replace(TASK.agent, torch_compile_mode="reduce-overhead")},
        "--agent.torch-compile-mode reduce-overhead",
    ),
}


@pytest.mark.parametrize(("options", "words"), RESUMED.values(), ids=list(RESUMED))
def test_a_refused_resume_does_not_touch_the_run(
    run_dir: Path, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    before = look_at(tmp_path)
    with pytest.raises(RequestError) as caught:
        train(tmp_path, **{"resume": str(run_dir), "max_iterations": 8, **options})
    assert words in str(caught.value)
    assert look_at(tmp_path) == before


def test_a_damaged_run_is_not_touched(run_dir: Path, tmp_path: Path) -> None:
    (checkpoint,) = list_checkpoints(run_dir)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    before = look_at(tmp_path)
    with pytest.raises(RequestError, match="its content does not match its checksum"):
        train(tmp_path, resume=str(run_dir), max_iterations=8)
    assert look_at(tmp_path) == before


@pytest.mark.process
def test_a_resume_that_two_processes_refuse_leaves_no_logs(run_dir: Path, tmp_path: Path) -> None:
    before = look_at(tmp_path)
    with pytest.raises(RequestError, match="does not fit the networks"):
        train(tmp_path, TWO, resume=True, max_iterations=8, agent=small_networks())
    assert {name: content for name, (_, content) in look_at(tmp_path).items()} == {
        name: content for name, (_, content) in before.items()
    }


NEW = {
    "no such joint": ({"env": env_without("knee")}, "joint knee"),
    "no such group": (
        {"agent": replace(TASK.agent, obs_groups={"actor": ("eyes",), "critic": ("actor",)})},
        "--agent.obs-groups.actor eyes",
    ),
    "a slash": ({"run_name": "a/b"}, "--run-name a/b"),
    "other weights": ({"load": "{run}/model_4.pt", "agent": small_networks()}, "does not fit the networks"),
    "no such engine": ({"engine": "fast"}, "--engine fast"),
    "a wrong URL": ({"checkpoint_url": "bucket/prefix"}, "--checkpoint-url"),
}


@pytest.mark.parametrize(("options", "words"), NEW.values(), ids=list(NEW))
def test_a_refused_run_leaves_no_folder(first_run: Path, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    if "load" in options:
        options = {**options, "load": options["load"].format(run=first_run)}
    with pytest.raises(RequestError, match=words.replace("(", "\\(")):
        train(tmp_path / "logs", **options)
    assert list(tmp_path.iterdir()) == []


def table(env: Env, *, values: tuple[float, ...]) -> torch.Tensor:
    """A reward by a table that is too large for params/env.yaml."""
    return torch.full((env.num_envs,), values[0])


def test_settings_that_no_reader_would_take_are_refused(tmp_path: Path) -> None:
    env = make_train_config("Cartpole-Balance").env
    term = RewardTerm(func=table, weight=1.0, params={"values": (1.0,) * 200_000})
    env = replace(env, rewards={**env.rewards, "table": term})
    words = (
        r"^env\.rewards\.table\.params\.values: is too large for the record of a run \(it stands for more than 200,000"
    )
    with pytest.raises(RequestError, match=words):
        mjtrain.train("Cartpole-Balance", env=env, num_envs=4, max_iterations=1, log_root=str(tmp_path / "logs"))
    assert not (tmp_path / "logs").exists()


@pytest.mark.process
def test_a_run_that_two_processes_refuse_leaves_no_folder(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="joint knee"):
        train(tmp_path, TWO, env=env_without("knee"))
    assert list(tmp_path.glob("*/*")) == [run_dir]


def test_what_others_put_into_a_run_meanwhile_stays(tmp_path: Path) -> None:
    """A refusal can take minutes on several hosts; an export or a video may be written to the run meanwhile."""
    (tmp_path / "torchrunx" / "first").mkdir(parents=True)
    with pytest.raises(RequestError), removing_on_refusal(tmp_path, (), "now"):  # noqa: PT012
        (tmp_path / "export").mkdir()
        (tmp_path / "export" / "policy.onnx").write_text("exported meanwhile")
        (tmp_path / "torchrunx" / "second").mkdir()
        (tmp_path / "torchrunx" / "second" / "localhost.log").write_text("a log of this start")
        raise RequestError("no")
    assert (tmp_path / "export" / "policy.onnx").is_file()
    assert [path.name for path in (tmp_path / "torchrunx").iterdir()] == ["first"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_params_of_every_start_are_kept(run_dir: Path, tmp_path: Path) -> None:
    params = run_dir / "params"
    first = {path.name: path.read_bytes() for path in params.glob("*.yaml")}
    assert first.keys() == {"env.yaml", "agent.yaml", "launch.yaml", "learner.yaml"}
    agent = replace(TASK.agent, save_interval=7)
    train(tmp_path, resume=True, max_iterations=5, agent=agent)
    second = {path.name: path.read_bytes() for path in params.glob("*.yaml")}
    train(tmp_path, resume=True, max_iterations=6, agent=agent)
    kept = sorted((params / "previous").iterdir())
    assert [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in kept] == [first, second]
    assert read(params / "agent.yaml")["save_interval"] == 7
    launch = read(params / "launch.yaml")
    assert (launch["run"]["resume"], launch["run"]["max_iterations"]) == (str(run_dir), 6)
    assert launch["started"] > read(kept[1] / "launch.yaml")["started"] > read(kept[0] / "launch.yaml")["started"]
