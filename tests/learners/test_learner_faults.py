"""A signal, a killed rank and a rank that drifts, under each learner; tests/faults/ has more of them, under RSL-RL."""

import copy
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_task import SAVE_INTERVAL, STEPS

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig, LearnerConfig, PpoConfig
from mjtrain.learning.divergence import RanksDriftedError
from mjtrain.learning.library import make_learner
from mjtrain.learning.persistence import as_tensors
from mjtrain.runs.checkpoint import find_valid_checkpoint, load_checkpoint
from mjtrain.runtime.rank import RankContext
from mjtrain.training.train_rank import make_env
from support.jobs import BIN, Job
from support.resuming import assert_same, read_rows_and_restarts

TASK = f"{Path(__file__).with_name('small_task.py')}:make"

SKRL = {"value_preprocessor": "RunningStandardScaler"}
NORMALISERS = ("observation_preprocessor", "state_preprocessor", "value_preprocessor")
LEARNERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "skrl": (SKRL, ("policy", "value", *NORMALISERS, "optimizer")),
    "rl_games": (
        {"config": {"normalize_value": True, "bounds_loss_coef": 0.1, "central_value_config": {"mini_epochs": 2}}},
        ("model", "central_value", "optimizer", "central_value_optimizer"),
    ),
    "skrl_jax": (SKRL, ("policy", "value", *NORMALISERS, "policy_optimizer", "value_optimizer")),
}
"""Settings with every normaliser that a library has, and what is learned, as checkpoints call it; by learner."""

pytestmark = [pytest.mark.usefixtures("no_gpu"), pytest.mark.parametrize("learner", LEARNERS)]


def train(folder: Path, name: str, learner: str, *flags: str, **environ: str) -> Job:
    """Start a training on two ranks, which are compared after each iteration."""
    settings = folder / "own.yaml"
    settings.write_text(yaml.safe_dump(LEARNERS[learner][0]))
    here = folder / name
    here.mkdir(exist_ok=True)
    command = [str(BIN / "train"), TASK, "--gpu-ids", "None", "--num-workers", "2", "--num-threads", "1"]
    command += ["--learner", learner, "--learner-config", str(settings), "--drift-check-interval", "1", "--seed", "3"]
    return Job([*command, "--logger", "none", *flags], here, environ)


def find_run(folder: Path) -> Path:
    (run_dir,) = folder.glob("logs/*/*")
    return run_dir


@pytest.mark.supports("training", learner="{learner}", start="several ranks on this host")
@pytest.mark.supports("resume", learner="{learner}", start="several ranks on this host")
def test_a_run_that_was_stopped_and_killed_is_the_undisturbed_one(learner: str, tmp_path: Path) -> None:
    """A signal saves after the iteration; the resumed run loses a rank, and continues from the checkpoint before that.

    What it ends with is the undisturbed run's, bit for bit. Neither job leaves a process behind.
    """
    job = train(tmp_path, "disturbed", learner, "--max-iterations", "100000")
    job.wait_for("iteration 2/")
    outcome = job.finish(job.kill(signal.SIGTERM))
    assert outcome.status == 128 + signal.SIGTERM
    assert outcome.stderr.splitlines()[-1] == "train: stopped by SIGTERM"
    run_dir = find_run(tmp_path / "disturbed")
    stopped = read_rows_and_restarts(run_dir)[0][-1]["iteration"]
    assert find_valid_checkpoint(run_dir) == (run_dir / f"model_{stopped}.pt", [])

    last, killed = str(max(20, stopped + 8)), stopped + 6
    fault = f"rank=1,phase=rollout,iteration={killed},step={STEPS - 1},kind=sigkill"
    flags = ["--max-iterations", last, "--max-restarts", "1"]
    outcome = train(tmp_path, "disturbed", learner, *flags, "--resume", "--inject-fault", fault).finish()
    assert outcome.status == 0, outcome.stderr
    rows, (restart,) = read_rows_and_restarts(run_dir)
    saved = (killed - 1) // SAVE_INTERVAL * SAVE_INTERVAL
    assert (restart["iteration"], restart["lost"]) == (saved, killed - 1 - saved)
    assert "rank 1" in restart["cause"]
    assert "SIGKILL" in restart["cause"]

    outcome = train(tmp_path, "undisturbed", learner, *flags).finish(since=0.0)
    assert outcome.status == 0, outcome.stderr
    undisturbed = find_run(tmp_path / "undisturbed")
    assert (rows, []) == read_rows_and_restarts(undisturbed)
    assert [row["iteration"] for row in rows] == list(range(1, int(last) + 1))
    files = [folder / f"model_{last}.pt" for folder in (run_dir, undisturbed)]
    ends = [load_checkpoint(file, "cpu") for file in files]
    assert_same(*ends)
    for part in LEARNERS[learner][1]:
        assert list(find_tensors(ends[0][part], part))
    assert files[0].read_bytes() == files[1].read_bytes()


def find_tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a nested state with the names that `check_drift` gives them."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from find_tensors(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from find_tensors(item, f"{name}[{index}]")


def _find_rates(context: RankContext, name: str, schedule: str) -> list[float]:
    """Return the step sizes of a learner that was made with another one than its checkpoint has, and learned on."""
    made: list[Any] = []
    for rate in (1e-3, 3e-3):
        config = make_train_config(TASK)
        algorithm = PpoConfig(num_learning_epochs=1, num_mini_batches=1, learning_rate=rate, schedule=schedule)  # pyright: ignore
        agent = replace(config.agent, algorithm=algorithm)
        own = LearnerConfig(name=name, settings=LEARNERS[name][0])
        made.append(make_learner(context, make_env(context, config), agent, own))
    before, after = (learner._algorithm for learner in made)
    list(made[0].iterate(1))
    content = copy.deepcopy(as_tensors(before.state_dict()))
    after.load_state_dict({**content, "learning_rate": before.learning_rate, "iter": 1}, Path())
    rates = [before.learning_rate, after.learning_rate]
    if (optimizer := after.state_dict().get("optimizer")) is not None:
        rates.append(optimizer["param_groups"][0]["lr"])
    if schedule == "fixed":
        list(made[1].iterate(1))
        rates.append(after.learning_rate)
    return rates


def test_a_fixed_step_size_is_that_of_the_command_that_resumes(learner: str) -> None:
    one = LaunchConfig(gpu_ids=None, num_threads=1)
    first, *then = mjtrain.launch(_find_rates, learner, "fixed", launch=one)
    assert (first, set(then)) == (1e-3, {3e-3})
    first, *then = mjtrain.launch(_find_rates, learner, "adaptive", launch=one)
    assert set(then) == {first}


def _let_rank_1_drift(context: RankContext, name: str) -> dict[str, str]:
    """Change one bit of each tensor in rank 1, one after the other; return what the comparison says of each."""
    config = make_train_config(TASK)
    own = LearnerConfig(name=name, settings=LEARNERS[name][0])
    learner: Any = make_learner(context, make_env(context, config), config.agent, own)
    algorithm = learner._algorithm
    if name != "skrl_jax":  # there optimisers have their state from the start, and a first update takes long
        list(learner.iterate(1))
    learner.check_drift()
    state = copy.deepcopy(as_tensors(algorithm.state_dict()))
    content = {**state, "learning_rate": algorithm.learning_rate, "iter": learner.iteration}
    said = {}
    for part, value in state.items():
        for where, tensor in find_tensors(value, part):
            before = tensor.clone()
            if context.rank == 1:
                bits = tensor.reshape(-1).view(torch.uint8)
                bits[0] ^= 1
            algorithm.load_state_dict(content, Path())
            try:
                learner.check_drift()
                said[where] = "nothing"
            except RanksDriftedError as error:
                said[where] = str(error)
            tensor.copy_(before)
    algorithm.load_state_dict(content, Path())
    learner.check_drift()
    return said


def test_a_bit_that_differs_is_found(learner: str) -> None:
    """In parameters, normalisers and optimisers: in all that is learned, and by its name."""
    launch = LaunchConfig(gpu_ids=None, num_workers=2, num_threads=1, torchrunx_log_dir="")
    said = mjtrain.launch(_let_rank_1_drift, learner, launch=launch)
    for name, words in said.items():
        assert words.startswith(f"{name} differs between ranks: rank 1 against rank 0 (1 of "), name
    assert {name.split(".")[0] for name in said} == set(LEARNERS[learner][1])
