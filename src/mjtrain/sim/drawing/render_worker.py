"""The process that draws videos or single pictures.

It is a separate process, because drivers of OpenGL bring libraries (LLVM) that clash with those of PyTorch's compiler.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mjtrain.runtime.processes import die_with_parent
from mjtrain.sim.drawing.scene import GhostGeoms, crop_ground, draw_pose, enlarge_buffer
from mjtrain.sim.drawing.video import LABEL_HEIGHT, CameraStream, arrange, open_video, scale, to_picture
from mjtrain.sim.robots.start import make_start

GIF_STRIDE = 2
"""Every second frame goes into the GIF that TensorBoard shows, at half the size."""

SHADOW_MAP = 2048
"""Pixels of the shadow map along each side, at most: drawing MuJoCo's 4096 takes longer than all else without a GPU."""


def draw_pictures(model_file: str, width: int, height: int) -> None:
    """Read qpos from standard input and write pictures to standard output, until the input ends with the parent."""
    pictures = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is not a picture
    model = mujoco.MjModel.from_binary_path(model_file)
    Path(model_file).unlink()
    enlarge_buffer(model, width, height)
    data = make_start(model)
    with mujoco.Renderer(model, height, width) as renderer:
        while len(row := sys.stdin.buffer.read(8 * model.nq)) == 8 * model.nq:
            draw_pose(renderer, data, np.frombuffer(row))
            pictures.write(renderer.render().tobytes())
            pictures.flush()


def draw_videos(model_file: str, parent: int, hurry: int) -> None:
    """Read jobs from standard input, one line of JSON each, and answer in the same way, until the input ends.

    It only uses CPU time that no other process wants, unless it must hurry. It dies with its parent.
    """
    die_with_parent(parent)
    if not hurry:
        with contextlib.suppress(OSError):  # a sandbox may refuse it
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
    from PIL import Image  # may not be installed where only pictures are drawn

    with np.load(job["recorded"], allow_pickle=False) as recorded:
        positions, ghosts = recorded["qpos"], recorded.get("ghost")
        images = [recorded[f"images_{number}"] for number in range(len(job["streams"]))]
    model = crop_ground(model, positions)
    ghost = None if ghosts is None else GhostGeoms(model)
    Path(job["recorded"]).unlink()
    tiles = Tiles((job["width"], job["height"]), [CameraStream(**stream) for stream in job["streams"]], images)
    out, fps, (width, height) = Path(job["out"]), job["fps"], (job["width"], job["height"])
    frames = []
    enlarge_buffer(model, width, height)
    set_quality(model, shadows=job["shadows"])
    with (
        mujoco.Renderer(model, height, width) as renderer,
        open_video(out, (width + tiles.width, height), fps, crf=28, threads=1) as add,
    ):
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = job["shadows"]
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = job["shadows"]
        data = make_start(model)
        for index, qpos in enumerate(positions):
            draw_pose(renderer, data, qpos)
            if ghost is not None and ghosts is not None:
                ghost.add(renderer.scene, ghosts[index])
            picture = tiles.add(renderer.render(), index)
            add(picture)
            if job["gif"] is not None and index % GIF_STRIDE == 0:
                frames.append(Image.fromarray(np.ascontiguousarray(picture[::2, ::2])))
        if frames:
            rest = {"append_images": frames[1:], "duration": 1000 * GIF_STRIDE / fps, "loop": 0}
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
        from PIL import Image, ImageDraw

        panel = Image.new("RGB", (self.width, height))
        pen = ImageDraw.Draw(panel)
        for number, stream in enumerate(self._streams):
            left, top = self._layout.place(number)
            pen.text((left + 1, top - LABEL_HEIGHT), stream.label, fill="white", font_size=10)
        return np.asarray(panel)


if __name__ == "__main__":
    work, file, *numbers = sys.argv[1:]
    {"pictures": draw_pictures, "videos": draw_videos}[work](file, *map(int, numbers))
