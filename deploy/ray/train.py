"""Train with Ray: tasks of one placement group, each of which starts a rank per GPU that it holds, are one job.

    uv run --with ray deploy/ray/train.py --tasks 2 --gpus-per-task 8 -- Quadruped-Velocity-Flat --gpu-ids all

What follows -- are the arguments of train. SIGINT and SIGTERM have the tasks save and end.
"""

import argparse
import os
import secrets
import signal
import socket
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


def find_meeting_place() -> tuple[str, int]:
    """Find the address and a free port of the host where this runs."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return ray.util.get_node_ip_address(), probe.getsockname()[1]


def train(arguments: list[str], environ: dict[str, str]) -> None:
    """Be one node of the job, as the command train."""
    os.environ.update(environ)
    from mjtrain.cli.train import main

    try:
        main(arguments)
    except SystemExit as end:  # which Ray would take for a crash
        if end.code:
            raise RuntimeError(f"train ended with status {end.code}") from None


def main() -> None:
    """Reserve, start, and wait."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1, help="one per host, or per GPU")
    parser.add_argument("--gpus-per-task", type=int, default=8, help="0 for the CPU")
    parser.add_argument("--cpus-per-task", type=int, default=8)
    parser.add_argument("arguments", nargs="+", help="of train")
    options = parser.parse_args()
    ray.init()
    for signum in (signal.SIGINT, signal.SIGTERM):  # Ray's own handler would end the tasks at once
        signal.signal(signum, signal.default_int_handler)
    group = placement_group([{"CPU": options.cpus_per_task, "GPU": options.gpus_per_task}] * options.tasks)
    places = [PlacementGroupSchedulingStrategy(group, index) for index in range(options.tasks)]
    find = ray.remote(num_cpus=0)(find_meeting_place).options(scheduling_strategy=places[0])
    address, port = ray.get(find.remote())
    # A task that ran again by itself would not meet the others; a process that has trained is not used again.
    task = ray.remote(num_cpus=options.cpus_per_task, num_gpus=options.gpus_per_task, max_retries=0, max_calls=1)(train)
    job = {"WORLD_SIZE": str(options.tasks), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
    job["MJTRAIN_JOB_TOKEN"] = secrets.token_hex(32)
    tasks = [
        task.options(scheduling_strategy=place).remote(options.arguments, {**job, "RANK": str(index)})
        for index, place in enumerate(places)
    ]
    try:
        ray.wait(tasks, num_returns=len(tasks))
    except KeyboardInterrupt:
        for one in tasks:
            ray.cancel(one)  # which train takes for Ctrl-C
    failed = False
    for index, one in enumerate(tasks):
        try:
            ray.get(one)
        except ray.exceptions.RayError as error:
            failed = True
            print(f"task {index}: {error}", file=sys.stderr)  # noqa: T201
    sys.exit(failed)


if __name__ == "__main__":
    main()
