"""What a user can get wrong about a sweep is one line, with nothing written or started; a sweep of W&B works."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from wandb.sdk.launch.sweeps import utils

from mjtrain.cli.sweep import main
from support.commands import run

RATE = "--param agent.algorithm.learning-rate log 1e-4 1e-2"
SMALL = "-- --num-envs 8 --max-iterations 2"

CASES = [
    (RATE, "the task comes first, as in sweep TASK --param"),
    (f"Cartpole-Balence {RATE}", "unknown task Cartpole-Balence; did you mean Cartpole-Balance"),
    ("Cartpole-Balance", "--param: nothing to search; give at least one, as in --param agent.algorithm.learning-rate"),
    ("Cartpole-Balance --param kl log 1 2 --trails 3", "unknown flag --trails 3; did you mean --trials?"),
    (f"Cartpole-Balance {RATE} --trials 0", "--trials 0: must be at least 1"),
    (f"Cartpole-Balance {RATE} --sampler cma", "--sampler cma: choose from tpe, random, grid"),
    (f"Cartpole-Balance {RATE} --sampler grid", "--sampler grid: agent.algorithm.learning-rate log has no finite"),
    (
        "Cartpole-Balance --param agent.num-steps-per-env int 1 1000000000000 --sampler grid",
        "--sampler grid: 1,000,000,000,000 combinations; give fewer values, or --sampler random",
    ),
    (f"Cartpole-Balance {RATE} --seeds-per-trial 0", "--seeds-per-trial 0: must be at least 1"),
    (f"Cartpole-Balance {RATE} --stall-timeout-s 0", "--stall-timeout-s 0: must be more than 0"),
    (f"Cartpole-Balance {RATE} --stall-timeout-s nan", "--stall-timeout-s nan: must be more than 0"),
    (f"Cartpole-Balance {RATE} --start-timeout-s 0", "--start-timeout-s 0: must be more than 0"),
    (f"Cartpole-Balance {RATE} --jobs 0", "--jobs 0: must be at least 1"),
    (f"Cartpole-Balance {RATE} --cores-per-trial 0", "--cores-per-trial 0: must be at least 1"),
    (f"Cartpole-Balance {RATE} --gpus-per-trial -1", "--gpus-per-trial -1: must be at least 0"),
    (f"Cartpole-Balance {RATE} --gpus-per-trial 1", "--gpus-per-trial 1: no GPU is visible here"),
    (f"Cartpole-Balance {RATE} --cores-per-trial 5000", "--cores-per-trial 5000: "),
    (f"Cartpole-Balance {RATE} --space nowhere.yaml", "--space nowhere.yaml: cannot be read"),
    (f"Cartpole-Balance {RATE} --sweep-dir /proc/nowhere {SMALL}", "--sweep-dir /proc/nowhere: cannot be written"),
    (f"Cartpole-Balance {RATE} -- --log-root here", "-- --log-root: is decided by --sweep-dir"),
    (f"Cartpole-Balance {RATE} -- --gpu-ids 0", "-- --gpu-ids: is decided by --gpus-per-trial"),
    (f"Cartpole-Balance {RATE} -- --motion https://host/a.npz?token=word", "-- https://host/a.npz: sweep.json records"),
    (f"Cartpole-Balance {RATE} -- --num-env 8", "unknown flag --num-env 8; did you mean --num-envs"),
    (
        f"Cartpole-Balance {RATE} -- --agent.algorithm.learning_rate 1e-3",
        "--param agent.algorithm.learning-rate: is a fixed flag after -- too; leave out one of them",
    ),
    (f"Cartpole-Balance {RATE} --wandb w.yaml --jobs 2 {SMALL}", "--jobs: has no meaning with --wandb"),
    (f"Cartpole-Balance {RATE} --wandb w.yaml --start-timeout-s 9 {SMALL}", "--start-timeout-s: has no meaning with"),
    (f"Cartpole-Balance {RATE} --wandb w.yaml --stall-timeout-s 9 {SMALL}", "--stall-timeout-s: has no meaning with"),
    (f"Cartpole-Balance {RATE} --wandb w.yaml --gpus-per-trial 0 {SMALL}", "--gpus-per-trial: has no meaning with"),
    (
        f"Cartpole-Balance {RATE} --wandb w.yaml --seeds-per-trial 2 {SMALL}",
        "--seeds-per-trial 2: a run of W&B's agent",
    ),
    (f"Cartpole-Balance {RATE} --wandb w.yaml --pruner median {SMALL}", "--pruner median: W&B has asha"),
    (f"Cartpole-Balance {RATE} --wandb no/w.yaml {SMALL}", "--wandb no/w.yaml: cannot be written (No such file or dir"),
    ("Cartpole-Balance --param seed int 0 9", "--param seed: is decided by --seeds-per-trial"),
    (
        f"Cartpole-Balance --param agent.algorithm.learning-rat log 1e-4 1e-2 {SMALL}",
        "unknown flag --agent.algorithm.learning-rat 0.0001; did you mean --agent.algorithm.learning-rate",
    ),
    (
        f"Cartpole-Balance --param agent.algorithm.num-learning-epochs uniform 1.5 5 {SMALL}",
        "--agent.algorithm.num-learning-epochs 1.5: give a whole number",
    ),
    (
        f"Cartpole-Balance --param agent.algorithm.num-learning-epochs uniform 2 8 {SMALL}",
        "--agent.algorithm.num-learning-epochs 4.2918: give a whole number",
    ),
    (
        f"Cartpole-Balance --param agent.algorithm.num-learning-epochs int 0 5 {SMALL}",
        "--agent.algorithm.num-learning-epochs 0: must be at least 1",
    ),
    (
        f"Cartpole-Balance --param agent.algorithm.schedule choice fixed adaptive linear {SMALL}",
        "--agent.algorithm.schedule linear: choose from adaptive, fixed",
    ),
    (f"Cartpole-Balance {RATE} --metric eval/retrun {SMALL}", "unknown metric eval/retrun; did you mean eval/return"),
    (
        f"Cartpole-Balance {RATE} --metric eval/return {SMALL} --eval-interval 0",
        "--metric eval/return: needs evaluations; give --eval-interval too",
    ),
]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("command", "words"), CASES)
def test_one_line_and_status_2(
    command: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("sweep: ")
    assert words in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_gpu")
def test_a_lock_file_that_cannot_be_opened_is_not_a_missing_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "claims" / "sweep.lock").mkdir(parents=True)
    with pytest.raises(SystemExit) as stop:
        main(f"Cartpole-Balance {RATE} --sweep-dir {tmp_path} {SMALL}".split())
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"sweep: --sweep-dir {tmp_path}: cannot be written (Is a directory)\n"


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
    options = ["--space", "space.yaml", "--trials", "9", "--wandb", "my sweep.yaml"]
    main(["Cartpole-Balance", *options, "--", "--num-envs", "16", "--max-iterations", "18"])
    assert capsys.readouterr().out == "wrote my sweep.yaml; continue with: wandb sweep 'my sweep.yaml'\n"
    config = yaml.safe_load((tmp_path / "my sweep.yaml").read_text())
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
    assert "--wandb my sweep.yaml: already exists" in capsys.readouterr().err
