"""The process that draws: reads orders from its standard input, a line of JSON each, and answers in the same way.

It runs only when no one else wants the cores, unless it is told to hurry, and dies with the process that started it.
"""

import copy
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

from mjtrain.launcher.ipc.processes import die_with_parent

_AROUND_M = 4.0
"""How much ground is drawn around the robot's way, in m."""

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
        accounted_s = 0.0
        for line in sys.stdin:
            order = json.loads(line)
            draw(model, order)
            cpu_s = time.process_time()  # since the process began, so that the first video pays for the start
            print(json.dumps({"done": order["name"], "cpu_s": cpu_s - accounted_s}), flush=True)  # noqa: T201
            accounted_s = cpu_s
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
    model = crop_ground(model, positions)
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


def crop_ground(model: mujoco.MjModel, positions: np.ndarray) -> mujoco.MjModel:
    """Keep of a generated ground what is around the robot: drawing all of it takes seconds a frame without a GPU.

    Args:
        model: Ground of one height field, fixed to the world, and a robot on a free joint; others stay as they are.
        positions: qpos over a clip. Shape (frames, nq).
    """
    grounds = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD)
    free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
    if len(grounds) != 1 or model.nhfield != 1 or not len(free) or model.geom_bodyid[grounds[0]] != 0:
        return model
    model, ground = copy.copy(model), grounds[0]
    begin = model.jnt_qposadr[free[0]]
    track = positions[:, begin : begin + 2]
    half_size = model.hfield_size[0, :2].copy()
    shape = np.array([model.hfield_ncol[0], model.hfield_nrow[0]])
    cell = 2 * half_size / (shape - 1)
    low = np.floor((track.min(axis=0) - _AROUND_M + half_size) / cell).clip(0, shape - 2).astype(int)
    high = np.ceil((track.max(axis=0) + _AROUND_M + half_size) / cell).clip(low + 1, shape - 1).astype(int)
    heights = model.hfield_data[: shape.prod()].reshape(shape[1], shape[0])
    kept = heights[low[1] : high[1] + 1, low[0] : high[0] + 1].copy()
    model.hfield_nrow[0], model.hfield_ncol[0] = kept.shape
    model.hfield_data[: kept.size] = kept.ravel()
    model.hfield_size[0, :2] = (high - low) * cell / 2
    model.geom_pos[ground, :2] += (low + high) * cell / 2 - half_size
    model.geom_sameframe[ground] = mujoco.mjtSameFrame.mjSAMEFRAME_NONE
    return model


if __name__ == "__main__":
    main()
