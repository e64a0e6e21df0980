"""The configuration of a W&B sweep: W&B's own code makes the command that an agent starts, and that one trains."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from wandb.sdk.launch.sweeps import utils

from mjtrain.cli.parsing import expand_agent_flags
from mjtrain.cli.sweep import main
from support.commands import run

SEARCH = """
agent.algorithm.learning-rate: log 1e-4 1e-2
agent.algorithm.num-learning-epochs: int 1 3
agent.algorithm.entropy-coef: uniform 0 0.01
agent.actor.hidden-dims,agent.critic.hidden-dims: choice "16 16" "32"
agent.algorithm.schedule: choice adaptive fixed
agent.algorithm.normalize-advantage-per-mini-batch: flag
"""
CHOSEN = (0.003, 2, 0.001, "16 16", "fixed", True)


def test_an_agent_trains_with_what_w_and_b_suggests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(SEARCH)
    options = ["--space", "space.yaml", "--trials", "9", "--wandb", "sweep.yaml"]
    main(["Cartpole-Balance", *options, "--", "--num-envs", "16", "--max-iterations", "18"])
    assert capsys.readouterr().out == "wrote sweep.yaml; continue with: wandb sweep sweep.yaml\n"
    config = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    assert (config["method"], config["run_cap"]) == ("bayes", 9)
    assert config["metric"] == {"name": "eval/return", "goal": "maximize"}
    assert config["early_terminate"] == {"type": "hyperband", "min_iter": 4, "eta": 4}
    assert list(config["parameters"].values()) == [
        {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-2},
        {"distribution": "int_uniform", "min": 1, "max": 3},
        {"distribution": "uniform", "min": 0.0, "max": 0.01},
        {"values": ["16 16", "32"]},
        {"values": ["adaptive", "fixed"]},
        {"values": [False, True]},
    ]

    suggested = {name: {"value": value} for name, value in zip(config["parameters"], CHOSEN, strict=True)}
    words = utils.create_sweep_command_args({"args": suggested}) | {
        "env": ["/usr/bin/env"],
        "program": [str(Path(sys.executable).parent / config["program"])],
    }
    command = []
    for word in utils.create_sweep_command(config["command"]):
        command += words[word[2:-1]] if word.startswith("${") else [word]
    agent = {"WANDB_SWEEP_ID": "s1", "WANDB_RUN_ID": "r1", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    short = ["--max-iterations", "1", "--eval-interval", "1", "--eval-episodes", "1", "--gpu-ids", "None"]
    done = run([*command, *short], environ=agent)
    assert done.returncode == 0, done.stderr
    (run_dir,) = tmp_path.glob("logs/*/*")
    params = yaml.safe_load((run_dir / "params" / "agent.yaml").read_text())
    chosen = [params["algorithm"][name] for name in ("learning_rate", "num_learning_epochs", "entropy_coef")]
    assert chosen == [0.003, 2, 0.001]
    assert params["actor"]["hidden_dims"] == params["critic"]["hidden_dims"] == [16, 16]
    assert params["algorithm"]["schedule"] == "fixed"
    assert params["algorithm"]["normalize_advantage_per_mini_batch"] is True
    assert "eval/return" in json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[0])
    assert (run_dir / "wandb_run_id").read_text() == "r1", "W&B would not know whose result it is"

    with pytest.raises(SystemExit) as stop:
        main(["Cartpole-Balance", *options, "--", "--num-envs", "16", "--max-iterations", "18"])
    assert stop.value.code == 2
    assert "--wandb sweep.yaml: already exists" in capsys.readouterr().err


def test_without_an_agent_words_stay_as_they_are() -> None:
    words = ["--run-name=two words", "--a,b=1", "--c", "d e"]
    assert expand_agent_flags(words, {}) == words
    assert expand_agent_flags(words, {"WANDB_SWEEP_ID": "s"}) == [
        *["--run-name", "two", "words"],
        *["--a", "1", "--b", "1", "--c", "d e"],
    ]
