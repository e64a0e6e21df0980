"""What Python programs call, as a program calls it."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

import mjtrain
from mjtrain import api
from mjtrain.api import make_train_config
from mjtrain.cli import play as play_command
from mjtrain.config import RewardTerm, from_plain, to_plain
from mjtrain.env.catalog import load_task
from mjtrain.launcher.base import find_other_line
from mjtrain.mdp import Env, reward
from mjtrain.runs import trained_run as kept_functions
from mjtrain.runtime.errors import RequestError
from mjtrain.training.request import resolve_training
from mjtrain.training.train_rank import TrainResult
from support.commands import run
from support.machine import patience

CPU = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
CARTPOLE = load_task("Cartpole-Balance").env


def test_play_returns_what_the_command_prints(cartpole_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = mjtrain.play(cartpole_run, episodes=5, seed=3, num_threads=1)
    play_command.main([str(cartpole_run), "--episodes", "5", "--seed", "3", "--num-threads", "1", "--json"])
    assert json.loads(capsys.readouterr().out) == table
    assert table["task"] == "Cartpole-Balance"
    assert table["iteration"] == 40
    assert table["episodes"] == 5
    assert table["reward"]["mean"] > 0
    for same in (mjtrain.Run(cartpole_run), str(cartpole_run)):
        assert mjtrain.play(same, episodes=5, seed=3, num_threads=1) == table
    named = mjtrain.play("cartpole-balance", log_root=cartpole_run.parents[1], episodes=5, seed=3, num_threads=1)
    assert named == table


def test_play_of_a_task_needs_no_run() -> None:
    task = replace(load_task("Cartpole-Balance"), name="pole")
    table = mjtrain.play(task, policy="zero", episodes=2, num_threads=1)
    assert (table["task"], table["checkpoint"], table["policy"]) == ("pole", None, "zero")
    with pytest.raises(RequestError, match="needs a checkpoint"):
        mjtrain.play(task)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"viewer": "web"}, "play\\(\\) has no option viewer; available: env, checkpoint,"),
        ({"gpu_ids": (0, 1)}, "--gpu-ids 0 1: play uses one GPU"),
        ({"checkpoint": "model_99.pt"}, "model_99.pt"),
        ({"episodes": 0}, "--episodes 0"),
        ({"episodes": "all"}, "^--episodes: is the string 'all'; give a whole number$"),
        ({"env": {}}, "^env: is a dict; give an EnvConfig, "),
        ({"env": replace(CARTPOLE, episode_length_s=-1.0)}, "^--env.episode-length-s -1: must be more than 0"),
        ({"env": replace(CARTPOLE, observations={"actor": {}})}, "^--env.observations.actor: is empty; give at least"),
    ],
)
def test_what_play_cannot_do_is_said(cartpole_run: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        mjtrain.play(cartpole_run, **options)


def test_a_policy_is_a_function_of_observations(cartpole_run: Path) -> None:
    policy = mjtrain.load_policy(cartpole_run, checkpoint="model_20.pt")
    assert (policy.task, policy.iteration, policy.inputs) == ("Cartpole-Balance", 20, {"actor": (4,)})
    env = mjtrain.make_env("Cartpole-Balance", num_envs=5, seed=1, num_threads=1)
    seen = env.observe()
    actions = policy(seen)
    assert actions.shape == (5, policy.num_actions) == (5, 1)
    assert torch.equal(policy(seen["actor"]), actions)
    policy(seen).mul_(0.5).requires_grad_()  # a tensor like those that a caller makes
    as_numpy = policy(seen["actor"].double().numpy())
    assert isinstance(as_numpy, np.ndarray)
    assert as_numpy.dtype == np.float32
    np.testing.assert_array_equal(as_numpy, actions.numpy())
    torch.testing.assert_close(policy(seen["actor"][2]), actions[2])
    policy.reset()
    policy.reset(np.zeros(5, dtype=bool))
    newest = mjtrain.load_policy("Cartpole-Balance", log_root=cartpole_run.parents[1])
    assert newest.iteration == 40
    assert not torch.equal(newest(seen), actions)
    with pytest.raises(RequestError, match="no group actor; the policy reads actor"):
        policy({"critic": seen["actor"]})
    with pytest.raises(RequestError, match=r"shape \(5, 3\); the policy reads \(num_envs, 4\), which is actor 4"):
        policy(seen["actor"][:, :3])
    lists: Any = seen["actor"].tolist()
    for given, name in ((lists, "observations"), ({"actor": lists}, "observations of group actor")):
        with pytest.raises(RequestError, match=rf"^{name}: is a list; give a tensor or an array of numpy$"):
            policy(given)


def test_a_policy_with_memory_takes_another_number_of_environments_after_a_reset(tmp_path: Path) -> None:
    small = {"class_name": "RNNModel", "rnn_hidden_dim": 8, "hidden_dims": (8,)}
    agent = load_task("Cartpole-Balance").agent
    agent = replace(agent, actor=replace(agent.actor, **small), num_steps_per_env=8)
    options: dict[str, Any] = {"agent": agent, "num_envs": 4, "logger": "none", "log_root": str(tmp_path)}
    policy = mjtrain.load_policy(mjtrain.train("Cartpole-Balance", launch=CPU, max_iterations=1, **options))
    seen = np.ones((3, 4), dtype=np.float32)
    first, second = policy(seen), policy(seen)
    assert np.abs(second - first).max() > 1e-6
    with pytest.raises(RequestError, match=r"of 1 environment, and the policy remembers those of 3; call its reset"):
        policy(seen[0])
    policy.reset([True, False, False])
    third = policy(seen)
    np.testing.assert_allclose(third[0], first[0], rtol=1e-6)
    assert np.abs(third[1] - first[1]).max() > 1e-6
    policy.reset()
    np.testing.assert_allclose(policy(seen[0]), first[0], rtol=1e-6)


def test_the_policy_balances_in_environments_that_were_made(cartpole_run: Path) -> None:
    policy = mjtrain.load_policy(cartpole_run)
    env = mjtrain.make_env(load_task("Cartpole-Balance"), num_envs=16, num_threads=1)
    failed = torch.zeros(16, dtype=torch.bool)
    for _ in range(200):
        _, rewards, terminated, _ = env.step(policy(env.observe()))
        assert rewards.shape == (16,)
        failed |= terminated
    assert failed.sum() <= 2


def test_environments_have_the_defaults_of_the_task() -> None:
    task = load_task("Cartpole-Balance")
    assert mjtrain.make_env(task, num_threads=1).num_envs == task.num_envs
    one, other = (mjtrain.make_env(task, num_envs=2, seed=seed, num_threads=1).observe()["actor"] for seed in (0, 1))
    assert not torch.equal(one, other)
    with pytest.raises(RequestError, match="num_envs 0: must be a whole number, at least 1"):
        mjtrain.make_env(task, num_envs=0)


def test_export_returns_its_files(cartpole_run: Path, tmp_path: Path) -> None:
    exported = mjtrain.export(cartpole_run, out=tmp_path / "out", observations=20)
    assert set(exported.files) == {"policy.onnx", "policy.pt", "policy.json", "model.mjb"}
    assert all(path.is_file() and path.parent == tmp_path / "out" for path in exported.files.values())
    assert max(exported.differences.values()) < 1e-5
    assert exported.checkpoint == cartpole_run / "model_40.pt"
    with pytest.raises(RequestError, match=r"^--out: is the number 3; give a folder$"):
        mjtrain.export(cartpole_run, out=3)  # pyright: ignore[reportArgumentType]


def test_a_run_is_opened_by_its_path(cartpole_run: Path) -> None:
    run = mjtrain.Run(cartpole_run)
    assert (run.task, run.path) == ("Cartpole-Balance", cartpole_run)
    assert list(run.checkpoints) == [10, 20, 30, 40]
    assert run.checkpoints[20] == cartpole_run / "model_20.pt"
    metrics = run.metrics
    assert metrics["iteration"].tolist() == list(range(1, 41))
    assert np.isnan(metrics["mean_reward"][0])
    assert metrics["mean_reward"][-1] > 1
    assert isinstance(run.config.env, mjtrain.EnvConfig)
    assert run.config.env.rewards.keys() == load_task("Cartpole-Balance").env.rewards.keys()
    assert run.config.agent.save_interval == 10
    assert run.config.launch["run"]["num_envs"] == 256
    for place in (cartpole_run.parent, 3):
        with pytest.raises(RequestError, match="is not a run directory"):
            mjtrain.Run(place)  # pyright: ignore[reportArgumentType]


def test_what_is_not_a_run_directory_is_named_in_short(tmp_path: Path) -> None:
    result: Any = TrainResult(run_dir=tmp_path, checkpoint=tmp_path / "model_1.pt", metrics={})
    with pytest.raises(RequestError, match=r"^a TrainResult: is not a run directory"):
        mjtrain.Run(result)


PROGRAM = """
import dataclasses, shutil, sys
import torch
import mjtrain
from mjtrain.env.catalog import load_task
from mjtrain.mdp import reward

def upright(env, *, sensor):
    return env.sensor(sensor)[:, 2]

def make(bonus):
    task = load_task("Cartpole-Balance")
    rewards = {
        "upright": reward(upright, 1.0, sensor="pole_axis"),
        "bonus": reward(lambda env: bonus * torch.ones(env.num_envs), 1.0),
        "none": reward(lambda env: torch.zeros(env.num_envs), 1.0),
    }
    return dataclasses.replace(task, env=dataclasses.replace(task.env, rewards=rewards))

runs = [
    mjtrain.train(make(bonus), num_envs=4, max_iterations=1, logger="none", log_root=sys.argv[1],
                  launch=mjtrain.LaunchConfig(gpu_ids=None, num_threads=1))
    for bonus in (1.0, 3.0)
]
copy = shutil.copytree(runs[1].run_dir, sys.argv[1] + "/copy")
for place in (runs[0], runs[1], copy):
    table = mjtrain.play(place, episodes=2, num_threads=1)
    per_second = table["reward_terms"]["bonus"]["mean"] / (table["length"]["mean"] * table["step_dt_s"])
    print("bonus", round(per_second, 3), table["reward_terms"]["none"]["mean"])
print(sorted(mjtrain.export(copy, observations=10).files))
"""


def test_functions_of_a_script_are_played_and_exported_where_they_were_trained(tmp_path: Path) -> None:
    """Two runs with closures of the same name, and a copy of one elsewhere."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), str(tmp_path / "logs")]
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr.count("env.rewards.upright.func is __main__:upright and 2 more, which other processes cannot") == 2
    )
    told = [line for line in done.stdout.splitlines() if not line.startswith("iteration")]
    assert told == [
        *("bonus 1.0 0.0", "bonus 3.0 0.0", "bonus 3.0 0.0"),
        "['model.mjb', 'policy.json', 'policy.onnx', 'policy.pt']",
    ]
    with pytest.raises(RequestError, match=r"cannot be imported .*; only the process that trained the run has it"):
        mjtrain.play(tmp_path / "logs" / "copy")


CLOSURES = """
from dataclasses import replace
import torch
from mjtrain.env.catalog import load_task
from mjtrain.mdp import reward

def make_task():
    task = load_task("Cartpole-Balance")
    bonus = 2.0
    rewards = {"bonus": reward(lambda env: bonus * torch.ones(env.num_envs), 1.0)}
    return replace(task, env=replace(task.env, rewards=rewards))
"""


def test_closures_of_a_task_file_are_there_whenever_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, logs = tmp_path / "pole.py", tmp_path / "logs"
    file.write_text(CLOSURES)
    run = mjtrain.train(str(file), num_envs=4, max_iterations=1, logger="none", log_root=str(logs), launch=CPU)
    assert "cannot import" not in capfd.readouterr().err
    assert run.run_dir.parent == logs / "pole_make_task"
    monkeypatch.setattr(kept_functions, "_kept", {})  # as in another process
    for place in (str(file), run, mjtrain.Run(run.run_dir)):
        table = mjtrain.play(place, log_root=str(logs), episodes=2, num_threads=1)
        assert table["reward_terms"]["bonus"]["mean"] > 0
    moved = tmp_path / "moved" / "pole.py"
    moved.parent.mkdir()
    file.rename(moved)
    assert mjtrain.play(str(moved), log_root=str(logs), episodes=2, num_threads=1)["checkpoint"]
    with pytest.raises(
        RequestError, match=r"no such file .*pole\.py; if the file was moved, give its path as the task"
    ):
        mjtrain.play(run)


def test_names_that_users_call_stay_functions() -> None:
    code = "import mjtrain, mjtrain.evaluation.playing.evaluate, mjtrain.launcher\n"
    code += "import mjtrain.evaluation.export.export_policy\n"
    code += "assert all(map(callable, (mjtrain.play, mjtrain.export, mjtrain.launch, mjtrain.train, mjtrain.make_env)))"
    subprocess.run([sys.executable, "-c", code], timeout=patience(60), check=True)


def bonus(env: Env) -> torch.Tensor:
    return torch.ones(env.num_envs)


def test_functions_of_modules_need_no_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    task = load_task("Cartpole-Balance")
    task = replace(task, env=replace(task.env, rewards={"bonus": reward(bonus, 1.0)}), name="pole")
    run = mjtrain.train(task, num_envs=4, max_iterations=1, logger="none", log_root=str(tmp_path), launch=CPU)
    assert "cannot import" not in capfd.readouterr().err
    assert run.run_dir.parent == tmp_path / "pole"
    assert mjtrain.Run(run.run_dir).task == "pole"
    assert mjtrain.play(run, episodes=2, num_threads=1)["task"] == "pole"


def scaled(term: Callable[[Env], torch.Tensor], factor: float) -> Callable[[Env], torch.Tensor]:
    @wraps(term)
    def call(env: Env) -> torch.Tensor:
        return factor * term(env)

    return call


@dataclass(frozen=True)
class Bonus:
    amount: float

    def reward(self, env: Env) -> torch.Tensor:
        return torch.full((env.num_envs,), self.amount)


@pytest.mark.parametrize("term", [scaled(bonus, 3.0), Bonus(3.0).reward])
def test_a_run_is_played_with_its_own_functions_where_others_have_their_names(
    term: Callable[[Env], torch.Tensor], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    task = load_task("Cartpole-Balance")
    task = replace(task, env=replace(task.env, rewards={"bonus": reward(term, 1.0)}))
    run = mjtrain.train(task, num_envs=4, max_iterations=1, logger="none", log_root=str(tmp_path), launch=CPU)
    assert "which other processes cannot import" in capfd.readouterr().err
    table = mjtrain.play(run, episodes=2, num_threads=1)
    assert table["reward"]["mean"] == pytest.approx(3.0 * table["length"]["mean"] * table["step_dt_s"], rel=1e-3)


def test_another_process_does_not_take_the_function_that_a_wrapper_was_named_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = to_plain(reward(scaled(bonus, 3.0), 1.0))
    assert plain["func"] == f"{__name__}:scaled.<locals>.call"
    with pytest.raises(ValueError, match="cannot be imported"):
        from_plain(RewardTerm, plain)
    doubled = scaled(bonus, 2.0)  # found under the name of the function, as one that is decorated
    monkeypatch.setitem(globals(), "bonus", doubled)
    assert to_plain(reward(doubled, 1.0))["func"] == f"{__name__}:bonus"
    assert to_plain(reward(scaled(doubled, 3.0), 1.0))["func"] == plain["func"]
    assert to_plain(reward(torch.no_grad()(doubled), 1.0))["func"] == f"{__name__}:bonus"
    own = scaled(bonus, 3.0)
    for recorded in (plain["func"], f"{__name__}:bonus"):  # the latter by runs of before
        assert from_plain(RewardTerm, {**plain, "func": recorded}, functions={"func": own}).func is own


@pytest.mark.parametrize(("seed", "message"), [(-1, "a whole number, at least 0"), (2**63, f"at most {2**63 - 1}")])
def test_a_seed_beyond_the_range_is_refused(seed: int, message: str) -> None:
    with pytest.raises(RequestError, match=rf"^seed {seed}: must be {message}$"):
        mjtrain.make_env("Cartpole-Balance", num_envs=1, seed=seed)


def test_paths_numbers_of_numpy_and_devices_of_torch_are_taken(tmp_path: Path) -> None:
    agent = replace(load_task("Cartpole-Balance").agent, num_steps_per_env=np.int64(8))
    options: dict[str, Any] = {"agent": agent, "logger": "none", "log_root": tmp_path, "launch": CPU}
    first = mjtrain.train("Cartpole-Balance", num_envs=np.int64(3), max_iterations=1, **options)
    resumed = mjtrain.train("Cartpole-Balance", num_envs=3, max_iterations=np.int32(2), resume=first, **options)
    assert resumed.run_dir == first.run_dir
    opened = mjtrain.Run(first.run_dir)
    mjtrain.train("Cartpole-Balance", num_envs=3, max_iterations=3, resume=opened, **options)
    loaded = mjtrain.train("Cartpole-Balance", num_envs=3, max_iterations=1, load=opened, **options)
    assert loaded.run_dir != first.run_dir
    with pytest.raises(RequestError, match="--log-root: is "):
        mjtrain.train("Cartpole-Balance", **{**options, "log_root": first})
    np.testing.assert_array_equal(opened.metrics["env_steps_total"], [24, 48, 72])
    seven: Any = IntEnum("Seeds", {"SEVEN": 7}).SEVEN  # pyright: ignore[reportAttributeAccessIssue]
    numbers: dict[str, Any] = {"episodes": np.int64(2), "num_envs": np.int32(2), "seed": seven}
    played = mjtrain.play(resumed, num_threads=1, **numbers)
    json.dumps(played)
    assert played == mjtrain.play(resumed, num_threads=1, episodes=2, num_envs=2, seed=7)
    cpu: Any = torch.device("cpu")
    env = mjtrain.make_env("Cartpole-Balance", num_envs=numbers["num_envs"], seed=numbers["seed"], device=cpu)
    assert torch.equal(
        env.observe()["actor"], mjtrain.make_env("Cartpole-Balance", num_envs=2, seed=7).observe()["actor"]
    )
    assert mjtrain.load_policy(resumed, device=cpu)(env.observe()).shape == (2, 1)
    for option, value in {"num_envs": Decimal(4), "video_length_s": Fraction(1, 2)}.items():
        with pytest.raises(RequestError, match=rf"^--{option.replace('_', '-')}: is {type(value).__name__}.*; give a "):
            mjtrain.train("Cartpole-Balance", **{**options, option: value})
    unknown: Any = ("gpu", torch.device("cuda", 4096), None)
    for device in unknown:
        with pytest.raises(RequestError, match=f"^device {device}: "):
            mjtrain.load_policy(resumed, device=device)
    with pytest.raises(RequestError, match=r'^device meta: is not supported; give "cpu", or an NVIDIA GPU such as '):
        mjtrain.load_policy(resumed, device="meta")
    with pytest.raises(RequestError, match=r"^seed None: must be a whole number, at least 0$"):
        mjtrain.make_vec("Cartpole-Balance", 1, seed=None)  # pyright: ignore[reportArgumentType]


def test_a_training_leaves_this_process_as_it_was(tmp_path: Path) -> None:
    """Random numbers, threads and MuJoCo's messages, as of a notebook that draws settings and trains with each."""

    def look() -> tuple[Any, ...]:
        state: Any = np.random.get_state()
        is_shown = mujoco.MjLogConfig.get().logto_console
        return random.getstate(), state[1].tolist(), torch.get_rng_state().tolist(), torch.get_num_threads(), is_shown

    before = look()
    mjtrain.train("Cartpole-Balance", num_envs=4, max_iterations=1, log_root=str(tmp_path), logger="none", launch=CPU)
    assert look() == before


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(lambda: default_dtype(torch.float64), id="float64"),
        pytest.param(torch.no_grad, id="no_grad"),
        pytest.param(torch.inference_mode, id="inference_mode"),
        pytest.param(lambda: torch.device("meta"), id="device"),
    ],
)
def test_settings_of_torch_change_no_result(setting: Callable[[], Any], tmp_path: Path) -> None:
    def use(log_root: Path) -> tuple[float, float, list[float]]:
        options: dict[str, Any] = {"num_envs": 4, "max_iterations": 1, "logger": "none", "log_root": str(log_root)}
        run = mjtrain.train("Cartpole-Balance", launch=CPU, **options)
        policy, env = mjtrain.load_policy(run), mjtrain.make_env("Cartpole-Balance", num_envs=2, num_threads=1)
        env.reset(torch.ones(2, dtype=torch.bool, device="cpu"))
        rewards = env.step(policy(env.observe()))[1]
        assert rewards.dtype == torch.float32
        played = mjtrain.play(run, episodes=4, num_threads=1)
        return run.metrics["loss/value"], played["reward"]["mean"], rewards.tolist()

    usual = use(tmp_path / "usual")
    with setting():
        before = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
        assert use(tmp_path / "other") == usual
        assert before == (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled())


def test_worlds_that_were_made_in_inference_mode_are_used_outside() -> None:
    with torch.inference_mode():
        env = mjtrain.make_env("Cartpole-Balance", num_envs=2, num_threads=1)
        vec = mjtrain.make_vec("Cartpole-Balance", 2, num_threads=1)
        vec.reset(seed=1)
    env.step(torch.zeros(2, 1))
    env.reset(torch.ones(2, dtype=torch.bool))
    vec.step(np.zeros((2, 1), dtype=np.float32))
    vec.close()


def test_loading_a_policy_leaves_random_numbers_as_they_were(cartpole_run: Path) -> None:
    before = torch.get_rng_state()
    mjtrain.load_policy(cartpole_run)
    assert torch.equal(torch.get_rng_state(), before)


def test_arrays_that_are_read_backwards_are_taken(cartpole_run: Path) -> None:
    policy, observed = mjtrain.load_policy(cartpole_run), np.random.default_rng(0).normal(size=(3, 4))
    for place in (observed[::-1], {"actor": observed[::-1]}):
        assert np.array_equal(policy(place), policy(observed)[::-1])
    worlds, flipped = mjtrain.make_vec("Cartpole-Balance", num_envs=3, num_threads=1), np.zeros((3, 1))[::-1]
    worlds.reset(seed=0)
    assert np.isfinite(worlds.step(flipped)[1]).all()
    worlds.close()


def test_a_teacher_is_trained_with_the_logger_of_its_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"wandb_project": "p", "wandb_entity": "e", "wandb_group": "g", "wandb_tags": ("t",)}
    wandb = {"wandb_mode": "offline", **named}
    options = {"num_envs": 8, "logger": "wandb", "log_root": str(tmp_path), **wandb}
    request = resolve_training(make_train_config("Arm-Lift-Cube-Vision", **options), CPU)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(api, "train", lambda task, **given: asked.update(task=task, **given))
    api._train_teacher("Arm-Lift-Cube", request)
    assert {name: asked[name] for name in wandb} == wandb
    assert (asked["task"], asked["logger"], asked["resume"]) == ("Arm-Lift-Cube", "wandb", "auto")
    assert "wandb_name" not in asked


def test_a_task_is_a_name_a_path_or_a_config() -> None:
    with pytest.raises(RequestError, match=r"^task: is None; give the name of a task, the path of a factory or a "):
        mjtrain.make_env(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RequestError, match=r"no such file nowhere\.py"):
        mjtrain.make_env(Path("nowhere.py:make"))  # pyright: ignore[reportArgumentType]
    task: Any = load_task("Cartpole-Balance")
    for call in (mjtrain.export, mjtrain.load_policy):
        with pytest.raises(RequestError, match=r"^run: is a TaskConfig; give a run directory, a Run, "):
            call(task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": {"decimation": 2}}, "env: is a dict; give an EnvConfig, a GymnasiumConfig, a VecEnvConfig or an Mjl"),
        ({"env": None}, "env: is None; give an EnvConfig, "),
        ({"env": mjtrain.EnvConfig}, "env: is <class 'mjtrain.config.env.EnvConfig'>; give an EnvConfig, "),
        ({"agent": {}}, "agent: is a dict; give an AgentConfig"),
        ({"launch": {"gpu_ids": None}}, "launch: is a dict; give a LaunchConfig"),
        ({"launch": {}}, "launch: is a dict; give a LaunchConfig"),
        ({"motion": 5}, "--motion: is the number 5; give a string"),
        ({"without": "rewards.alive"}, r"--without: is the string 'rewards.alive'; give a tuple, such as \(.*,\)"),
    ],
)
def test_what_is_not_of_its_type_is_said_before_it_is_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}"):
        mjtrain.train("Cartpole-Balance", **options)


def test_a_task_with_parts_of_other_types_is_refused(tmp_path: Path) -> None:
    task = load_task("Cartpole-Balance")
    for field, value, message in (
        ("env", {}, "env: is a dict; give an EnvConfig, "),
        ("name", 5, "TaskConfig.name 5: must be a file name"),
        ("num_envs_gpu", "many", "num_envs_gpu of the task: is the string 'many'; give a whole number"),
    ):
        with pytest.raises(RequestError, match=f"^{message}"):
            mjtrain.train(replace(task, **{field: value}), max_iterations=1, log_root=tmp_path, launch=CPU)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RequestError, match=r"^env: is a dict; "):
        mjtrain.make_vec(replace(task, env={}))
    with pytest.raises(RequestError, match=r"^env: is a dict; "):
        mjtrain.play(replace(task, env={}), policy="zero")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("<compiler ", '<compiler settotalmass="3" ', "settotalmass"),
        (
            "</worldbody>",
            '<flexcomp name="soft" type="grid" count="2 2 2" spacing="0.1 0.1 0.1" mass="0.1" dim="3" pos="0 0 9"/>'
            "</worldbody>",
            "flex 'soft' is not rigid",
        ),
    ],
)
def test_a_warning_about_a_model_is_told_once(before: str, after: str, words: str, tmp_path: Path) -> None:
    task = load_task("Cartpole-Balance")
    model = mujoco.MjSpec.from_file(task.env.robot.file)
    robot = tmp_path / "robot.xml"
    robot.write_text(model.to_xml().replace(before, after))
    env = replace(task.env, robot=replace(task.env.robot, file=str(robot)))
    with pytest.warns(UserWarning, match=words) as told:
        mjtrain.train(replace(task, env=env), num_envs=4, max_iterations=1, log_root=tmp_path, launch=CPU)
    assert len(told) == 1, [str(warning.message) for warning in told]


def test_hosts_of_a_job_may_differ_in_what_rank_0_decides(tmp_path: Path) -> None:
    """In where it puts the run and reads weights, and not in what is learned."""
    request = resolve_training(make_train_config("Cartpole-Balance", num_envs=4, log_root=str(tmp_path)), CPU)

    def describe(**changes: Any) -> str:
        return api._describe_for_others(
            replace(request, config=replace(request.config, run=replace(request.config.run, **changes)))
        )

    places = {"log_root": "/b", "run_name": "b", "logger": "none", "load": "/b/model_4.pt", "wandb_name": "b"}
    assert describe(**places) == describe()
    other = describe(stop_when=("mean_reward > 1",))
    assert find_other_line(other, describe(), "rank 0") is not None


def test_hosts_of_a_job_have_devices_of_one_kind() -> None:
    request = resolve_training(make_train_config("Cartpole-Balance", num_envs=4), CPU)
    rank, *_ = request.plan.ranks
    plan = replace(request.plan, ranks=(replace(rank, device="cuda:1"),), backend="nccl")
    theirs, mine = (api._describe_for_others(each) for each in (request, replace(request, plan=plan)))
    difference = find_other_line(theirs, mine, "rank 0")
    assert "ranks on the CPU, and --backend None" in str(difference)
    assert "ranks on GPUs, and --backend nccl" in str(difference)


def test_hosts_that_resume_a_run_have_the_same_robot(tmp_path: Path) -> None:
    """With what its file includes; the run's copy counts where the file is missing."""
    task = load_task("Cartpole-Balance")
    content = Path(task.env.robot.file).read_text()

    def change(folder: str, text: str = content) -> mjtrain.TaskConfig:
        robot, part = tmp_path / folder / "robot.xml", tmp_path / folder / "part.xml"
        robot.parent.mkdir()
        robot.write_text('<mujoco><include file="part.xml"/></mujoco>')
        part.write_text(text)
        return replace(task, env=replace(task.env, robot=replace(task.env.robot, file=str(robot))))

    def describe(task: mjtrain.TaskConfig, resume: str | None = None) -> str:
        config = make_train_config(task, num_envs=4, max_iterations=9, log_root=str(tmp_path), resume=resume)
        return api._describe_for_others(resolve_training(config, CPU))

    first, same, other, missing = (
        change("a"),
        change("b"),
        change("c", content.replace('mass="1"', 'mass="2"', 1)),
        change("d"),
    )
    run = str(mjtrain.train(first, num_envs=4, max_iterations=1, log_root=tmp_path, launch=CPU).run_dir)
    shutil.rmtree(tmp_path / "d")
    assert describe(same, run) == describe(first, run) == describe(first) == describe(missing, run)
    difference = find_other_line(describe(other, run), describe(first, run), "node 0")
    assert "a robot whose files have the digest" in str(difference)


def test_what_only_one_host_lists_is_named() -> None:
    assert find_other_line("a", "a", "node 0") is None
    advice = "start all of them with the same command, variables and files"
    assert find_other_line("a\nb", "a", "node 0") == f"asks for b and node 0 for nothing: {advice}"
    assert find_other_line('"a": 3,', '"a": 4,', "rank 0") == f'asks for "a": 3 and rank 0 for "a": 4: {advice}'


def test_launch_says_what_it_takes() -> None:
    function: Any = 5
    options: Any = {}
    with pytest.raises(RequestError, match=r"^launch: 5 is not a function; give one that takes a RankContext$"):
        mjtrain.launch(function)
    with pytest.raises(RequestError, match=r"^launch: is a dict; give a LaunchConfig$"):
        mjtrain.launch(print, launch=options)
    with pytest.raises(RequestError, match=r"^--hostnames: is the string 'a'; give a tuple"):
        mjtrain.launch(print, launch=mjtrain.LaunchConfig(hostnames="a"))  # pyright: ignore[reportArgumentType]


def test_an_index_of_the_cpu_is_dropped() -> None:
    assert str(mjtrain.make_env("Cartpole-Balance", num_envs=1, device="cpu:0").device) == "cpu"
    with pytest.raises(RequestError, match=r"^--observations 0\.5: must be a whole number, at least 1$"):
        mjtrain.export("Cartpole-Balance", observations=0.5)  # pyright: ignore[reportArgumentType]
