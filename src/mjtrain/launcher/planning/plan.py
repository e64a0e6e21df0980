"""What will be started, decided and frozen. `placement` makes it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal

from mjtrain.launcher.faults import Fault
from mjtrain.launcher.planning.external import ExternalNode, ExternalRank
from mjtrain.runtime.rank import RankContext


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host of a job, as it has described itself."""

    name: str
    """What the user calls it."""
    visible: tuple[str, ...] = ()
    """GPUs there, as CUDA_VISIBLE_DEVICES names them."""
    num_cores: int = 1
    num_ranks: int | None = None
    """Number of ranks it gets; None for the number it would get as the only host."""
    address: str = ""
    """Address at which the other hosts reach it."""


@dataclass(frozen=True, order=True)
class Place:
    """Where one rank runs while nothing is left out of the job: a GPU or, on the CPU, a worker of a host."""

    node: int
    """Index of the host among all hosts of the job."""

    slot: int
    """Index of the rank among all ranks of that host."""


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """What is particular to one host."""

    name: str
    """What the user calls it."""

    environ: dict[str, str]
    gpus: tuple[str, ...] = ()
    """GPU of each of its ranks, see `LaunchPlan.gpus`."""

    address: str = ""
    """Address at which the other hosts reach it; empty if not known."""

    num_cores: int | None = None
    """See `LaunchPlan.num_cores`."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What will be started. Everything in it is decided: no later step reads the environment again."""

    mode: Literal["in_process", "spawn", "join", "hosts", "node"]
    """in_process: one rank, in the calling process. spawn: one supervised process per rank, through torchrunx. join:
    the calling process is one rank of a job that torchrun or srun has started. hosts: spawn, on several hosts.
    node: spawn, for this node of a job whose nodes something else has started."""

    ranks: tuple[RankContext, ...]
    """The ranks that this plan starts, in order: all ranks of the job, those of this node, or the one that joins."""

    backend: Literal["gloo", "nccl"] | None
    """Backend of the process group; None for one rank, which needs no group."""

    environ: dict[str, str]
    """Environment variables that the spawned ranks get on top of the launcher's own."""

    gpus: tuple[str, ...] = ()
    """CUDA_VISIBLE_DEVICES of each spawned rank of this host, by local rank: one index or UUID, which the rank uses as
    cuda:0. Empty on the CPU, and for a rank in the calling process."""

    log_dir: str | None
    """Folder for the log files of spawned ranks; None writes no files."""

    log_below_run: bool = False
    """Whether log files go below the run directory, see `for_run`: no other folder was chosen."""

    external: ExternalRank | ExternalNode | None = None
    """Place of this process in a job that something else has started."""

    hosts: tuple[HostPlan, ...] = ()
    """The hosts of a job on several hosts, by node rank."""

    transport: Literal["ssh", "srun"] = "ssh"
    ssh_config_file: str | None = None
    copy_env: tuple[str, ...] = ()
    """Patterns of environment variables that the hosts get in addition to the usual ones."""

    master: tuple[str, int] | None = None
    """Address and port at which rank 0 waits for the ranks of other hosts; None if all ranks are on one host. Port 0
    is replaced by a free port when the job starts."""

    connect_timeout_s: float = 300.0
    """Time that ranks have to find each other."""

    process_group_timeout_s: float = 1800.0
    """Time that a rank waits for the others in a collective."""

    heartbeat_timeout_s: float = 300.0
    """Silence of a rank after which it counts as hanging."""

    heartbeat_floor_s: float | None = None
    """Shortest such time that is learned from what a phase has shown; None learns nothing."""

    start_timeout_s: float = 300.0
    """Time that spawned ranks have until they begin."""

    stop_grace_s: float = 60.0
    """Time that a requested stop may take."""

    end_timeout_s: float = 600.0
    """Time to wait, before a restart, for processes in uninterruptible sleep."""

    host_timeout_s: float = 60.0
    """Silence of a host after which it counts as lost."""

    max_restarts: int = 0
    min_ranks: int | None = None
    """How few ranks may be left of it then; None for no fewer, unless `min_hosts` is given."""

    min_hosts: int | None = None
    """How few hosts may be left of it then; None for no fewer, unless `min_ranks` is given."""

    rejoin_at_save: bool = False
    """Whether hosts that were lost and are there again are taken in after the next checkpoint already."""

    num_cores: int | None = None
    """CPU cores of this host that its ranks divide among them; None where the threads of a rank were asked for."""

    faults: tuple[Fault, ...] = ()
    run_dir: str | None = None
    """Where the run of a training lives, see `for_run`; None for a function."""

    places: tuple[Place, ...] | None = None
    """Of a job whose nodes something else has started and that is left without some of its places: the others, by
    rank; None otherwise."""

    notices: tuple[str, ...] = ()
    """Lines that tell the user what was chosen for them."""

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.ranks[0].world_size

    @property
    def device(self) -> str:
        """Torch device of the first rank."""
        return self.ranks[0].device

    @property
    def least_world_size(self) -> int:
        """Ranks that may be left of the whole job after failures."""
        if self.min_ranks is None and self.min_hosts is None:
            return self.world_size
        return max(self.min_ranks or 1, self.min_hosts or 1)

    def local_gpus(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the GPUs of the ranks of this host, as CUDA_VISIBLE_DEVICES names them; empty on the CPU."""
        if self.gpus or self.device == "cpu":
            return self.gpus
        index = int(self.device.partition(":")[2] or 0)  # a rank in this process, which sees all GPUs
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        entries = [str(index)] * (index + 1) if visible is None else visible.split(",")
        return tuple(entry.strip() for entry in entries[index : index + 1])

    def for_run(self, run_dir: PurePath, *, restarts: int = 0) -> "LaunchPlan":
        """Return the same plan for a run; log files go to {run_dir}/torchrunx unless another folder was chosen."""
        log_dir = str(run_dir / "torchrunx") if self.log_below_run else self.log_dir
        return replace(self.with_restarts(restarts), log_dir=log_dir, run_dir=str(run_dir))

    def with_restarts(self, restarts: int) -> "LaunchPlan":
        """Return the same plan for a job that was started that many times before."""
        return replace(self, ranks=tuple(replace(rank, restarts=restarts) for rank in self.ranks))

    def part(self, node_rank: int, port: int) -> "LaunchPlan":
        """Return the plan of one of the hosts."""
        assert self.master is not None
        host = self.hosts[node_rank] if self.hosts else self
        return replace(
            self,
            mode="spawn",
            ranks=tuple(rank for rank in self.ranks if rank.node_rank == node_rank),
            environ=host.environ,
            gpus=host.gpus,
            master=(self.master[0], port),
            hosts=(),
        )

    @property
    def leads(self) -> bool:
        """Whether rank 0 is among the ranks."""
        return self.ranks[0].is_main
