"""A data set of episodes: complete, as `play` measures them, and described."""

import importlib.util
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


HAS_MINARI = importlib.util.find_spec("minari") is not None


@pytest.mark.skipif(not HAS_MINARI, reason="Minari is not installed: mjtrain[minari]")
def test_minari_loads_the_same_episodes(
    log_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari  # pyright: ignore[reportMissingImports]

    args = ["Cartpole-Balance", "--log-root", str(log_root), "--episodes", "4", "--num-envs", "2", "--num-threads", "1"]
    args += ["--policy", "random"]
    main([*args, "--record", str(tmp_path / "npz")])
    main([*args, "--record", str(tmp_path / "cart-v3"), "--record-format", "minari"])
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("cart-v3")
    npz, index = (json.loads((tmp_path / name / "dataset.json").read_text()) for name in ("npz", "cart-v3"))
    assert [{**entry, "file": None} for entry in npz["episodes"]] == [
        {**{key: value for key, value in entry.items() if key != "episode"}, "file": None}
        for entry in index["episodes"]
    ]
    assert dataset.total_episodes == 4
    for entry, episode in zip(npz["episodes"], dataset.iterate_episodes(), strict=True):
        with np.load(tmp_path / "npz" / entry["file"]) as file:
            seen = np.concatenate([file["observations/actor"], file["last_observations/actor"][None]])
            assert np.array_equal(episode.observations["actor"], seen)
            for ours, theirs in (("actions", "actions"), ("rewards", "rewards"), ("terminated", "terminations")):
                assert np.array_equal(getattr(episode, theirs), file[ours])
            assert np.array_equal(episode.infos["qpos"], file["qpos"])
        assert bool(episode.terminations[-1]) != bool(episode.truncations[-1])


@pytest.mark.skipif(HAS_MINARI, reason="Minari is installed")
def test_without_minari_its_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["Cartpole-Balance", "--policy", "zero", "--record-format", "minari"]
    for more, words in (([], "needs --record DIR"), (["--record", str(tmp_path)], "pip install 'mjtrain[minari]'")):
        with pytest.raises(SystemExit) as stop:
            main([*args, *more])
        assert stop.value.code == 2
        assert words in capsys.readouterr().err
