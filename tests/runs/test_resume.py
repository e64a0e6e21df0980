"""A run that is taken up again continues as if it had never stopped."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.runs.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from mjtrain.runs.history import find_run_to_resume
from mjtrain.runs.run_dir import read_recorded
from mjtrain.runtime.errors import RequestError
from mjtrain.training.request import preview, resolve_training
from support.resuming import assert_same, read_rows

ONE = mjtrain.LaunchConfig(gpu_ids=None, seed=3)
TWO = mjtrain.LaunchConfig(gpu_ids=None, num_workers=2, seed=3)


def train(log_root: Path, iterations: int, launch: mjtrain.LaunchConfig = ONE, **options: Any) -> Path:
    defaults = {"num_envs": 16, "logger": "none"}
    result = mjtrain.train(
        "Cartpole-Balance", max_iterations=iterations, log_root=str(log_root), launch=launch, **{**defaults, **options}
    )
    return result.run_dir


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("logs"), 4, logger="tensorboard")


@pytest.mark.supports("resume", task="Cartpole-Balance")
@pytest.mark.parametrize("launch", [ONE, TWO], ids=["one process", "two processes"])
@pytest.mark.usefixtures("stopped_run")  # a training before: the first one in a process imports what draws numbers
def test_eight_iterations_are_four_and_four(tmp_path: Path, launch: mjtrain.LaunchConfig) -> None:
    straight = train(tmp_path / "straight", 8, launch)
    stopped = train(tmp_path / "stopped", 4, launch)
    resumed = train(tmp_path / "stopped", 8, launch, resume=True)
    assert resumed == stopped
    assert read_rows(straight) == read_rows(resumed)
    one, other = (load_checkpoint(run_dir / "model_8.pt", "cpu") for run_dir in (straight, resumed))
    assert len(one["ranks"]) == (launch.num_workers or 1)
    assert_same(one, other)


def test_a_resume_by_hand_leaves_a_run_to_its_command(tmp_path: Path) -> None:
    own = train(tmp_path, 1, resume="auto", run_name="slurm-7")
    assert train(tmp_path, 2, resume=str(own)) == own
    assert train(tmp_path, 3, resume="auto", run_name="slurm-7") == own
    assert train(tmp_path, 1, resume="auto") != own


@pytest.fixture
def run_dir(stopped_run: Path, tmp_path: Path) -> Path:
    """A copy of a run of four iterations, alone below its log root."""
    return Path(shutil.copytree(stopped_run, tmp_path / "cartpole_balance" / stopped_run.name))


def test_what_came_after_the_checkpoint_is_taken_back(run_dir: Path, tmp_path: Path) -> None:
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "note": "lost"}\n{"event": "restart", "iteration": 4}\n{"iteration": 6, "no')
    train(tmp_path, 6, resume=True, logger="tensorboard")
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines() if '"end"' not in line]
    assert [row.get("event", row["iteration"]) for row in rows] == [1, 2, 3, 4, "restart", 5, 6]
    assert "note" not in rows[5]
    scalars = EventAccumulator(str(run_dir)).Reload()
    assert [event.step for event in scalars.Scalars("env_steps_total")] == [1, 2, 3, 4, 5, 6]
    assert [path.name for path in list_checkpoints(run_dir)] == ["model_6.pt", "model_4.pt"]


def test_empty_and_broken_runs_are_passed_over_with_a_line(
    run_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (run_dir.parent / "2999-01-01_00-00-00").mkdir()
    broken = run_dir.parent / "2998-01-01_00-00-00"
    broken.mkdir()
    data = bytearray((run_dir / "model_4.pt").read_bytes())
    data[1000] ^= 1
    (broken / "model_9.pt").write_bytes(data)
    (run_dir / "model_5.pt").write_bytes(data[:-20])
    assert train(tmp_path, 5, resume=True) == run_dir
    said = capfd.readouterr().err
    assert "passed over " in said
    assert "2999-01-01_00-00-00: no checkpoint found in it" in said
    assert "model_9.pt: its content does not match its checksum" in said
    assert "model_5.pt" in said
    assert "resuming from " in said


def test_total_env_steps_count_from_the_runs_start(run_dir: Path, tmp_path: Path) -> None:
    train(tmp_path, 300, resume=True, total_env_steps=6 * 16 * 24)
    assert [row["iteration"] for row in read_rows(run_dir)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("num_envs", "left", "resume"), [(8, 8, True), (32, 2, "auto")])
def test_env_steps_that_are_left_are_counted_with_the_environments_of_now(
    num_envs: int, left: int, resume: Any, run_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of 3072, 1536 are done in 4 iterations; iterations that follow may have faults, and the others may not."""
    options: dict[str, Any] = {"resume": resume, "num_envs": num_envs, "total_env_steps": 8 * 16 * 24}
    last, line = 4 + left, f"{left} iterations left, 1,536 env steps in total"
    for iteration in (last, last + 1):
        launch = replace(ONE, inject_fault=(f"phase=rollout,iteration={iteration},kind=raise",))
        request = resolve_training(make_train_config("Cartpole-Balance", log_root=str(tmp_path), **options), launch)
        if iteration == last:
            assert preview(request)["summary"][0].endswith(line)
            continue
        with pytest.raises(RequestError, match=f"iteration={last + 1},kind=raise: the run ends with iteration {last}$"):
            preview(request)
        with pytest.raises(RequestError, match=f"the run ends with iteration {last}$"):
            train(tmp_path, 300, launch, **options)
    train(tmp_path, 300, **options)
    assert line in capfd.readouterr().err
    assert read_rows(run_dir)[-1]["iteration"] == last
    assert read_recorded(run_dir, "run")["max_iterations"] == last


@pytest.mark.parametrize("place", ["newest", "auto", "storage", "auto from the storage"])
@pytest.mark.usefixtures("run_dir")
def test_a_dry_run_counts_what_the_run_has_already(place: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"log_root": str(tmp_path), "resume": {"newest": True}.get(place, "auto")}
    if place.endswith("storage"):
        url = (tmp_path / "stored").as_uri()
        train(tmp_path / "elsewhere", 4, checkpoint_url=url)
        options |= {"resume": url} if place == "storage" else {"checkpoint_url": url}
    config = make_train_config("Cartpole-Balance", num_envs=16, max_iterations=10, **options)
    line = preview(resolve_training(config, ONE))["summary"][0]
    assert line.endswith("; 6 iterations left, 2,304 env steps in total")
    if place.endswith("storage"):  # a plan fetches no checkpoint, which has the env steps
        config = replace(config, run=replace(config.run, total_env_steps=9999))
        assert preview(resolve_training(config, ONE))["summary"][0].endswith(" = 384 env steps per iteration")


def test_another_number_of_environments_is_said(
    run_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 5, resume=str(run_dir), num_envs=8)
    said = capfd.readouterr().out
    assert (
        "environments and random numbers start again: the checkpoint has 16 environments per rank, and this run has 8"
        in " ".join(said.split())
    )
    assert read_rows(run_dir)[-1]["env_steps_total"] == 4 * 16 * 24 + 8 * 24


def test_changed_settings_are_said(run_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = run_dir / "params" / "agent.yaml"
    agent = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**agent, "save_interval": 7}))
    train(tmp_path, 5, resume=True)
    assert "changed since: agent.save_interval: 7 -> 50" in capfd.readouterr().err


def test_means_of_terms_that_were_left_out_are_not_repeated(run_dir: Path, tmp_path: Path) -> None:
    content = load_checkpoint(run_dir / "model_4.pt", "cpu")
    assert "reward/effort" in content["last_episodes"]
    content["last_episodes"]["overflow/contacts"] = 3  # as a run on the other engine has
    save_checkpoint(run_dir / "model_4.pt", content)
    train(tmp_path, 5, resume=True, without=("rewards.effort",), num_envs=8)
    earlier, row = read_rows(run_dir)[-2:]
    assert row["reward/upright"] == earlier["reward/upright"]  # no episode has ended since
    assert not {"reward/effort", "overflow/contacts"} & row.keys()


def test_what_cannot_be_resumed_is_refused_by_name(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--max-iterations 4: the run has 4 already"):
        train(tmp_path, 4, resume=True)
    with pytest.raises(RequestError, match=r"--total-env-steps 1536: the run has 1536 already; ask for more"):
        train(tmp_path, 4, resume=True, total_env_steps=4 * 16 * 24)
    with pytest.raises(RequestError, match=r"--resume nowhere: no such run directory"):
        train(tmp_path, 8, resume="nowhere")
    with pytest.raises(RequestError, match=r"--load .* cannot be combined with --resume"):
        train(tmp_path, 8, resume=True, load=str(run_dir / "model_4.pt"))
    with pytest.raises(RequestError, match=r"is of task Cartpole-Balance, and this is Cartpole-Swingup"):
        mjtrain.train("Cartpole-Swingup", num_envs=16, resume=str(run_dir), launch=ONE, logger="none")
    task = make_train_config("Cartpole-Balance")
    smaller = mjtrain.AgentConfig(
        actor=mjtrain.ModelConfig(hidden_dims=(8,), distribution_cfg=mjtrain.DistributionConfig()),
        obs_groups=task.agent.obs_groups,
    )
    with pytest.raises(RequestError, match=r"actor mlp\.0\.weight has shape \(64, 4\) in the checkpoint and \(8, 4\)"):
        train(tmp_path, 8, resume=True, agent=smaller)
    with pytest.raises(RequestError, match=r"no run of Cartpole-Balance below .* has a valid checkpoint"):
        find_run_to_resume(make_train_config("Cartpole-Balance", log_root=str(tmp_path / "empty"), resume=True))
    save_checkpoint(run_dir / "model_5.pt", {"actor_state_dict": {}, "iter": 5, "infos": None})
    with pytest.raises(RequestError, match=r"model_5.pt: has no infos, so no training can be resumed from it; --load"):
        train(tmp_path, 8, resume=True)


DAMAGES = {
    "optimizer_state_dict is not as a training saves it (KeyError: 'state', at persistence.py:": {
        "optimizer_state_dict": {}
    },
    "ranks is not as a training saves it (AttributeError: 'int' object has no attribute 'get', at loop.py:": {
        "ranks": [3]
    },
    "infos is not as a training saves it (KeyError: 'env_steps_total', at ": {"infos": {"task": "Cartpole-Balance"}},
    "infos is not as a training saves it (AttributeError: 'int' object has no attribute ": {"infos": {"task": 5}},
    "learning_rate is of type str, not float": {"learning_rate": "x"},
}


@pytest.mark.parametrize(("words", "change"), DAMAGES.items(), ids=[next(iter(change)) for change in DAMAGES.values()])
def test_a_part_that_is_not_as_it_was_saved_is_named(
    words: str, change: dict[str, Any], run_dir: Path, tmp_path: Path
) -> None:
    """The checksum is right: somebody has read the file, changed it and written it again."""
    path = run_dir / "model_4.pt"
    save_checkpoint(path, load_checkpoint(path, "cpu") | change)
    with pytest.raises(RequestError) as error:
        train(tmp_path, 8, resume=True)
    assert str(error.value).startswith(f"checkpoint {path}: is damaged: {words}")


@pytest.mark.parametrize(
    ("part", "name", "words"),
    [("state", "exp_avg_sq", "exp_avg_sq of parameter 0"), ("param_groups", "lr", "lr of group 0")],
)
def test_junk_of_the_optimiser_is_named(part: str, name: str, words: str, run_dir: Path, tmp_path: Path) -> None:
    path = run_dir / "model_4.pt"
    content = load_checkpoint(path, "cpu")
    content["optimizer_state_dict"][part][0][name] = "x"
    save_checkpoint(path, content)
    with pytest.raises(RequestError) as error:
        train(tmp_path, 8, resume=True)
    assert str(error.value).startswith(
        f"checkpoint {path}: is damaged: optimizer_state_dict is not as a training saves"
    )
    assert f"{words} is the string 'x', not a tensor or a number" in str(error.value)


def test_random_numbers_that_cannot_be_restored_are_named(run_dir: Path, tmp_path: Path) -> None:
    path = run_dir / "model_4.pt"
    content = load_checkpoint(path, "cpu")
    content["ranks"][0]["rng"] = {"torch": 5}
    save_checkpoint(path, content)
    with pytest.raises(RequestError, match=r"is damaged: ranks is not as a training saves it \(AttributeError: 'int'"):
        train(tmp_path, 8, resume=True)


def test_two_processes_do_not_train_in_one_directory(run_dir: Path, tmp_path: Path) -> None:
    from mjtrain.runs.claim import claim_run_dir

    with claim_run_dir(run_dir), pytest.raises(RequestError, match="another process is training there"):
        train(tmp_path, 8, resume=True)
