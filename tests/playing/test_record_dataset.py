"""A data set of episodes: complete, as `play` measures them, and described."""

import json
from pathlib import Path

import numpy as np
import pytest

from mjtrain.cli.play import main


def test_episodes_are_those_that_play_measures(
    log_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["Cartpole-Balance", "--log-root", str(log_root), "--episodes", "4", "--num-envs", "2", "--num-threads", "1"]
    args += ["--policy", "random"]
    main([*args, "--json"])
    measured = json.loads(capsys.readouterr().out)
    out = tmp_path / "data"
    main([*args, "--record", str(out)])
    assert capsys.readouterr().out.strip() == str(out / "dataset.json")
    index = json.loads((out / "dataset.json").read_text())
    assert len(index["episodes"]) == 4
    returns = [entry["return"] for entry in index["episodes"]]
    assert np.mean(returns) == pytest.approx(measured["reward"]["mean"], rel=1e-5)
    assert max(returns) == pytest.approx(measured["reward"]["max"], rel=1e-5)
    for entry in index["episodes"]:
        with np.load(out / entry["file"], allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        assert set(arrays) == set(index["arrays"])
        for name, described in index["arrays"].items():
            shape = [entry["steps"] if size == "steps" else size for size in described["shape"]]
            assert list(arrays[name].shape) == shape
            assert str(arrays[name].dtype) == described["dtype"]
            assert described["meaning"]
        assert arrays["terminated"].tolist() == [False] * (entry["steps"] - 1) + [entry["ended_by"] == ["pole_fell"]]
        assert arrays["rewards"].sum() == pytest.approx(entry["return"], rel=1e-5)
        assert arrays["reward_terms"].sum(axis=1) == pytest.approx(arrays["rewards"], abs=1e-5)
        assert arrays["time"] == pytest.approx(index["step_dt_s"] * np.arange(entry["steps"]), abs=1e-5)
        assert np.abs(arrays["actions"]).max() <= 1
        before, last = arrays["observations/actor"][-1], arrays["last_observations/actor"]
        assert 0 < np.abs(last - before).max() < 1  # one env step apart, and not the start of the next episode
    columns = sum(term["columns"] for term in index["observations"]["actor"])
    assert columns == index["arrays"]["observations/actor"]["shape"][1]
    assert index["qpos_joints"] == ["slider", "hinge"]


def test_a_folder_with_files_and_a_foreign_environment_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("")
    for task, words in (("Cartpole-Balance", f"--record {tmp_path}"), ("gymnasium:Pendulum-v1", "own physics")):
        with pytest.raises(SystemExit) as stop:
            main([task, "--policy", "zero", "--record", str(tmp_path)])
        assert stop.value.code == 2
        assert words in capsys.readouterr().err
