"""Tasks of mjlab, where it is installed: docs/other-environments.md says how, as it needs an older MuJoCo."""

import importlib.util
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import mjtrain
from mjtrain.cli.train import main
from mjtrain.config import AnyEnvConfig, MjlabConfig, PpoConfig, from_plain, to_plain
from mjtrain.env.catalog import folder_name, load_task
from mjtrain.env.external.mjlab_task import to_agent
from mjtrain.runtime.errors import RequestError

HERE = importlib.util.find_spec("mjlab") is not None
needs_mjlab = pytest.mark.skipif(not HERE, reason="mjlab is not installed; it needs an environment of its own")
TASK = "mjlab:Mjlab-Cartpole-Balance"

NETWORK = {
    "hidden_dims": (64, 32), "activation": "tanh", "obs_normalization": True, "cnn_cfg": None, "rnn_type": None,
    "distribution_cfg": None, "rnn_hidden_dim": 256, "rnn_num_layers": 1, "class_name": "MLPModel",
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "seed": 42, "num_steps_per_env": 32, "max_iterations": 500, "save_interval": 70, "class_name": "OnPolicyRunner",
    "obs_groups": {"actor": ("actor", "camera"), "critic": ("critic",)}, "logger": "wandb", "clip_actions": None,
    "actor": NETWORK | {"distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.7, "std_type": "log"}},
    "critic": NETWORK | {"hidden_dims": (8,)},
    "algorithm": {
        "num_learning_epochs": 3, "num_mini_batches": 2, "learning_rate": 0.002, "schedule": "fixed", "gamma": 0.9,
        "lam": 0.8, "entropy_coef": 0.01, "desired_kl": 0.02, "max_grad_norm": 0.5, "value_loss_coef": 0.6,
        "use_clipped_value_loss": False, "clip_param": 0.3, "normalize_advantage_per_mini_batch": True,
        "optimizer": "adamw", "share_cnn_encoders": False, "class_name": "PPO",
    },
}  # fmt: skip
"""What `dataclasses.asdict` makes of an `RslRlOnPolicyRunnerCfg` of mjlab 1.6, without what is about its logs."""


def test_every_setting_of_mjlabs_agent_counts() -> None:
    agent = to_agent(SETTINGS, TASK)
    given = {name: deepcopy(SETTINGS[name]) for name in ("num_steps_per_env", "save_interval", "obs_groups")}
    assert {name: getattr(agent, name) for name in given} == given
    for name in ("actor", "critic"):
        ours, theirs = to_plain(getattr(agent, name)), to_plain(SETTINGS[name])
        assert {key: ours[key] for key, value in theirs.items() if value is not None} == {
            key: value for key, value in theirs.items() if value is not None
        }
    assert agent.critic.distribution_cfg is None
    assert isinstance(agent.algorithm, PpoConfig)
    algorithm = {**SETTINGS["algorithm"], "class_name": "mjtrain.learning.rsl_rl.ppo:Ppo"}
    assert {name: getattr(agent.algorithm, name) for name in algorithm} == algorithm


def test_a_setting_without_a_counterpart_is_one_line() -> None:
    softmax = SETTINGS | {"actor": SETTINGS["actor"] | {"cnn_cfg": {"spatial_softmax": True}}}
    with pytest.raises(RequestError, match=r"task mjlab:.*: actor.cnn_cfg has spatial_softmax, .* agent of yours"):
        to_agent(softmax, TASK)


def test_the_config_is_recorded_and_read_again() -> None:
    config = MjlabConfig(task="Mjlab-Cartpole-Balance", kwargs={"episode_length_s": 2.0})
    assert from_plain(AnyEnvConfig, to_plain(config)) == config
    assert folder_name(TASK) == "mjlab_mjlab_cartpole_balance"


def refuse(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Make a request that is wrong; return its one line."""
    with pytest.raises(SystemExit) as stop:
        main([*words, "--gpu-ids", "None", "--logger", "none", "--log-root", str(folder / "logs")])
    assert stop.value.code == 2
    assert not (folder / "logs").exists()
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.skipif(HERE, reason="mjlab is installed")
def test_without_mjlab_it_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refuse([TASK], tmp_path, capsys)
    assert line.startswith("train: task mjlab:Mjlab-Cartpole-Balance: mjlab is not installed; it needs an older MuJoCo")
    assert line.endswith("see docs/other-environments.md")


@needs_mjlab
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("mjlab:Mjlab-Cartpole-Balanse", "mjlab has no such task; did you mean Mjlab-Cartpole-Balance"),
        (f"{TASK} --env.kwargs.episode-length 3", "ManagerBasedRlEnvCfg has no episode_length; it has decimation, "),
        (f"{TASK} --env.kwargs.scene.num 3", "--env.kwargs.scene.num: SceneCfg has no num; it has num_envs, "),
        (f"{TASK} --env.kwargs.decimation much", "--env.kwargs.decimation much: give a int, as "),
        (f"{TASK} --engine native", "--engine native: mjlab:Mjlab-Cartpole-Balance brings its own"),
    ],
)
def test_a_mistake_is_one_line(words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refuse(words.split(), tmp_path, capsys)


@needs_mjlab
def test_tasks_of_the_registry_bring_their_agents() -> None:
    from mjlab.tasks.registry import list_tasks  # pyright: ignore[reportMissingImports]

    refused = []
    for name in list_tasks():
        try:
            task = load_task(f"mjlab:{name}")
        except RequestError as error:
            refused.append(f"{name}: {error}")
            continue
        assert task.env == MjlabConfig(task=name)
        assert task.max_iterations >= 500
    assert len(refused) <= 3
    assert all("spatial_softmax" in line for line in refused), refused


@needs_mjlab
@pytest.mark.process
@pytest.mark.parametrize(
    "num_workers",
    [
        pytest.param(1, marks=pytest.mark.supports("training", task="mjlab:ID")),
        pytest.param(2, marks=pytest.mark.supports("training", task="mjlab:ID", start="several ranks on this host")),
    ],
)
@pytest.mark.supports("export", task="mjlab:ID")
def test_it_is_trained_resumed_played_and_exported(num_workers: int, tmp_path: Path) -> None:
    launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1, num_workers=num_workers)
    task = load_task(TASK)
    env = MjlabConfig(task="Mjlab-Cartpole-Balance", kwargs={"episode_length_s": 0.3})
    options: dict[str, Any] = {"num_envs": 4, "logger": "none", "log_root": str(tmp_path), "launch": launch}
    mjtrain.train(TASK, env=env, max_iterations=2, **options)
    result = mjtrain.train(TASK, env=env, max_iterations=3, resume=True, **options)
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "event" not in row]
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert rows[-1]["world_size"] == num_workers
    assert rows[-1]["mean_episode_length"] == pytest.approx(6)  # of 0.05 s
    assert rows[-1]["termination/truncated"] == 1.0
    assert rows[-1]["env_steps_total"] == 3 * 4 * num_workers * task.agent.num_steps_per_env
    played = mjtrain.play(result, episodes=2, num_threads=1, gpu_ids=None)
    assert (played["iteration"], played["length"]["mean"], played["engine"]) == (3, 6, "its own")
    assert max(mjtrain.export(result, observations=20).differences.values()) < 1e-5
