"""What no fault may change: the numbers that a run ends with."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.jobs import BIN, Job
from support.resuming import read_rows_and_restarts

SAVE_INTERVAL, ITERATIONS = 3, 12
"""How often this run saves, and how long it is."""

KILLS = (
    "rank=1,phase=rollout,iteration=5,step=7,kind=sigkill",  # from the start
    "rank=0,phase=update,iteration=8,step=4,kind=sigkill",  # from the checkpoint of iteration 3
    "rank=1,phase=save,iteration=9,kind=sigkill",  # from the checkpoint of iteration 6
)


def train(folder: Path, kills: tuple[str, ...]) -> Job:
    folder.mkdir()
    command = [str(BIN / "train"), "Cartpole-Balance", "--gpu-ids", "None", "--num-workers", "2", "--max-restarts", "5"]
    command += ["--num-envs", "16", "--num-threads", "1", "--max-iterations", str(ITERATIONS), "--seed", "3"]
    command += ["--agent.save-interval", str(SAVE_INTERVAL), *(["--inject-fault", *kills] if kills else [])]
    return Job([*command, "--logger", "none", "--log-root", "logs"], folder)


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    """List all leaves of a checkpoint by their path."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {name: value}
    return {path: leaf for key, child in items for path, leaf in flatten(child, f"{name}/{key}").items()}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        # As bytes, because equal numbers may differ in the sign of a zero, and NaN differs from itself.
        whole = left.dtype == right.dtype and left.shape == right.shape
        return whole and left.numpy().tobytes() == right.numpy().tobytes()
    return type(left) is type(right) and left == right


@pytest.mark.supports("training", start="several ranks on this host")
@pytest.mark.supports("resume", start="several ranks on this host")
def test_a_run_killed_three_times_ends_with_the_undisturbed_checkpoint(tmp_path: Path) -> None:
    """Every tensor of it, bit for bit: networks, optimizer, normalizers, and each rank's random numbers and worlds."""
    jobs = {name: train(tmp_path / name, kills) for name, kills in (("undisturbed", ()), ("killed", KILLS))}
    outcomes = {name: job.finish(since=0.0, timeout_s=90.0) for name, job in jobs.items()}
    for outcome in outcomes.values():
        assert outcome.status == 0, outcome.stderr
    assert [row["fault"] for row in jobs["killed"].injected()] == list(KILLS)
    assert jobs["undisturbed"].injected() == []
    (undisturbed,) = (tmp_path / "undisturbed").glob("logs/*/*")
    (killed,) = (tmp_path / "killed").glob("logs/*/*")

    metrics, restarts = read_rows_and_restarts(killed)
    assert [row["iteration"] for row in restarts] == [3, 6, 6]
    assert all("SIGKILL" in row["cause"] for row in restarts)
    assert [row["iteration"] for row in metrics] == list(range(1, ITERATIONS + 1))
    assert (metrics, []) == read_rows_and_restarts(undisturbed)

    names = [f"model_{iteration}.pt" for iteration in range(SAVE_INTERVAL, ITERATIONS + 1, SAVE_INTERVAL)]
    for run in (undisturbed, killed):
        assert {path.name for path in run.glob("model_*.pt")} == set(names)
    ours: dict[str, Any] = {}
    for name in names:
        ours, theirs = (flatten(torch.load(run / name, weights_only=True)) for run in (undisturbed, killed))
        assert list(ours) == list(theirs)
        assert [path for path in ours if not same(ours[path], theirs[path])] == [], name
        assert (undisturbed / name).read_bytes() == (killed / name).read_bytes(), name
    assert ours["/iter"] == ITERATIONS
    for part in ("actor_state_dict", "critic_state_dict", "optimizer_state_dict", "ranks/0/env", "ranks/1/rng"):
        assert any(path.startswith(f"/{part}/") and isinstance(ours[path], torch.Tensor) for path in ours), part
