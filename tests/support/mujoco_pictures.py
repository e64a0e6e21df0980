"""Pictures that MuJoCo's own renderer draws, in a separate process: `python -m support.mujoco_pictures JOBS`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np

from mjtrain.sim.drawing.backend import has_library, resolve_backend
from support.machine import patience

SIZE = 64
"""Columns and rows."""


def draw_with_mujoco(scenes: dict[str, tuple[mujoco.MjModel, str, np.ndarray]], folder: Path) -> dict[str, dict]:
    """Draw cameras with `mujoco.Renderer`, without shadows, reflections and sites.

    Args:
        scenes: Model, name of the camera and qpos, shape (num_poses, nq), by name.
        folder: For the files in between.

    Returns:
        By name of the scene: rgb, shape (num_poses, SIZE, SIZE, 3); depth in m, (num_poses, SIZE, SIZE); and object ids
        and types, (num_poses, SIZE, SIZE, 2).
    """
    jobs = []
    for name, (model, camera, qpos) in scenes.items():
        files = {kind: str(folder / f"{name}.{kind}") for kind in ("mjb", "npy", "npz")}
        mujoco.mj_saveModel(model, files["mjb"], None)
        np.save(files["npy"], qpos)
        jobs.append({**files, "camera": camera})
    environ = {**os.environ, "MUJOCO_GL": resolve_backend(os.environ, has_library), "LP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "support.mujoco_pictures", json.dumps(jobs)]
    subprocess.run(command, env=environ, cwd=Path(__file__).parents[1], check=True, timeout=patience(60))
    return {name: dict(np.load(job["npz"])) for name, job in zip(scenes, jobs, strict=True)}


def _draw(model: mujoco.MjModel, camera: str, poses: np.ndarray) -> dict[str, np.ndarray]:
    model.vis.quality.offsamples = 0  # a pixel is what is seen at its centre
    data = mujoco.MjData(model)
    pictures = {"rgb": [], "depth": [], "objects": []}
    option = mujoco.MjvOption()
    option.sitegroup[:] = 0  # marks, not things
    with mujoco.Renderer(model, SIZE, SIZE) as renderer:
        for qpos in poses:
            data.qpos[:] = qpos
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_camlight(model, data)
            renderer.update_scene(data, camera, option)
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
            pictures["rgb"].append(renderer.render())
            renderer.enable_depth_rendering()
            pictures["depth"].append(renderer.render())
            renderer.disable_depth_rendering()
            renderer.enable_segmentation_rendering()
            pictures["objects"].append(renderer.render())
            renderer.disable_segmentation_rendering()
    return {name: np.stack(images) for name, images in pictures.items()}


def main() -> None:
    for job in json.loads(sys.argv[1]):
        drawn = _draw(mujoco.MjModel.from_binary_path(job["mjb"]), job["camera"], np.load(job["npy"]))
        np.savez(job["npz"], allow_pickle=False, **drawn)


if __name__ == "__main__":
    main()
