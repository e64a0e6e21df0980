"""A learner that another package brings has all that RSL-RL has; and what is said where one does not fit."""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.cli.train import main as train
from mjtrain.config import LearnerConfig
from mjtrain.learning import Algorithm, Policy, TrainingLoop
from mjtrain.learning.library import check_learner, find_library, make_learner
from mjtrain.runs.resume import resolve_learner
from mjtrain.runs.run_dir import read_given_yaml
from mjtrain.runtime.errors import RequestError
from support.resuming import read_rows

TASK = "Cartpole-Balance"
CPU = mjtrain.LaunchConfig(gpu_ids=None)
SMALL = ("Cartpole-Balance", "--gpu-ids", "None", "--num-envs", "8", "--logger", "none")

pytestmark = pytest.mark.usefixtures("third_party", "no_gpu")


def test_it_trains_resumes_plays_and_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two iterations and two more are four, bit for bit, with the same metrics as any other run has."""
    settings = tmp_path / "own.yaml"
    settings.write_text("rate: 0.02\n")
    options = {"num_envs": 8, "logger": "none", "launch": CPU}

    def go(name: str, iterations: int, **more: Any) -> Path:
        done = mjtrain.train(
            "Cartpole-Balance", log_root=str(tmp_path / name), max_iterations=iterations, **options, **more
        )
        return done.run_dir

    straight = go("straight", 4, learner="linear", learner_config=str(settings))
    stopped = go("stopped", 2, learner="linear", learner_config=str(settings))
    again = go("stopped", 4, resume=str(stopped), learner_config=str(settings))  # its learner need not be named again
    assert again == stopped
    assert read_rows(straight) == read_rows(stopped)
    assert read_rows(straight)[-1]["learning_rate"] == 0.02
    assert {"mean_reward", "loss/surrogate", "kl", "action_std", "reward/upright"} <= set(read_rows(straight)[-1])
    assert yaml.safe_load((straight / "params" / "learner.yaml").read_text()) == {
        "name": "linear",
        "settings": {"rate": 0.02},
    }
    assert "this learner is linear: --agent.actor.hidden-dims do not count" in capsys.readouterr().err
    assert mjtrain.play(straight, episodes=1, gpu_ids=None)["iteration"] == 4
    exported = mjtrain.export(straight, observations=20)
    assert max(exported.differences.values()) < 1e-5

    with pytest.raises(RequestError, match=r"--learner rsl_rl: .* was trained with linear"):
        go("stopped", 6, resume=str(stopped), learner="rsl_rl")
    place = ["--log-root", str(stopped.parents[1]), "--resume", "auto"]
    for dry in ([], ["--dry-run"]):
        with pytest.raises(SystemExit):
            train([*SMALL, *place, "--learner", "rsl_rl", *dry])
        assert f"--learner rsl_rl: {stopped} was trained with linear" in capsys.readouterr().err
    with pytest.raises(RequestError, match="was learned with --learner linear, and this is rsl_rl"):
        go("loaded", 1, load=str(straight / "model_4.pt"))
    assert not (tmp_path / "loaded").exists()


def test_two_ranks_stay_the_same(tmp_path: Path) -> None:
    words = ["--num-workers", "2", "--drift-check-interval", "1", "--max-iterations", "3", "--learner", "linear"]
    train([*SMALL, *words, "--log-root", str(tmp_path)])
    (run_dir,) = (tmp_path / "cartpole_balance").iterdir()
    assert read_rows(run_dir)[-1]["world_size"] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--learner missing", 'needs mjtrain_no_such_library; pip install "third-party[library]"'),
        ("--learner linar", "unknown learner; did you mean linear? (installed: linear, missing, "),
        ("--learner linear --agent.actor.class-name RNNModel", "--agent.actor.class-name RNNModel: this learner"),
    ],
)
def test_what_does_not_fit_is_one_line(
    words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        train([*SMALL, *words.split(), "--log-root", str(tmp_path / "logs")])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    assert stop.value.code == 2
    assert not (tmp_path / "logs").exists()


def test_a_learner_that_mjtrain_knows_and_nothing_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mjtrain.learning.library.list_learners", list)
    with pytest.raises(RequestError, match=r'--learner skrl: is not installed; pip install "mjtrain-learners\[skrl\]"'):
        find_library("skrl")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "third_party:LIBRARY cannot be imported (ZeroDivisionError: division by zero)"),
        ("class LIBRARY: pass", "third_party:LIBRARY is a class; register an object of it"),
        (
            "LIBRARY = 5",
            "third_party:LIBRARY lacks modules, install, check, make_learner, make_policy; see mjtrain.lea",
        ),
        ("LIBRARY.modules = 'numpy'", "third_party:LIBRARY has the modules 'numpy'; give a tuple, ('numpy',)"),
        ("LIBRARY.modules = ('nowhere.at_all',)", 'needs nowhere.at_all; pip install "third-party"'),
        ("LIBRARY.check = lambda *_: 'a line'", "its check returned the string 'a line'; it must return a list of lin"),
        ("LIBRARY.check = lambda *_: None", "its check returned None; it must return a list of lines"),
    ],
)
def test_what_is_wrong_with_a_library_is_said(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "third_party", sys)  # so that the end of the test takes out what is imported now
    del sys.modules["third_party"]
    (module,) = tmp_path.rglob("third_party.py")
    text = module.read_text()
    module.unlink()  # a link
    module.write_text(f"{text}\n{code}\n")
    with pytest.raises(RequestError, match=f"^--learner linear: {re.escape(message)}"):
        check_learner(replace(make_train_config(TASK), learner=LearnerConfig(name="linear")), 1, "cpu")


def test_a_loop_of_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither `play` nor `--resume` would find its library."""
    third_party: Any = importlib.import_module("third_party")
    env = mjtrain.make_env(TASK, num_envs=2)
    monkeypatch.setattr(
        third_party,
        "TrainingLoop",
        lambda context, env, algorithm, steps, _: TrainingLoop(context, env, algorithm, steps, "other"),
    )
    with pytest.raises(RequestError, match="--learner linear: its TrainingLoop has the name other; give it linear"):
        make_learner(mjtrain.RankContext(), env, make_train_config(TASK).agent, LearnerConfig(name="linear"))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("skrl", {"learning_rate": -0.5}, "skrl says ValueError: Invalid learning rate: -0.5"),
        ("rl_games", {"config": {"weight_decay": -1.0}}, "rl_games says ValueError: Invalid weight_decay value: -1.0"),
        ("rsl_rl", {"actor": {"hidden_dims": []}}, "rsl_rl says IndexError: list index out of range"),
        ("rsl_rl", {"algorithm": {"optimizer": "foo"}}, "rsl_rl says ValueError: Invalid optimizer 'foo'. Valid opt"),
    ],
)
def test_what_a_library_says_of_settings_is_one_line(name: str, settings: dict[str, Any], message: str) -> None:
    learner, config = LearnerConfig(name=name, settings=settings), make_train_config(TASK)
    with pytest.raises(RequestError, match=f"^--learner-config: {re.escape(message)}"):
        make_learner(mjtrain.RankContext(), mjtrain.make_env(TASK, num_envs=2), config.agent, learner)


def test_settings_are_numbers_as_people_write_them(tmp_path: Path) -> None:
    """YAML 1.1 has 1e-4 as text, which RSL-RL would meet in its first update."""
    file = tmp_path / "own.yaml"
    file.write_text("algorithm: {entropy_coef: 5e-3, value_loss_coef: +.5E1, optimizer: adam, gamma: '1e-1'}")
    config = resolve_learner(make_train_config(TASK, learner_config=str(file)))
    own = {"entropy_coef": 0.005, "value_loss_coef": 5.0, "optimizer": "adam", "gamma": "1e-1"}
    assert config.learner.settings == {"algorithm": own}
    file.write_text("algorithm:\n  gamma: 0.9\n  lam: 0.9\n  gamma: 0.8\n")
    with pytest.raises(RequestError, match=r"is not valid YAML \(gamma is given twice in .*, line 2, column 3\)"):
        resolve_learner(make_train_config(TASK, learner_config=str(file)))


def test_a_name_may_be_given_by_a_merge_too(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("base: &b {gamma: 1}\nouter: {x: &x {<<: *b, gamma: 2}}\nb: {<<: *x}\nkeys: {1: a, '1': b}\n")
    assert read_given_yaml(file, "--space own.yaml") == {
        "base": {"gamma": 1},
        "outer": {"x": {"gamma": 2}},
        "b": {"gamma": 2},
        "keys": {1: "a", "1": "b"},
    }


def test_what_fails_in_an_own_library_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    third_party: Any = importlib.import_module("third_party")
    monkeypatch.setattr(third_party, "TrainingLoop", None)
    learner = LearnerConfig(name="linear", settings={"rate": 0.1})
    env = mjtrain.make_env(TASK, num_envs=2)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        make_learner(mjtrain.RankContext(), env, make_train_config(TASK).agent, learner)


def test_what_two_ranks_refuse_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("algorithm: {optimizer: foo}")
    with pytest.raises(SystemExit) as stop:
        train([*SMALL, "--num-workers", "2", "--learner-config", str(file), "--log-root", str(tmp_path)])
    *_, header, last = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2
    assert header.startswith("run directory: ")
    assert last.startswith("train: --learner-config: rsl_rl says ValueError: Invalid optimizer 'foo'.")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"linear": [object]}, r"state_dict\(\)\['linear'\]\[0\] is <class 'object'>; a checkpoint holds tensors, "),
        ({"linear": {}, "iter": 3}, r"state_dict\(\) has the keys iter, which the loop uses; rename them"),
    ],
)
def test_a_state_that_no_checkpoint_could_be_read_with_is_not_saved(
    state: dict[str, Any], message: str, tmp_path: Path
) -> None:
    third_party: Any = importlib.import_module("third_party")
    env = mjtrain.make_env(TASK, num_envs=2)
    algorithm = third_party.Gradient(mjtrain.RankContext(), env)
    algorithm.state_dict = lambda: state
    loop = TrainingLoop(mjtrain.RankContext(), env, algorithm, 2, "linear")
    with pytest.raises((TypeError, ValueError), match=message):
        loop.save(tmp_path / "model_1.pt")
    assert not (tmp_path / "model_1.pt").exists()
    algorithm.rank_state = lambda: {"generator": object()}
    with pytest.raises(TypeError, match=r"rank_state\(\)\['generator'\] is <object object at "):
        loop.save(tmp_path / "model_1.pt")


def test_a_learner_may_report_no_numbers() -> None:
    third_party: Any = importlib.import_module("third_party")
    env = mjtrain.make_env(TASK, num_envs=2)
    algorithm = third_party.Gradient(mjtrain.RankContext(), env)
    algorithm.update = algorithm.pop_means = dict
    (result,) = TrainingLoop(mjtrain.RankContext(), env, algorithm, 2, "linear").iterate(1)
    assert not any(name.startswith("loss/") for name in result.metrics)


@pytest.mark.parametrize(("protocol", "needed"), [(Algorithm, "load_weights"), (Policy, "to_onnx_module")])
def test_a_class_that_inherits_defines_what_has_no_default(protocol: Any, needed: str) -> None:
    """A default that does nothing would train, and not load what --load names."""
    methods = {name: lambda self: None for name in protocol.__abstractmethods__}
    made = type("Mine", (protocol,), methods)()
    assert getattr(made, "rank_state", dict)() == {}
    del methods[needed]
    with pytest.raises(TypeError, match=needed):
        type("Mine", (protocol,), methods)()
