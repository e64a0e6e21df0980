"""Which processes run where."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from mjtrain.config.limits import AT_LEAST_0, AT_LEAST_1, DURATION, Duration, Time

GpuIds = tuple[int, ...] | Literal["all", "auto"] | None
"""Indices into the visible GPUs, all of them, the first one if there is one ("auto"), or None for the CPU."""

Backend = Literal["auto", "gloo", "nccl"]
"""Library that carries the collectives between ranks."""


RARE = {"rare": True}
"""Metadata of an option that only --help-all lists."""


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """On which processes, devices and hosts a function runs."""

    gpu_ids: GpuIds = "auto"
    """GPUs to train on, one rank each: indices into the visible devices (CUDA_VISIBLE_DEVICES if set), "all", or
    None for the CPU. Default: the first visible GPU, or the CPU with a notice if there is none."""

    hostnames: tuple[str, ...] = ()
    """Hosts to run on, over SSH: names, addresses or aliases of the SSH configuration; the first gets rank 0. Or slurm:
    the hosts of this Slurm allocation, over srun. Each host gets the ranks that it would get alone: one per GPU of
    --gpu-ids, or --num-workers; NAME:COUNT gives it COUNT."""

    ssh_config_file: str | None = field(default=None, metadata=RARE)
    """SSH configuration for --hostnames. Default: that of ssh."""

    copy_env: tuple[str, ...] = field(default=(), metadata=RARE)
    """Patterns of further environment variables to copy to all --hostnames. Always copied: PATH, LD_LIBRARY_PATH,
    PYTHON*, CUDA*, NVIDIA_*, NCCL*, GLOO*, TORCH*, PYTORCH*, WARP_*, MUJOCO_*, OMP_*, MKL_*, WANDB_*, AWS_*, AZURE_*,
    GOOGLE_* and MJTRAIN_*."""

    num_workers: Annotated[int | None, AT_LEAST_1] = None
    """Number of CPU ranks, synchronised over gloo; not for GPUs. Default: 1."""

    num_threads: Annotated[int | None, AT_LEAST_1] = None
    """CPU threads of each rank, for native physics, cameras and torch. Default: the usable cores of this host, or the
    CPU limit of its container if that is lower, divided by the ranks on it."""

    seed: int = 0
    """Seed of the run; every rank uses seed + rank."""

    backend: Backend = field(default="auto", metadata=RARE)
    """Library for the collectives between ranks. auto: nccl on GPUs, gloo on the CPU and on MIG slices."""

    interface: str | None = field(default=None, metadata=RARE)
    """Network interface for the traffic between ranks on several hosts, such as eth0. Default: for gloo the one on the
    route to the host of rank 0, unless GLOO_SOCKET_IFNAME is set; for NCCL its own choice."""

    connect_timeout_s: Duration = field(default=300.0, metadata=RARE)
    """Seconds that ranks have to find each other, in a job on several hosts or one that torchrun, srun or a cluster has
    started."""

    no_job_token: bool = field(default=False, metadata=RARE)
    """With a launcher on every node: let node 0 listen for the others without MJTRAIN_JOB_TOKEN. Anyone who can reach
    its port can then join the job. Default: an error, unless MASTER_ADDR is this machine alone."""

    process_group_timeout_s: Duration = field(default=1800.0, metadata=RARE)
    """Seconds that a rank waits for the others in a collective before it fails."""

    heartbeat_timeout_s: Duration = 300.0
    """Seconds without a heartbeat or without progress after which a rank counts as hanging and the job ends."""

    heartbeat_floor_s: Annotated[float | None, DURATION] = field(default=30.0, metadata=RARE)
    """Shorter limit for phases seen at least ten times: five times the slowest so far (ten times while the process is
    busy), never below this many seconds. Phases that write files, and busy processes, get at least four times this
    floor. At the limit there is a warning with the stack; at twice the limit the job ends. None: always
    --heartbeat-timeout-s."""

    stop_grace_s: Time = 60.0
    """Seconds to finish the iteration and save after the first SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU."""

    start_timeout_s: Duration = field(default=300.0, metadata=RARE)
    """Seconds that ranks with their own processes have to begin; --heartbeat-timeout-s if that is more."""

    end_timeout_s: Duration = field(default=600.0, metadata=RARE)
    """Before a restart: seconds to wait for processes of the last start in uninterruptible sleep, as while a file
    system does not respond."""

    host_timeout_s: Duration = field(default=60.0, metadata=RARE)
    """In a job on several hosts: seconds without a message after which a host counts as lost."""

    requeue_on_signal: bool = False
    """In a Slurm job: when SIGTERM, SIGUSR1 or SIGUSR2 (sbatch --signal) stops the run, queue the job again after
    saving. It then resumes the same run: implies --resume auto, and --run-name slurm-JOB if no name is given."""

    max_restarts: Annotated[int, AT_LEAST_0] = 0
    """How many times to start again from the last valid checkpoint after a failure. With more than 0, one rank gets
    a separate process as well."""

    min_ranks: Annotated[int | None, AT_LEAST_1] = None
    """With --max-restarts: the minimum number of ranks to continue with.

    A rank that fails twice on the same GPU (or as the same CPU worker) without a checkpoint in between is left out of
    the next start, and so is a host that is lost, as long as this number remains. Otherwise the job ends. Default: no
    rank is left out.
    """

    min_hosts: Annotated[int | None, AT_LEAST_1] = None
    """As --min-ranks, in hosts: a host that is lost is left out of the next start, unless fewer would be left. Both may
    be given. Default: no host is left out, unless --min-ranks is given."""

    rejoin_at_save: bool = False
    """With --min-hosts or --min-ranks: let a recovered host rejoin after the next checkpoint, by a
    planned restart that does not count for --max-restarts. Default: at the next restart after a failure."""

    inject_fault: tuple[str, ...] = field(default=(), metadata=RARE)
    """Inject failures to test recovery, such as rank=1,phase=rollout,iteration=20,kind=sigkill, several of
    them one after the other. Kinds: sigkill, sigsegv, sigstop, raise, hang, exit (status=1), oom, nan, slow
    (seconds=1), disk-full and network. Phases of a training: start, build, rollout, update, report, evaluation and
    save. rank=all: every rank. step=N: after the N-th env step of the rollout. times=N: in N starts of the job, not
    once."""

    torchrunx_log_dir: str | None = None
    """Folder for the log files of a multi-process run. Default: {run}/torchrunx; "" writes none. The variable
    TORCHRUNX_LOG_DIR overrides this flag."""
