"""Train with Submitit, one task per rank: on a Slurm cluster, or with --local on this machine.

    uv run --with submitit deploy/submitit/train.py --nodes 2 -- Quadruped-Velocity-Flat --max-iterations 2000

What follows -- are the arguments of train.
"""

import argparse
import os

import submitit


def train(arguments: list[str]) -> None:
    """Be one rank, as the command train. Submitit calls this in every task of the job."""
    from mjtrain.cli.train import main

    # A queued job keeps its number, so it resumes its run.
    arguments = [*arguments, "--run-name", f"submitit-{submitit.JobEnvironment().job_id}", "--resume", "auto"]
    # Submitit sends SIGUSR2 before the time limit and at a preemption: train saves, and queues the job again.
    main([*arguments, *(["--requeue-on-signal"] if "SLURM_JOB_ID" in os.environ else [])])


def main() -> None:
    """Submit the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local", action="store_true", help="start the tasks here, and wait for them")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--tasks-per-node", type=int, default=8, help="number of GPUs, or of ranks on the CPU")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="0 for the CPU")
    parser.add_argument("--cpus-per-task", type=int, default=8)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("arguments", nargs="+", help="of train")
    options = parser.parse_args()
    executor = submitit.AutoExecutor("submitit", cluster="local" if options.local else "slurm")
    executor.update_parameters(
        nodes=options.nodes,
        tasks_per_node=options.tasks_per_node,
        gpus_per_node=options.gpus_per_node,
        cpus_per_task=options.cpus_per_task,
        timeout_min=round(60 * options.hours),
        slurm_signal_delay_s=240,  # time to save
        slurm_srun_args=[f"--cpus-per-task={options.cpus_per_task}"],  # srun does not inherit it from sbatch
    )
    job = executor.submit(train, options.arguments)
    print(f"job {job.job_id}: its output is in submitit/", flush=True)  # noqa: T201
    if options.local:
        job.results()


if __name__ == "__main__":
    main()
