"""What tasks ask of MuJoCo Warp's buffers, and how much memory its worlds take.

    uv run benchmarks/buffers.py                                    # all tasks without cameras
    uv run benchmarks/buffers.py --tasks Quadruped-Velocity-Rough --num-steps 500

Random actions, with everything that the task randomises, so that robots fall too: uniform in [-1, 1] in every second
world, and for 20 env steps each -1 or 1 in the others. Prints for each task how many places per world one physics step
asked for at most: of contacts (pairs that are looked at take places too) as a mean over the worlds, which share the
buffer, and of constraint rows in the worst world. `--num-envs 1` gives the worst world's contacts. Then the sizes of
the task's buffers, and the bytes of MuJoCo Warp's arrays of `--num-worlds` worlds with these sizes and with its own
guesses, computed from the arrays' shapes; what the solver needs while it works is not counted.
"""

import argparse
import dataclasses
from collections.abc import Iterator
from typing import Any

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjtrain.config import EnvConfig
from mjtrain.env.catalog import list_tasks, load_task
from mjtrain.env.env import Env
from mjtrain.runtime.deferred_imports import start_warp
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.engines import make_engine
from mjtrain.sim.engines.warp import WarpEngine


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=None)
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--num-steps", type=int, default=300)
    parser.add_argument("--num-worlds", type=int, default=4096, help="for the memory")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    arguments = parser.parse_args()
    start_warp(on_cpu=arguments.device == "cpu")
    print("| task | contacts asked for | `nconmax` | rows asked for | `njmax` | memory | by mujoco-warp's guess |")
    print("|---|---|---|---|---|---|---|")
    for task in arguments.tasks or [entry.name for entry in list_tasks()]:
        try:
            config = load_task(task).env
            assert isinstance(config, EnvConfig)
            if config.cameras and not arguments.tasks:
                continue  # a task of the same worlds has none, and is quicker
            contacts, rows, engine = measure(config, arguments.num_envs, arguments.num_steps, arguments.device)
        except RequestError as error:
            print(f"| {task} | cannot be loaded here: {error} | | | | | |")
            continue
        sizes = [buffer.size for buffer in engine.buffers.values()]
        memory = [count_bytes(engine.model, arguments.num_worlds, *chosen) / 1e9 for chosen in (sizes, (None, None))]
        print(f"| {task} | {contacts} | {sizes[0]} | {rows} | {sizes[1]} | {memory[0]:.2f} GB | {memory[1]:.2f} GB |")


def measure(config: EnvConfig, num_envs: int, num_steps: int, device: str) -> tuple[int, int, WarpEngine]:
    """Step random actions, with buffers that nothing overflows.

    Returns:
        What was asked for of contacts and of rows, and an engine with the buffers of the task.
    """
    large = dataclasses.replace(config, warp=dataclasses.replace(config.warp, nconmax=512, njmax=1024))
    engine = make_engine("warp", large, num_envs, device, 1)
    assert isinstance(engine, WarpEngine)
    env = Env(large, engine, 0)
    env.stagger()
    generator = torch.Generator(device).manual_seed(0)
    held = torch.zeros(num_envs, env.num_actions, device=device)
    for step in range(num_steps):
        actions = 2 * torch.rand(num_envs, env.num_actions, generator=generator, device=device) - 1
        if step % 20 == 0:
            held = actions.sign()
        actions[::2] = held[::2]
        env.step(actions)
    missed = {name: bool(buffer.missed.any()) for name, buffer in engine.buffers.items()}
    assert not any(missed.values()), missed
    contacts, rows = (buffer.find_need() for buffer in engine.buffers.values())
    env.close()
    own = make_engine("warp", config, 1, device, 1)
    assert isinstance(own, WarpEngine)
    return contacts, rows, own


def count_bytes(model: mujoco.MjModel, num_worlds: int, nconmax: int | None, njmax: int | None) -> int:
    """Return the bytes of the arrays of so many worlds; they grow by the same for each world."""
    eight, sixteen = (
        sum(list_bytes(mjw.make_data(model, nworld=number, nconmax=nconmax, njmax=njmax))) for number in (8, 16)
    )
    return eight + (sixteen - eight) * (num_worlds - 8) // 8


def list_bytes(owner: Any) -> Iterator[int]:
    """Yield the bytes of all arrays of a dataclass and of those in it."""
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if isinstance(value, wp.array):
            yield value.capacity
        elif dataclasses.is_dataclass(value):
            yield from list_bytes(value)


if __name__ == "__main__":
    main()
