"""Let mjlab's own loader read motions that `mjtrain motion convert --to mjlab` wrote, and compare all arrays.

    uv run mjtrain motion convert trot.npz for_mjlab.npz --task Quadruped-Track --to mjlab
    uv venv mjlab && uv pip install --python mjlab/bin/python mjlab
    mjlab/bin/python benchmarks/mjlab_motions.py quadruped.xml for_mjlab.npz

It runs in an environment with mjlab and without mjtrain. It prints the largest difference between each array of the
loader and that of the file, and between the bodies in the file and where that environment's MuJoCo puts them.
"""

import sys
from importlib.metadata import version

import mujoco
import numpy as np
import torch
from mjlab.tasks.tracking.mdp.commands import MotionLoader  # pyright: ignore[reportMissingImports]

ARRAYS = ("joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w")


def place_bodies(model: mujoco.MjModel, file: dict[str, np.ndarray]) -> tuple[float, float]:
    """Return how far the bodies are from where the joints put them: in m, and 1 - cos of half the angle."""
    data, worst = mujoco.MjData(model), (0.0, 0.0)
    for positions, quaternions, joints in zip(file["body_pos_w"], file["body_quat_w"], file["joint_pos"], strict=True):
        data.qpos[:] = np.concatenate([positions[0], quaternions[0], joints])
        mujoco.mj_kinematics(model, data)
        apart = np.abs(data.xpos[1:] - positions).max()
        turned = np.abs(1 - np.abs((data.xquat[1:] * quaternions).sum(axis=1))).max()
        worst = max(worst[0], float(apart)), max(worst[1], float(turned))
    return worst


def main() -> None:
    """Compare the files that the command line names, after the robot."""
    model = mujoco.MjModel.from_xml_path(sys.argv[1])
    print(*(f"{name} {version(name)}" for name in ("mjlab", "mujoco", "torch")))
    for path in sys.argv[2:]:
        loader = MotionLoader(path, torch.arange(model.nbody - 1))
        file = dict(np.load(path))
        differences = {name: np.abs(getattr(loader, name).double().numpy() - file[name]).max() for name in ARRAYS}
        apart, turned = place_bodies(model, file)
        print(
            f"{path}: {loader.time_step_total} frames,", *(f"{name} {value:.1e}" for name, value in differences.items())
        )
        print(f"  bodies where MuJoCo puts them: {apart:.1e} m, 1 - cos {turned:.1e}")


if __name__ == "__main__":
    main()
