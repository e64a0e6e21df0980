"""Playing a policy that sees."""

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mjtrain
from mjtrain.config import AuxiliaryConfig, PlayConfig, PpoConfig
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.evaluation.playing.record_dataset import record_dataset
from mjtrain.learning.rsl_rl.policy import ActorPolicy
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError
from support.envs import make_env
from support.vision import make_vision_env, make_vision_task, see, train_vision

NOISY = {"image": {"rgb": see(noise=40.0, shift=3)}}


def test_evaluation_is_without_noise_and_shift_of_images() -> None:
    seen = {}
    for name, config in (
        ("noisy", make_vision_env(NOISY)),
        ("evaluation", to_eval_config(make_vision_env(NOISY))),
        ("with noise", to_eval_config(make_vision_env(NOISY), noise=True)),
        ("plain", to_eval_config(make_vision_env({"image": {"rgb": see()}}))),
    ):
        env = make_env(config)
        seen[name] = env.observe()["image"]
        env.close()
    assert torch.equal(seen["evaluation"], seen["plain"])
    for name in ("noisy", "with noise"):
        assert not torch.equal(seen[name], seen["plain"])


def test_a_policy_that_sees_is_measured_the_same_each_time(tmp_path: Path) -> None:
    run_dir = train_vision(make_vision_task(make_vision_env(NOISY, size=16)), tmp_path)
    table = mjtrain.play(run_dir, episodes=6, seed=4)
    assert table["episodes"] == 6
    assert table["length"]["mean"] > 1
    assert mjtrain.play(run_dir, episodes=6, seed=4) == table
    assert mjtrain.play(run_dir, episodes=6, seed=4, noise=True) != table


def _double(estimated: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    return 2 * (estimated - true).abs().sum(dim=1)


def test_what_the_policy_estimates_is_compared_with_the_truth(tmp_path: Path) -> None:
    env = make_vision_env(size=16)
    state = {name: term.replace(scale=0.5) for name, term in env.observations["actor"].items()}
    first = next(iter(state))
    state[first] = state[first].replace(estimate_error=_double, unit="two of them")
    env = replace(env, observations={**env.observations, "state": state})
    task = make_vision_task(env)
    task = replace(task, agent=replace(task.agent, algorithm=PpoConfig(auxiliary_cfg=AuxiliaryConfig(group="state"))))
    run_dir = train_vision(task, tmp_path)
    table = mjtrain.play(run_dir, episodes=2, num_envs=2, seed=3)
    assert list(table["estimates"]) == list(state)
    assert table["estimates"][first]["unit"] == "two of them"

    policy = mjtrain.load_policy(run_dir)
    with pytest.raises(RequestError, match="call it with observations first"):
        policy.estimate()
    worlds = make_env(to_eval_config(env), num_envs=2, seed=3)
    worlds.reset(torch.ones(2, dtype=torch.bool))
    weights = load_checkpoint(run_dir / "model_2.pt", "cpu")["actor_state_dict"]
    assert isinstance(policy._policy, ActorPolicy)
    network: Any = policy._policy.network
    deviation, mean = (weights[f"auxiliary_head.obs_normalizer._{name}"].float() for name in ("std", "mean"))
    missed, running = [], torch.ones(2, dtype=torch.bool)
    while running.any():
        seen = worlds.observe()
        actions = policy(seen)
        estimated = torch.cat(list(policy.estimate().values()), dim=1)
        told = network.auxiliary_head.mlp(network.cnns["image"](seen["image"])) * (deviation + 0.01) + mean
        torch.testing.assert_close(estimated, told.detach() / 0.5)
        missed.append((estimated - seen["state"] / 0.5).abs().masked_fill(~running[:, None], torch.nan))
        _, _, terminated, truncated = worlds.step(actions)
        running &= ~(terminated | truncated)
    for column, (name, spread) in enumerate(table["estimates"].items()):
        by_episode = torch.stack(missed)[:, :, column].nanmean(dim=0) * (2 if name == first else 1)
        assert spread["mean"] == pytest.approx(by_episode.mean().item(), rel=1e-4)


def test_a_policy_without_supervision_estimates_nothing(cartpole_run: Path) -> None:
    policy = mjtrain.load_policy(cartpole_run)
    with pytest.raises(RequestError, match=r"estimates nothing: it was trained without --agent\.algorithm"):
        policy.estimate()
    assert mjtrain.play(cartpole_run, episodes=2)["estimates"] == {}


def test_pictures_for_lerobot_are_those_of_colours_alone(tmp_path: Path) -> None:
    """A segmentation of three classes has three channels of bytes too."""
    env = make_vision_env({"image": {"mask": see(stream="segmentation"), "rgb": see(stream="rgb", history=2)}}, size=8)
    env = replace(env, cameras={"side": replace(env.cameras["side"], classes=dict.fromkeys("abc", ("cart",)))})
    run = TrainedRun(task="vision", env=env, agent=make_vision_task().agent)
    config = PlayConfig(policy="zero", episodes=1, num_envs=1, record=str(tmp_path))
    index = json.loads(record_dataset(mjtrain.RankContext(), run, config).read_text())
    with np.load(tmp_path / index["episodes"][0]["file"]) as file:
        seen = file["observations/image"]
    find_pictures = runpy.run_path("examples/to_lerobot.py")["find_pictures"]
    pictures = find_pictures("image", seen, index["observations"]["image"])
    assert seen.shape[1] == 9
    np.testing.assert_array_equal(np.concatenate([*pictures.values()], axis=1), seen[:, 3:])


def test_pictures_for_lerobot_are_found_beside_depth(tmp_path: Path) -> None:
    """Where a camera has depth too, first or last, colours are fractions in the group."""
    groups = {"image": {"rgb": see(stream="rgb", history=2)}, "all": {"all": see(stream=None, history=2)}}
    env = make_vision_env(groups, size=8)
    env = replace(env, cameras={"side": replace(env.cameras["side"], streams=("depth", "rgb"))})
    run = TrainedRun(task="vision", env=env, agent=make_vision_task().agent)
    config = PlayConfig(policy="zero", episodes=1, num_envs=1, record=str(tmp_path))
    index = json.loads(record_dataset(mjtrain.RankContext(), run, config).read_text())
    with np.load(tmp_path / index["episodes"][0]["file"]) as file:
        seen = {group: file[f"observations/{group}"] for group in groups}
    find_pictures = runpy.run_path("examples/to_lerobot.py")["find_pictures"]
    found = [list(find_pictures("image", seen[group], index["observations"][group]).values()) for group in groups]
    assert seen["all"].dtype == np.float32
    assert [picture.dtype for picture in found[1]] == [np.uint8] * 2
    np.testing.assert_array_equal(found[0], found[1])
    for noise, byte in ((-2.0, 0), (2.0, 255)):
        noisy = find_pictures("all", seen["all"] + noise, index["observations"]["all"])
        assert all((picture == byte).all() for picture in noisy.values())


def test_columns_for_lerobot_keep_each_group() -> None:
    """The chosen group becomes observation.state, also beside one that is called state, and beside qpos."""
    arrays = {
        f"observations/{group}": np.full((2, width), width) for width, group in enumerate(("arm", "state", "qpos"))
    }
    arrays |= {name: np.zeros((2, 4)) for name in ("qpos", "qvel", "actions")}
    arrays |= {name: np.zeros(2, dtype=bool) for name in ("rewards", "terminated", "truncated")}
    make_columns = runpy.run_path("examples/to_lerobot.py")["make_columns"]
    for state, others in {"arm": {"group.state": 1, "group.qpos": 2}, "state": {"arm": 0, "group.qpos": 2}}.items():
        columns = make_columns(arrays, {"observations": {}}, state)
        widths = {name: values.shape[1] for name, values in columns.items() if name.startswith("observation.")}
        chosen = ["arm", "state"].index(state)
        others = {f"observation.{name}": width for name, width in others.items()}
        assert widths == {"observation.state": chosen, **others, "observation.qpos": 4, "observation.qvel": 4}


@pytest.mark.parametrize(
    ("flags", "entry", "words"),
    [
        (
            ["--state", "image"],
            {"file": "a.npz"},
            "--state image: is not one of the flat observation groups, arm, state",
        ),
        ([], {"episode": 0}, "has no NPZ files; record it without --record-format"),
    ],
)
def test_what_lerobot_cannot_get_is_said(
    flags: list[str],
    entry: dict,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    groups = {"image": [{"channels": 3}], "arm": [{"columns": 2}], "state": [{"columns": 5}]}
    (tmp_path / "dataset.json").write_text(json.dumps({"observations": groups, "episodes": [entry], "step_dt_s": 0.02}))
    monkeypatch.setattr("sys.argv", ["to_lerobot.py", str(tmp_path), str(tmp_path / "out"), *flags])
    with pytest.raises(SystemExit):
        runpy.run_path("examples/to_lerobot.py", run_name="__main__")
    assert words in capsys.readouterr().err
