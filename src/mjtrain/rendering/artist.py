"""The process that draws: reads orders from its standard input, a line of JSON each, and answers in the same way.

It runs only when no one else wants the cores, unless it is told to hurry, and dies with the process that started it.
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
from PIL import Image

from mjtrain.launcher.processes import die_with_parent

GIF_STRIDE = 2
"""Every so many frames go into the GIF that TensorBoard shows, at half the size."""


def main() -> None:
    """Draw what is ordered until standard input ends."""
    model_file, parent, hurry = sys.argv[1:]
    die_with_parent(int(parent))
    if not int(hurry):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        model = mujoco.MjModel.from_binary_path(model_file)
        Path(model_file).unlink()
        for line in sys.stdin:
            order = json.loads(line)
            begin = time.process_time()
            draw(model, order)
            cpu_s = time.process_time() - begin
            print(json.dumps({"done": order["name"], "cpu_s": cpu_s}), flush=True)  # noqa: T201
    except Exception as error:  # whatever a driver, a disk or an encoder may say
        print(json.dumps({"error": f"{type(error).__name__}: {error}".splitlines()[0]}), flush=True)  # noqa: T201
        os._exit(1)  # a broken context raises once more when it is collected


def draw(model: mujoco.MjModel, order: dict[str, Any]) -> None:
    """Draw and encode one clip.

    Args:
        model: Robot and ground.
        order: qpos, a file of positions that is deleted; out, the MP4 file; gif, another or None; fps, width, height,
            and shadows, whether to draw them.
    """
    positions = np.load(order["qpos"])
    Path(order["qpos"]).unlink()
    out = Path(order["out"])
    partial = out.with_name(f".{out.name}.partial")
    frames = []
    model.vis.quality.offsamples = 4 if order["shadows"] else 0
    with mujoco.Renderer(model, order["height"], order["width"]) as renderer, av.open(partial, "w", "mp4") as file:
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = order["shadows"]
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = order["shadows"]
        stream = file.add_stream("libx264", rate=round(order["fps"]), options={"preset": "veryfast", "crf": "28"})
        stream.width, stream.height, stream.pix_fmt = order["width"], order["height"], "yuv420p"
        stream.codec_context.thread_count = 1
        data = mujoco.MjData(model)
        camera = 0 if model.ncam else -1
        for index, qpos in enumerate(positions):
            data.qpos[:] = qpos
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_camlight(model, data)
            renderer.update_scene(data, camera)
            picture = renderer.render()
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
            if order["gif"] is not None and index % GIF_STRIDE == 0:
                frames.append(Image.fromarray(np.ascontiguousarray(picture[::2, ::2])))
        file.mux(stream.encode(None))
    if frames:
        rest = {"append_images": frames[1:], "duration": 1000 * GIF_STRIDE / order["fps"], "loop": 0}
        frames[0].save(order["gif"], "GIF", save_all=True, **rest)
    partial.replace(out)


if __name__ == "__main__":
    main()
