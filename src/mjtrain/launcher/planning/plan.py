"""What will be started, decided and frozen. `resolve` makes it."""

from dataclasses import dataclass, replace
from typing import Literal

from mjtrain.launcher.planning.external import ExternalNode, ExternalRank
from mjtrain.rank import RankContext


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host of a job, as it has described itself."""

    name: str
    """What the user calls it."""
    visible: tuple[str, ...] = ()
    """GPUs there, as CUDA_VISIBLE_DEVICES names them."""
    num_cores: int = 1
    num_ranks: int | None = None
    """How many ranks it gets; None for as many as it would get alone."""
    address: str = ""
    """Where the other hosts reach it; only of the first."""


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """What is particular to one host."""

    name: str
    """What the user calls it."""

    environ: dict[str, str]
    """Environment variables of its ranks."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What will be started. Everything in it is decided; nobody asks the environment again."""

    mode: Literal["in_process", "spawn", "join", "hosts", "node"]
    """in_process: one rank, in the calling process. spawn: one supervised process per rank, through torchrunx. join:
    the calling process is one rank of a job that torchrun or srun has started. hosts: spawn, on several hosts.
    node: the ranks of this node, of a job whose other nodes something else has started."""

    ranks: tuple[RankContext, ...]
    """The ranks that this plan starts, by rank: all of the job, or the one to join it."""

    backend: Literal["gloo", "nccl"] | None
    """Backend of the process group; None where there is one rank and so no group."""

    environ: dict[str, str]
    """Environment variables that the spawned ranks get on top of the launcher's own."""

    log_dir: str | None
    """Folder for the log files of spawned ranks; None writes no files."""

    world: ExternalRank | ExternalNode | None = None
    """Place in a job that something else has started."""

    hosts: tuple[HostPlan, ...] = ()
    """The hosts of a job on several, by node rank."""

    transport: Literal["ssh", "srun"] = "ssh"
    """How the launcher reaches them."""

    ssh_config_file: str | None = None
    """SSH configuration; None for ssh's own choice."""

    copy_env: tuple[str, ...] = ()
    """Patterns of environment variables that they get besides the usual ones."""

    place: tuple[str, int] | None = None
    """Address and port at which rank 0 waits for the ranks of other hosts; None where all are on one. A port of 0 is
    found when the job starts."""

    connect_timeout_s: float = 300.0
    """Time that ranks have to find each other."""

    process_group_timeout_s: float = 1800.0
    """Time that a rank waits for the others in a collective."""

    heartbeat_timeout_s: float = 300.0
    """Silence of a rank after which it counts as hanging."""

    start_timeout_s: float = 300.0
    """Time that spawned ranks have until they begin."""

    stop_grace_s: float = 60.0
    """Time that a stop which was asked for may take."""

    max_restarts: int = 0
    """How many times a failed job is started again."""

    notices: tuple[str, ...] = ()
    """Lines the user should see: what was chosen for them."""

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.ranks[0].world_size

    def part(self, node_rank: int, port: int) -> "LaunchPlan":
        """Return the plan of one of the hosts.

        Args:
            node_rank: Which.
            port: Where rank 0 waits for the others.
        """
        assert self.place is not None
        return replace(
            self,
            mode="spawn",
            ranks=tuple(rank for rank in self.ranks if rank.node_rank == node_rank),
            environ=self.hosts[node_rank].environ if self.hosts else self.environ,
            place=(self.place[0], port),
            hosts=(),
        )

    @property
    def leads(self) -> bool:
        """Whether rank 0 is among the ranks."""
        return self.ranks[0].is_main
