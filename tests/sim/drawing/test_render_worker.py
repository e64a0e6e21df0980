import os
import sys
import tempfile
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import RobotConfig
from mjtrain.env.catalog import load_task
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.drawing.backend import LIBRARIES, drawing_environ
from mjtrain.sim.drawing.render_worker import set_quality
from mjtrain.sim.drawing.renderer import FrameRenderer, VideoRenderer
from mjtrain.sim.drawing.scene import crop_ground, make_scene
from mjtrain.sim.drawing.video import Clip
from mjtrain.sim.robots.model import load_model, robot_only
from mjtrain.sim.robots.robot import save_model
from support.frozen import full_disk
from support.machine import patience
from support.scenes import load_hanging
from support.videos import decode, needs_drawing


@pytest.mark.parametrize(("file", "shadows", "used"), [(4096, True, 2048), (1024, True, 1024), (4096, False, 0)])
def test_a_shadow_map_is_not_finer_than_can_be_seen(file: int, shadows: bool, used: int) -> None:
    model = load_hanging().compile()
    model.vis.quality.shadowsize = file
    set_quality(model, shadows=shadows)
    assert model.vis.quality.shadowsize == used


def height_at(model: mujoco.MjModel, x: float, y: float) -> float | None:
    data = mujoco.MjData(model)
    data.qpos[:3] = [x, y, 50.0]
    mujoco.mj_kinematics(model, data)
    group = np.ones(6, dtype=np.uint8)
    distance = mujoco.mj_ray(model, data, [x, y, 10.0], [0, 0, -1], group, 1, -1, np.zeros(1, dtype=np.int32))
    return None if distance < 0 else 10.0 - distance


def test_the_ground_that_is_kept_is_the_same_ground() -> None:
    model = load_model(load_task("Quadruped-Velocity-Rough").env)
    track = np.zeros((2, model.nq), dtype=np.float32)
    track[:, :2] = [[-6.3, 10.2], [-4.1, 12.0]]
    cropped = crop_ground(model, track)
    assert cropped.hfield_nrow[0] * cropped.hfield_ncol[0] < 0.1 * model.hfield_nrow[0] * model.hfield_ncol[0]
    heights = []
    for x in np.linspace(-10.0, -0.5, 12):
        for y in np.linspace(6.5, 15.7, 12):
            heights.append(height_at(model, x, y))
            assert height_at(cropped, x, y) == pytest.approx(heights[-1], abs=1e-5)
    assert np.ptp(np.array(heights)) > 0.05
    assert height_at(cropped, 5.0, 10.0) is None
    assert height_at(model, 5.0, 10.0) is not None


def test_other_grounds_stay_as_they_are() -> None:
    model = load_model(load_task("Cartpole-Balance").env)
    assert crop_ground(model, np.zeros((2, model.nq))) is model


@pytest.mark.parametrize("turn", ["1 0 0 0", "0.9 0 0 0.4358899"])
@pytest.mark.parametrize("name", ["", "root"])
def test_a_ground_that_is_elsewhere_is_cropped_where_the_robot_is(tmp_path: Path, turn: str, name: str) -> None:
    field = '<hfield name="h" nrow="41" ncol="41" size="20 20 1 0.1"/>'
    ground = f'<geom type="hfield" hfield="h" pos="40 0 0.2" quat="{turn}"/>'
    ball = '<body><freejoint/><geom size="0.1"/></body>'
    leg = '<body><joint/><geom size="0.1" pos="0.1 0 0"/></body>'
    robot = f'<body pos="40 0 1"><freejoint{name and f" name={name!r}"}/><geom size="0.1"/>{leg}</body>'
    file = tmp_path / "robot.xml"
    file.write_text(f"<mujoco><asset>{field}</asset><worldbody>{ground}{ball}{robot}</worldbody></mujoco>")
    model = mujoco.MjModel.from_xml_path(str(file))
    cropped = crop_ground(model, model.qpos0[None])
    assert height_at(cropped, 41.0, 1.0) == pytest.approx(height_at(model, 41.0, 1.0))
    assert (cropped is model) == (turn != "1 0 0 0")
    assert make_scene(model, model.qpos0).follows == 1


@needs_drawing
def test_a_driver_may_print_what_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(r"import os; os.write(1, b'Treiber f\xfcr die Grafik fehlt\n')")
    config = robot_only(RobotConfig(spec=load_hanging))
    save_model(config, tmp_path / "model.mjb")
    environ = drawing_environ("cpu", {}) | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    videos = VideoRenderer(tmp_path / "model.mjb", environ, hurry=True)
    try:
        clip = Clip(qpos=np.zeros((2, 1), dtype=np.float32), fps=10.0, iteration=0)
        videos.submit(clip, tmp_path / "clip.mp4", gif=False, size=(64, 64), shadows=False)
        assert [video.path.name for video in videos.finish(patience(60))] == ["clip.mp4"]
    finally:
        videos.close()


def test_pictures_without_a_library_name_their_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIBRARIES, "osmesa", "libMissing.so.8")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(RequestError, match=r"^render_mode='rgb_array': MuJoCo cannot .* found no libMissing\.so\.8: "):
        FrameRenderer(robot_only(RobotConfig(spec=load_hanging)))


def test_a_full_disk_is_said_and_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = robot_only(RobotConfig(spec=load_hanging))
    with pytest.raises(OSError, match="No space left"):
        save_model(config, Path("/dev/full"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with full_disk(1000), pytest.raises(OSError, match="File too large"):
        FrameRenderer(config)
    assert not list(tmp_path.iterdir())


@needs_drawing
def test_videos_need_no_other_priority(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\ndef refuse(*_): raise PermissionError(1, 'Operation not permitted')\nos.sched_setscheduler = refuse"
    )
    config = robot_only(RobotConfig(spec=load_hanging))
    save_model(config, tmp_path / "model.mjb")
    environ = drawing_environ("cpu", {}) | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    videos = VideoRenderer(tmp_path / "model.mjb", environ)
    try:
        clip = Clip(qpos=np.zeros((2, 1), dtype=np.float32), fps=10.0, iteration=0)
        videos.submit(clip, tmp_path / "clip.mp4", gif=False, size=(64, 64), shadows=False)
        assert len(videos.finish(patience(60))) == 1
    finally:
        videos.close()


@needs_drawing
def test_processes_that_draw_import_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "random", "statistics", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError(__file__)")
    monkeypatch.chdir(tmp_path)
    config = robot_only(RobotConfig(spec=load_hanging))
    frames = FrameRenderer(config)
    save_model(config, tmp_path / "model.mjb")
    videos = VideoRenderer(tmp_path / "model.mjb", drawing_environ("cpu", {}), hurry=True)
    try:
        assert len(frames.render(torch.zeros(1, 1))) == 1
        clip = Clip(qpos=np.zeros((2, 1), dtype=np.float32), fps=10.0, iteration=0)
        videos.submit(clip, tmp_path / "clip.mp4", gif=False, size=(64, 64), shadows=False)
        assert len(videos.finish(patience(60))) == 1
    finally:
        frames.close()
        videos.close()


@needs_drawing
def test_pictures_and_videos_have_mocap_bodies_where_keyframe_home_has_them(tmp_path: Path) -> None:
    config = robot_only(RobotConfig(spec=load_hanging))
    frames = FrameRenderer(config)
    save_model(config, tmp_path / "model.mjb")
    videos = VideoRenderer(tmp_path / "model.mjb", drawing_environ("cpu", {}), hurry=True)
    try:
        (picture,) = frames.render(torch.zeros(1, 1))
        clip = Clip(qpos=np.zeros((2, 1), dtype=np.float32), fps=10.0, iteration=0)
        videos.submit(clip, tmp_path / "clip.mp4", gif=False, size=(64, 64), shadows=False)
        videos.finish(patience(60))
    finally:
        frames.close()
        videos.close()
    for image in (picture, decode(tmp_path / "clip.mp4")[0]):
        red, _, blue = image[image.shape[0] // 2, image.shape[1] // 2].astype(int)
        assert red > blue + 50, "the floor is blue"
