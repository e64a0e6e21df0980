"""Pictures that somebody else has drawn, as a video."""

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np

from mjtrain.runtime.files import replacing


def write_video(pictures: Sequence[np.ndarray], out: Path, fps: float) -> None:
    """Encode pictures as MP4; the file appears when it is complete.

    Args:
        pictures: uint8, shape (height, width, 3) each. An odd row or column at the end is left out.
    """
    height, width = (size - size % 2 for size in pictures[0].shape[:2])
    with replacing(out) as whole, av.open(whole, "w", "mp4") as file:
        stream = file.add_stream("libx264", rate=round(fps), options={"preset": "veryfast", "crf": "23"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in pictures:
            even = np.ascontiguousarray(picture[:height, :width])
            file.mux(stream.encode(av.VideoFrame.from_ndarray(even, "rgb24")))
        file.mux(stream.encode(None))
