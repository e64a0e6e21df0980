"""Videos of real trainings, drawn by the real process."""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import mjtrain
from mjtrain.cli.play import main as play
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.processes import list_descendants
from mjtrain.sim.drawing.renderer import RenderError, VideoRenderer
from mjtrain.sim.drawing.video import Clip
from support.commands import start
from support.frozen import dead_file_system
from support.machine import patience, read_proc, wait_until
from support.videos import count_changes, decode, needs_drawing
from support.vision import make_vision_env, make_vision_task

pytestmark = needs_drawing
TIMES = ("time", "second", "video")


def train(log_root: Path, **options: Any) -> Path:
    launch = mjtrain.LaunchConfig(gpu_ids=None, seed=3)
    defaults = {"num_envs": 16, "max_iterations": 8, "logger": "none"}
    return mjtrain.train("Cartpole-Balance", log_root=str(log_root), launch=launch, **{**defaults, **options}).run_dir


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines() if '"event"' not in line]


def test_a_recorded_training_has_the_same_metrics(tmp_path: Path) -> None:
    run_dir = train(tmp_path, video=True, video_interval=4, video_length_s=1.0, logger="tensorboard")
    assert sorted(path.name for path in (run_dir / "videos").iterdir()) == ["iteration_0.mp4", "iteration_4.mp4"]
    for path in (run_dir / "videos").iterdir():
        frames = decode(path)
        assert frames.shape == (25, 240, 320, 3)
        assert count_changes(frames) > 15, "the pole of a beginner keeps falling"
        assert np.ptp(frames[0], axis=(0, 1)).max() > 100, "robot and background differ"
    rows = read_metrics(run_dir)
    assert all(row["video_time_s"] >= 0 for row in rows)
    events = EventAccumulator(str(run_dir)).Reload()
    pictures = events.Images("video")
    assert [picture.step for picture in pictures] == [0, 4]
    assert all(picture.encoded_image_string.startswith(b"GIF8") for picture in pictures)

    plain = read_metrics(train(tmp_path))
    for row, other in zip(rows, plain, strict=True):
        learned = {key: value for key, value in row.items() if not any(word in key for word in TIMES)}
        assert learned == {key: other[key] for key in learned}
    assert "video_time_s" not in plain[0]


def test_without_a_gpu_to_draw_on_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "99")
    run_dir = train(tmp_path, video=True, video_interval=2, video_length_s=0.5)
    said = capfd.readouterr().out
    assert said.count("--video: ") == 1
    assert "MUJOCO_EGL_DEVICE_ID" in said
    assert "training continues without videos" in said
    assert list((run_dir / "videos").iterdir()) == []
    assert len(read_metrics(run_dir)) == 8
    (run_dir / "videos").rmdir()
    (run_dir / "videos").touch()
    train(tmp_path, video=True, video_interval=2, max_iterations=9, resume=str(run_dir))
    assert capfd.readouterr().out.count("training continues without videos") == 1
    assert len(read_metrics(run_dir)) == 9


def test_the_process_that_draws_dies_with_the_training(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mjtrain.cli.train", "Cartpole-Balance", "--gpu-ids", "None", "--num-envs", "16"]
    command += ["--video", "--max-iterations", "100000", "--num-threads", "1", "--log-root", str(tmp_path)]
    with (tmp_path / "said").open("w") as said:
        training = start(command, cwd=tmp_path, environ=os.environ, stdout=said, stderr=said)
    try:
        wait_until(
            lambda: training.poll() is not None or any(tmp_path.glob("*/*/videos/iteration_0.mp4")), "a video is there"
        )
        below = list_descendants(training.pid)
        (worker,) = [pid for pid in below if b"render_worker" in read_proc(pid, "cmdline")]
    finally:
        os.kill(training.pid, signal.SIGKILL)
        training.wait()
    wait_until(lambda: not is_alive(worker), "the process that draws has gone")


def is_alive(pid: int) -> bool:
    return read_proc(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"], [b"X"])


def draw(renderer: VideoRenderer, out: Path) -> None:
    clip = Clip(qpos=np.zeros((2, 2), dtype=np.float32), fps=25, iteration=0)
    renderer.submit(clip, out, gif=False, size=(320, 240), shadows=False)
    renderer.finish(patience(60))


def test_what_the_process_says_before_it_ends_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "model.mjb").write_bytes(b"no model")
    renderer = VideoRenderer(tmp_path / "model.mjb", {"MUJOCO_GL": "egl"}, hurry=True)
    try:
        with pytest.raises(FileNotFoundError):  # a run directory that was renamed is not made again
            draw(renderer, tmp_path / "gone" / "videos" / "out.mp4")
        with pytest.raises(RenderError, match="Error"):
            draw(renderer, tmp_path / "out.mp4")
    finally:
        renderer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_is_gone_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    renderer = VideoRenderer(tmp_path / "model.mjb", {"MUJOCO_GL": "egl"}, hurry=True)
    with dead_file_system(tmp_path):
        renderer.close()
    assert renderer._process.poll() is not None


def test_a_picture_may_be_larger_than_the_buffer_of_the_file(tmp_path: Path) -> None:
    """`<global offwidth>` is about MuJoCo's own tools."""
    visual = '<visual><global offwidth="64" offheight="48"/></visual>'
    slides = '<joint type="slide"/><joint type="slide" axis="1 0 0"/>'
    xml = f'<mujoco>{visual}<worldbody><body>{slides}<geom size="1"/></body></worldbody></mujoco>'
    mujoco.mj_saveModel(mujoco.MjModel.from_xml_string(xml), str(tmp_path / "model.mjb"))
    renderer = VideoRenderer(tmp_path / "model.mjb", {"MUJOCO_GL": "egl"}, hurry=True)
    try:
        draw(renderer, tmp_path / "out.mp4")
    finally:
        renderer.close()
    assert decode(tmp_path / "out.mp4").shape == (2, 240, 320, 3)


def test_play_makes_a_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fall.mp4"
    play(["Cartpole-Balance", "--policy", "zero", "--video", str(out), "--video-length-s", "0.8"])
    assert capsys.readouterr().out.strip() == str(out)
    frames = decode(out)
    assert frames.shape == (20, 360, 480, 3)
    assert count_changes(frames) > 10


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--video", "out.avi"], "--video out.avi: give a name that ends in .mp4"),
        (["--video", "nowhere/out.mp4"], "--video nowhere/out.mp4: the folder nowhere does not exist"),
        (["--video", "out.mp4", "--viewer", "web"], "--video: leave out --viewer and --replay, which write no file"),
        (["--html", "out.html", "--replay", "x.npz"], "--html: leave out --viewer and --replay, which write no file"),
        (["--record", f"{__file__}/x"], f"--record {__file__}/x: cannot be written"),
        (["--video", "out.mp4", "--video-length-s", "0"], "--video-length-s 0: must be more than 0"),
        (
            ["--video", "out.mp4", "--video-length-s", "inf"],
            "--video-length-s inf: must be more than 0 and at most",
        ),
        (["--video-length-s", "5"], "--video-length-s 5.0: needs --video FILE"),
        (["--json", "--video", "out.mp4"], "--json: prints a table; leave out viewers, files and replays"),
        (["--html-episodes", "5"], "--html-episodes 5: needs --html FILE"),
        (["--video", "out.mp4", "--num-envs", "4"], "--num-envs 4: has no effect with --video; leave it out"),
        (["--html", "out.html", "--episodes", "4"], "--episodes 4: has no effect with --html; leave it out"),
        (["--viewer", "web", "--episodes", "4"], "--episodes 4: has no effect with --viewer web; leave it out"),
        (["--checkpoint", ""], "--checkpoint '': is empty; give a value, or leave it out"),
        (["--log-root="], "--log-root '': is empty; give a value, or leave it out"),
        (["--follow"], "--follow: needs --viewer"),
        (["--viewer-port", "1"], "--viewer-port 1: needs --viewer web"),
        (["--viewer", "web", "--viewer-port", "99999"], "--viewer-port 99999: must be from 0 to 65535"),
        (["--viewer", "web", "--viewer-host", "203.0.113.1"], "--viewer-host 203.0.113.1: is not an address of this"),
        (["--viewer", "web", "--viewer-host", "no..host"], "--viewer-host no..host: is not an address of this machine"),
    ],
)
def test_play_says_what_is_wrong(flags: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        play(["Cartpole-Balance", "--policy", "zero", *flags])
    assert stop.value.code == 2
    assert line in capsys.readouterr().err


def test_a_port_that_is_taken_and_has_no_next_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 65535)), pytest.raises(SystemExit) as stop:
        play(["Cartpole-Balance", "--policy", "zero", "--viewer", "web", "--viewer-port", "65535"])
    assert stop.value.code == 2
    assert "--viewer-port 65535: is taken; give another one, or 0 for any that is free" in capsys.readouterr().err


def test_train_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--video-interval 0: must be at least 1"):
        train(tmp_path, video=True, video_interval=0)
    assert list(tmp_path.iterdir()) == []


def test_videos_show_what_the_policy_saw(tmp_path: Path) -> None:
    launch = mjtrain.LaunchConfig(gpu_ids=None, seed=3)
    task = make_vision_task(make_vision_env(size=16))
    run_dir = mjtrain.train(
        task,
        num_envs=4,
        max_iterations=4,
        log_root=str(tmp_path),
        logger="none",
        launch=launch,
        video=True,
        video_length_s=0.5,
    ).run_dir
    play([str(run_dir), "--video", str(tmp_path / "play.mp4"), "--video-length-s", "0.5"])
    for path, (width, height) in (
        (run_dir / "videos" / "iteration_0.mp4", (320, 240)),
        (tmp_path / "play.mp4", (480, 360)),
    ):
        frames = decode(path)
        tiles = frames[:, :, width:]
        assert frames.shape[1] == height
        assert tiles.shape[2] >= 2 * 16
        assert (tiles[0].max(axis=2) > 150).sum() > 32 * 32, "the sky of the RGB image"
        assert count_changes(tiles) > 2
    assert not [path for path in (run_dir / "videos").iterdir() if path.suffix != ".mp4"]
