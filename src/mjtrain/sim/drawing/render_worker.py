"""The render process: reads jobs from its standard input, one line of JSON each, and answers in the same way.

It only uses CPU time that no other process wants, unless it is told to hurry. It dies with the process that started
it.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import av
import mujoco
import numpy as np
from PIL import Image, ImageDraw

from mjtrain.runtime.files import replacing
from mjtrain.runtime.processes import die_with_parent
from mjtrain.sim.drawing.ghost import GhostGeoms
from mjtrain.sim.drawing.scene import crop_ground, draw_pose, enlarge_buffer
from mjtrain.sim.drawing.tiles import LABEL_HEIGHT, CameraStream, arrange, scale, to_picture
from mjtrain.sim.robots.start import make_start

GIF_STRIDE = 2
"""Every second frame goes into the GIF that TensorBoard shows, at half the size."""

SHADOW_MAP = 2048
"""Pixels of the shadow map along each side, at most: drawing MuJoCo's 4096 takes longer than all else without a GPU."""


def main() -> None:
    """Render jobs until standard input ends."""
    model_file, parent, hurry = sys.argv[1:]
    die_with_parent(int(parent))
    if not int(hurry):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        model = mujoco.MjModel.from_binary_path(model_file)
        Path(model_file).unlink()
        accounted_s = 0.0
        for line in sys.stdin:
            job = json.loads(line)
            draw(model, job)
            cpu_s = time.process_time()  # since the process started, so that the first video includes the start-up
            print(json.dumps({"done": job["name"], "cpu_s": cpu_s - accounted_s}), flush=True)  # noqa: T201
            accounted_s = cpu_s
    except Exception as error:  # of the driver, the disk or the encoder
        print(json.dumps({"error": f"{type(error).__name__}: {error}".splitlines()[0]}), flush=True)  # noqa: T201
        os._exit(1)  # a broken context raises again when it is garbage-collected


def draw(model: mujoco.MjModel, job: dict[str, Any]) -> None:
    """Render and encode one clip.

    Args:
        job: recorded, a file of qpos, images_0, images_1, ..., and of ghost if there is one, which is deleted; streams,
            the `CameraStream` of each of the images; out, the MP4 file; gif, the GIF file or None; fps, width and
            height; and shadows, whether to render them.
    """
    with np.load(job["recorded"], allow_pickle=False) as recorded:
        positions, ghosts = recorded["qpos"], recorded.get("ghost")
        images = [recorded[f"images_{number}"] for number in range(len(job["streams"]))]
    model = crop_ground(model, positions)
    ghost = None if ghosts is None else GhostGeoms(model)
    Path(job["recorded"]).unlink()
    tiles = Tiles((job["width"], job["height"]), [CameraStream(**stream) for stream in job["streams"]], images)
    out = Path(job["out"])
    frames = []
    enlarge_buffer(model, job["width"], job["height"])
    set_quality(model, shadows=job["shadows"])
    with (
        mujoco.Renderer(model, job["height"], job["width"]) as renderer,
        replacing(out) as whole,
        av.open(whole, "w", "mp4") as file,
    ):
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = job["shadows"]
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = job["shadows"]
        stream = file.add_stream("libx264", rate=round(job["fps"]), options={"preset": "veryfast", "crf": "28"})
        stream.width, stream.height, stream.pix_fmt = job["width"] + tiles.width, job["height"], "yuv420p"
        stream.codec_context.thread_count = 1
        data = make_start(model)
        for index, qpos in enumerate(positions):
            draw_pose(renderer, data, qpos)
            if ghost is not None and ghosts is not None:
                ghost.add(renderer.scene, ghosts[index])
            picture = tiles.add(renderer.render(), index)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
            if job["gif"] is not None and index % GIF_STRIDE == 0:
                frames.append(Image.fromarray(np.ascontiguousarray(picture[::2, ::2])))
        file.mux(stream.encode(None))
        if frames:
            rest = {"append_images": frames[1:], "duration": 1000 * GIF_STRIDE / job["fps"], "loop": 0}
            frames[0].save(job["gif"], "GIF", save_all=True, **rest)


def set_quality(model: mujoco.MjModel, *, shadows: bool) -> None:
    """Antialias and render shadows, as finely as a video of this size can show; or neither."""
    quality = model.vis.quality
    quality.offsamples = 4 if shadows else 0
    quality.shadowsize = min(quality.shadowsize, SHADOW_MAP) if shadows else 0


class Tiles:
    """What the policy saw, on the right of the world."""

    def __init__(self, main: tuple[int, int], streams: list[CameraStream], images: list[np.ndarray]) -> None:
        """Lay the tiles out beside a main picture of some width and height.

        There is an array of images per stream. Shape (frames, channels, height, width).
        """
        self._streams, self._images = streams, images
        self.width = 0
        """Columns of pixels that are added to a picture."""
        if streams:
            self._layout = arrange(main, [(frames.shape[3], frames.shape[2]) for frames in images])
            self.width = self._layout.width
            self._background = self._write_labels(main[1])

    def add(self, picture: np.ndarray, frame: int) -> np.ndarray:
        """Return a picture with the tiles of a frame beside it. Shape (height, width, 3)."""
        if not self._streams:
            return picture
        panel = self._background.copy()
        for number, (stream, frames) in enumerate(zip(self._streams, self._images, strict=True)):
            tile = scale(to_picture(stream, frames[frame]), *self._layout.cell)
            left, top = self._layout.place(number)
            panel[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
        return np.concatenate([picture, panel], axis=1)

    def _write_labels(self, height: int) -> np.ndarray:
        panel = Image.new("RGB", (self.width, height))
        pen = ImageDraw.Draw(panel)
        for number, stream in enumerate(self._streams):
            left, top = self._layout.place(number)
            pen.text((left + 1, top - LABEL_HEIGHT), stream.label, fill="white", font_size=10)
        return np.asarray(panel)


if __name__ == "__main__":
    main()
