"""How often does an exported policy place the cube in plain MuJoCo?

    MUJOCO_GL=egl uv run benchmarks/plain_mujoco.py Arm-Lift-Cube-Vision [EXPORT] [--episodes 100] [--seed 7]

EXPORT is a folder of `mjtrain export`, or left out for the pretrained policy. Starts and places are those that the task
draws. Each episode is run by the classes of examples/deploy.py: onnxruntime acts on pictures of MuJoCo's renderer.
As in the task, the error is the mean distance of the cube from its place after 3.5 of 4 s. Prints the share within 2 cm
and the median.
"""

import argparse
import json
import runpy
from pathlib import Path
from tempfile import TemporaryDirectory

import mujoco
import numpy as np
import onnxruntime

import mjtrain_policies
from mjtrain import LaunchConfig, RankContext, launch
from mjtrain.api import make_train_config
from mjtrain.env.catalog import load_task
from mjtrain.sim.robots.robot import save_model
from mjtrain.training.train_rank import make_env

Robot = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "deploy.py"))["Robot"]
EPISODE_S, SETTLING_S = 4.0, 3.5
NEAR_M = 0.02


def draw_starts(context: RankContext, task: str, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw starts as the task does.

    Returns:
        Positions of all joints, shape (episodes, nq), and places to hold the cube at in m, (episodes, 3).
    """
    env = make_env(context, make_train_config(task, num_envs=episodes))
    return env.state.qpos.numpy().copy(), env.command("place").numpy().copy()


def run_episode(session: onnxruntime.InferenceSession, folder: Path, start: np.ndarray, place: np.ndarray) -> float:
    """Return the mean distance in m of the cube from its place at the end of an episode."""
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["mjtrain"])
    robot = Robot(folder, metadata, list(place), 0)
    robot.data.qpos[:] = start
    mujoco.mj_forward(robot.model, robot.data)
    period_s = metadata["control_period_s"]
    distances = []
    for step in range(round(EPISODE_S / period_s)):
        (actions,) = session.run(None, {name: value[None] for name, value in robot.observe().items()})
        robot.act(np.asarray(actions)[0])
        if (step + 1) * period_s > SETTLING_S:
            distances.append(np.linalg.norm(robot.data.joint("cube").qpos[:3] - place))
    for cameras in robot.cameras.values():
        for camera in cameras:
            camera.renderer.close()
    return float(np.mean(distances))


def main() -> None:
    """Run all episodes and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("Arm-Lift-Cube", "Arm-Lift-Cube-Vision"))
    parser.add_argument("export", type=Path, nargs="?")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    launched = LaunchConfig(gpu_ids=None, seed=args.seed, num_threads=1)
    starts, places = launch(draw_starts, args.task, args.episodes, launch=launched)
    policy = (args.export or mjtrain_policies.FOLDER / args.task) / "policy.onnx"
    session = onnxruntime.InferenceSession(policy, providers=["CPUExecutionProvider"])
    with TemporaryDirectory() as folder:
        save_model(load_task(args.task).env, Path(folder) / "model.mjb")
        errors = np.array([run_episode(session, Path(folder), *drawn) for drawn in zip(starts, places, strict=True)])
    print(f"{args.task}, {args.episodes} starts, seed {args.seed}, pictures of MuJoCo's renderer:", end=" ")
    print(f"{100 * (errors < NEAR_M).mean():.0f} % within 2 cm, median {100 * np.median(errors):.1f} cm")


if __name__ == "__main__":
    main()
