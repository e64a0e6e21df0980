"""Plots of real runs."""

import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import mjtrain
from mjtrain.cli.plot import main


@pytest.fixture(scope="module")
def log_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one configuration, and a longer run of another."""
    folder = tmp_path_factory.mktemp("logs")
    for seed, iterations, num_envs in ((0, 4, 64), (1, 6, 64), (0, 5, 32)):
        launch = mjtrain.LaunchConfig(gpu_ids=None, seed=seed)
        mjtrain.train(
            "Cartpole-Balance", num_envs=num_envs, max_iterations=iterations, log_root=str(folder), launch=launch,
            logger="none",
        )  # fmt: skip
    return folder


def test_runs_become_curves_in_a_picture(log_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    going_on = Path(shutil.copytree(log_root, tmp_path / "logs"))
    newest = max(going_on.glob("*/*/metrics.jsonl"))
    rows, _, _ = newest.read_text().rpartition('{"event": "end"')
    newest.write_text(rows[:-50])  # as read while a line was being written
    svg, png = tmp_path / "curves.svg", tmp_path / "curves.png"
    main([str(going_on), "--x", "env-steps", "--y", "mean_episode_length", "loss/*", "--out", str(svg)])
    assert capsys.readouterr().out.splitlines()[:2] == [
        "num_envs 64 (2 runs): to iteration 4 6",
        "num_envs 32: to iteration 4",
    ]
    drawing = svg.read_text()
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    for comment in ("env steps", "mean_episode_length", "loss/value", "num_envs 64 (2 runs)"):
        assert f"<!-- {comment} -->" in drawing
    assert drawing.count('id="FillBetweenPolyCollection') == 4  # a band per metric, around the two seeds only

    one, other, _ = sorted(map(str, log_root.glob("*/*")))
    main([one, other, "--x", "wall-time", "--y", "mean_episode_length", "--out", str(png)])
    pixels = np.asarray(Image.open(png).convert("RGB")).reshape(-1, 3)
    colourful = pixels.max(axis=1).astype(int) - pixels.min(axis=1) > 100
    assert colourful.sum() > 200  # the mean's line


def test_a_run_without_an_iteration_is_left_out(
    log_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that has just begun, or that failed before its first iteration was completed."""
    shutil.copytree(log_root, tmp_path / "logs")
    one, two, _ = sorted((tmp_path / "logs").glob("*/*"))
    (two / "metrics.jsonl").write_text('{"event": "end", "how": "failed"}\n')
    main([str(tmp_path / "logs"), "--out", str(tmp_path / "curves.png")])
    said = capsys.readouterr()
    assert said.out.splitlines()[:2] == ["num_envs 64: to iteration 4", "num_envs 32: to iteration 5"]
    assert said.err == f"warning: {two}: is left out, because it has no completed iteration yet\n"
    with pytest.raises(SystemExit) as stop:
        main([str(two)])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"plot: {two}: no run has a completed iteration yet\n"

    (one.parent / "latest").symlink_to(one.name)  # is not another seed
    main([str(tmp_path / "logs"), "--out", str(tmp_path / "curves.png")])
    assert capsys.readouterr().out.splitlines()[0] == "num_envs 64: to iteration 4"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "runs come first"),
        (["{root}/nothing"], "nothing: no such run directory"),
        (["{empty}"], "holds no run"),
        (["{root}", "--y", "mean_rewards"], "--y mean_rewards: no run has such numbers; did you mean mean_reward?"),
        (["{root}", "--y", "mean_rewards", "--y", "loss/value"], "--y mean_rewards: no run has such numbers"),
        (["{root}", "--y"], "--y: give at least one metric, such as mean_reward"),
        (["{root}", "--out", "curves.jpg"], "--out curves.jpg: give a name that ends in .png or .svg"),
        (["{root}", "--out", "/proc/curves.png"], "--out /proc/curves.png: cannot be written"),
        (["{root}", "--out", "nowhere/curves.png"], "--out nowhere/curves.png: the folder nowhere does not exist"),
        (["{root}", "--x", "steps"], "--x"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_line(
    log_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([argument.format(root=log_root, empty=tmp_path) for argument in arguments])
    assert stop.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("plot: ")
    assert line in said
