"""What one process of a job knows about itself."""

from dataclasses import dataclass

from mjtrain.runtime.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """Frozen identity of a rank; all that training code ever learns about distribution."""

    rank: int = 0
    """Index over all nodes, 0 to world_size - 1."""

    local_rank: int = 0
    """Index on this node, 0 to local_world_size - 1."""

    world_size: int = 1
    """Ranks in the job."""

    local_world_size: int = 1
    """Ranks on this node."""

    node_rank: int = 0
    """Index of this node."""

    device: str = "cpu"
    """Torch device of this rank, "cpu" or "cuda:N"."""

    seed: int = 0
    """Seed of this rank: the run's seed plus the rank."""

    num_threads: int = 1
    """CPU threads this rank may use."""

    restarts: int = 0
    """How many times the job was started again before: after failures, or to take hosts in."""

    left_out: tuple[str, ...] = ()
    """Names of the GPUs or workers that the job is left without, after failures."""

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and speaks for the job."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether the job has more than one rank."""
        return self.world_size > 1


def check_seed(flag: str, seed: int, count: int = 1) -> None:
    """Raise a RequestError unless this seed and those of the ranks after it, `count` in total, fit into 63 bits."""
    if seed < 0:
        raise RequestError(f"{flag} {seed}: must be at least 0")
    if seed > 2**63 - count:
        raise RequestError(f"{flag} {seed}: must be at most {2**63 - count}")
