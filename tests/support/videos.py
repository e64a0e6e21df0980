from pathlib import Path

import av
import numpy as np
import pytest

from mjtrain.runtime.errors import RequestError
from mjtrain.sim.drawing.backend import drawing_environ


def can_draw() -> bool:
    try:
        drawing_environ("cpu", {})
    except RequestError:
        return False
    return True


needs_drawing = pytest.mark.skipif(not can_draw(), reason="MuJoCo cannot draw here: neither libEGL nor libOSMesa")


def decode(path: Path) -> np.ndarray:
    """Frames of a video. Shape (frames, height, width, 3)."""
    with av.open(path) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]).astype(int)


def count_changes(frames: np.ndarray) -> int:
    """How many frames differ visibly from the one before."""
    return int(((np.abs(np.diff(frames, axis=0)).max(axis=3) > 40).sum(axis=(1, 2)) > 5).sum())
