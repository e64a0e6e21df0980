"""Which processes run where."""

from dataclasses import dataclass, field
from typing import Literal

GpuIds = tuple[int, ...] | Literal["all", "auto"] | None
"""Indices into the visible GPUs, all of them, the first one if there is one ("auto"), or None for the CPU."""

Backend = Literal["auto", "gloo", "nccl"]
"""Library that carries the collectives between ranks."""


RARE = {"rare": True}
"""Metadata of an option that only --help-all lists."""


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """How a function is spread over processes."""

    gpu_ids: GpuIds = "auto"
    """GPUs to train on, one rank each: indices into the visible devices (CUDA_VISIBLE_DEVICES if set), "all", or
    None for the CPU. Left out: the first visible GPU, or the CPU with a notice where there is none."""

    hostnames: tuple[str, ...] = ()
    """Hosts to run on, over SSH: names, addresses or aliases of the SSH configuration, the first gets rank 0. Or slurm:
    those of this Slurm allocation, over srun. Each host gets the ranks that one would: one per GPU of --gpu-ids, or
    --num-workers; NAME:COUNT gives it so many."""

    ssh_config_file: str | None = field(default=None, metadata=RARE)
    """SSH configuration for --hostnames. Default: ssh's own choice."""

    copy_env: tuple[str, ...] = field(default=(), metadata=RARE)
    """Patterns of further environment variables that all of --hostnames get. They get PATH, LD_LIBRARY_PATH, PYTHON*,
    CUDA*, NVIDIA_*, NCCL*, GLOO*, TORCH*, PYTORCH*, WARP_*, MUJOCO_*, OMP_*, MKL_*, WANDB_*, AWS_*, AZURE_*, GOOGLE_*
    and MJTRAIN_* anyway."""

    num_workers: int | None = None
    """CPU ranks, synchronised over gloo; only on the CPU. Default: 1."""

    num_threads: int | None = None
    """CPU threads of each rank, for native physics and for torch. Default: the usable cores of this host divided by
    the ranks on it."""

    seed: int = 0
    """Seed of the run; every rank uses seed + rank."""

    backend: Backend = field(default="auto", metadata=RARE)
    """Collectives between ranks. auto: nccl on GPUs, gloo on the CPU."""

    interface: str | None = field(default=None, metadata=RARE)
    """Network interface over which ranks on several hosts talk, such as eth0. Default: for gloo the one on the way to
    the host where the ranks meet, unless GLOO_SOCKET_IFNAME says; for NCCL its own choice."""

    connect_timeout_s: float = field(default=300.0, metadata=RARE)
    """Seconds that the ranks of a job on several hosts, or one that something else has started, have to find each
    other."""

    process_group_timeout_s: float = field(default=1800.0, metadata=RARE)
    """Seconds that a rank waits for the others in a collective before it fails."""

    heartbeat_timeout_s: float = 300.0
    """Seconds without a sign of life or of progress after which a rank counts as hanging and the job ends."""

    stop_grace_s: float = 60.0
    """Seconds that the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 leaves for finishing the iteration and saving."""

    requeue_on_signal: bool = False
    """In a Slurm job: when SIGTERM or SIGUSR1 (sbatch --signal) stops the run, queue the job again after saving. It
    then goes on with the same run: implies --resume auto, and --run-name slurm-JOB where none is given."""

    max_restarts: int = 0
    """After a failure, start again from the last valid checkpoint, at most so many times. More than 0 puts even a
    single rank into a process of its own."""

    torchrunx_log_dir: str | None = None
    """Where the log files of a multi-process run go. Default: {run}/torchrunx; "" writes none. The variable
    TORCHRUNX_LOG_DIR wins over this flag."""
