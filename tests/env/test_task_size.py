"""What the dry step measures of a task is what its tensors take."""

import pytest

from mjtrain.training.preflight.dry_step import check_task
from support.vision import CARTPOLE, make_vision_env, see

PIXELS = 32 * 32
RAY_CASTER = (4 + 4 + 8) * PIXELS
"""Packed colours, distances and pairs of numbers, before they become images."""
FRAMES = (3 + 4 + 1) * PIXELS


def test_a_task_without_cameras() -> None:
    size = check_task(CARTPOLE)
    assert (sum(size.group_bytes.values()), size.image_bytes, size.history_bytes, size.num_actions) == (16, 0, 0, 1)


@pytest.mark.process  # the ray caster's kernels are loaded
def test_images_with_their_dtypes_frames_and_history() -> None:
    size = check_task(make_vision_env())
    assert sum(size.group_bytes.values()) == 16 + 9 * PIXELS
    assert size.image_bytes == FRAMES + RAY_CASTER
    assert size.history_bytes == pytest.approx(9 * PIXELS, abs=16)
    depth = check_task(make_vision_env({"image": {"depth": see("depth", delay=(0, 2))}}, size=16, interval=2))
    assert sum(depth.group_bytes.values()) == 16 + 4 * 16 * 16
    assert depth.image_bytes == pytest.approx((2 * FRAMES + RAY_CASTER) / 4, abs=16), "frames are kept between two"
    assert depth.history_bytes == pytest.approx(3 * 4 * 16 * 16, abs=16)
