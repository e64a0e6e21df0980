"""Camera images become pictures, and stand beside the world."""

from pathlib import Path

import av
import numpy as np
import pytest
import torch

from mjtrain.config import CameraConfig
from mjtrain.evaluation.recorder import Recorder
from mjtrain.sim.drawing.render_worker import Tiles
from mjtrain.sim.drawing.video import LABEL_HEIGHT, arrange, list_streams, scale, to_picture, write_video

RGB, DEPTH, CLASSES = list_streams(
    {"side": CameraConfig(streams=("rgb", "depth", "segmentation"), near_m=1.0, far_m=3.0, classes={"a": (".*",)})}
)


def test_the_streams_of_a_camera_have_names_for_people() -> None:
    assert [stream.label for stream in (RGB, DEPTH, CLASSES)] == ["side rgb", "side depth", "side segmentation"]


def test_rgb_is_shown_as_it_is() -> None:
    image = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4)
    assert np.array_equal(to_picture(RGB, image), image.transpose(1, 2, 0))


def test_near_is_bright_and_far_is_dark() -> None:
    picture = to_picture(DEPTH, np.array([[[1.0, 2.0, 3.0]]], dtype=np.float32))
    assert picture.tolist() == [[[255] * 3, [128] * 3, [0] * 3]]


def test_each_class_has_a_colour() -> None:
    picture = to_picture(CLASSES, np.arange(13, dtype=np.uint8)[None, None])
    assert picture.shape == (1, 13, 3)
    colors = [tuple(color) for color in picture[0].tolist()]
    assert colors[0] == (0, 0, 0)
    assert len(set(colors[:11])) == 11
    assert colors[11] == colors[1], "there are ten colours"


def test_pixels_become_squares() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (3, 4, 3), dtype=np.uint8)
    large = scale(picture, 13, 11)
    assert large.shape == (9, 12, 3)
    assert np.array_equal(large[1::3, 1::3], picture)
    assert scale(large, 5, 100).shape == (3, 4, 3), "whole pixels are left out of what is too large"


@pytest.mark.parametrize(
    ("sizes", "columns", "shown"),
    [
        ([(32, 32)], 1, (160, 160)),
        ([(32, 32)] * 2, 1, (96, 96)),
        ([(32, 32)] * 3, 1, (64, 64)),
        ([(32, 32)] * 8, 2, (32, 32)),
        ([(64, 48), (32, 32)], 1, (128, 96)),
        ([(640, 480)], 1, (160, 120)),
    ],
)
def test_tiles_fit_beside_the_world(sizes: list[tuple[int, int]], columns: int, shown: tuple[int, int]) -> None:
    layout = arrange((320, 240), sizes)
    assert layout.columns == columns
    first = scale(np.zeros((sizes[0][1], sizes[0][0], 3)), *layout.cell)
    assert (first.shape[1], first.shape[0]) == shown
    assert layout.width <= 160
    assert layout.width % 2 == 0
    places = [layout.place(number) for number in range(len(sizes))]
    for (left, top), (width, height) in zip(places, sizes, strict=True):
        tile = scale(np.zeros((height, width, 3)), *layout.cell)
        assert top >= LABEL_HEIGHT
        assert left + tile.shape[1] <= layout.width
        assert top + tile.shape[0] <= 240
    assert len(set(places)) == len(sizes)


def test_images_travel_with_the_positions_and_stand_beside_them() -> None:
    qpos, rgb = torch.zeros(2, 1), torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    recorder = Recorder(qpos, step_dt=0.04, length_s=0.12, world=1, images={RGB: rgb})
    recorder.begin(0)
    for step in range(3):
        qpos[1], rgb[1] = step, 50 * step
        recorder.after_step()
    rgb[1] = 7
    clip = recorder.take()
    assert clip.qpos[:, 0].tolist() == [0, 1, 2]
    assert clip.images[RGB].shape == (3, 3, 4, 4)
    assert clip.images[RGB][:, 0, 0, 0].tolist() == [0, 50, 100]

    tiles = Tiles((32, 32), list(clip.images), list(clip.images.values()))
    world = np.full((32, 32, 3), 9, dtype=np.uint8)
    picture = tiles.add(world, 2)
    assert picture.shape == (32, 32 + tiles.width, 3)
    assert np.array_equal(picture[:, :32], world)
    assert (picture[:, 32:] == 100).all(axis=2).sum() == 16 * 16, "four by four pixels, each four by four"
    assert not (tiles.add(world, 0)[:, 32:] == 100).all(axis=2).any()


def test_without_cameras_a_picture_stays_as_it_is() -> None:
    world = np.zeros((32, 32, 3), dtype=np.uint8)
    assert Tiles((32, 32), [], []).add(world, 0) is world


@pytest.mark.parametrize("fps", [0.417, 2.5, 100 / 6, 25.000000001])
def test_a_video_lasts_as_long_as_what_it_shows(fps: float, tmp_path: Path) -> None:
    write_video([np.zeros((16, 16, 3), dtype=np.uint8)] * 5, tmp_path / "video.mp4", fps)
    with av.open(tmp_path / "video.mp4") as file:
        (stream,) = file.streams.video
        assert stream.duration is not None
        assert stream.time_base is not None
        assert float(stream.duration * stream.time_base) == pytest.approx(5 / fps)
