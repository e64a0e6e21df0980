"""Whether something else has started this job, and which place this process has in it; pure.

torchrun, srun and skrl's launcher for JAX start one process per rank. Kubeflow's PyTorchJob and PAI-DLC start one
process per node and set RANK and WORLD_SIZE to number the nodes; without LOCAL_RANK they are never taken for ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mjtrain.errors import RequestError
from mjtrain.launcher.ipc.processes import JOB_VARIABLE
from mjtrain.launcher.planning.slurm import expand_hosts, expand_tasks

_NODE_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_STEP_VARIABLES = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
)

_JAX_VARIABLES = ("JAX_RANK", "JAX_LOCAL_RANK", "JAX_WORLD_SIZE", "JAX_COORDINATOR_ADDR", "JAX_COORDINATOR_PORT")

_FIRST_PORT, _NUM_PORTS = 20000, 10000
"""Ports for the ranks of a Slurm step if MASTER_PORT is not set; below the range that Linux assigns by itself."""


@dataclass(frozen=True, kw_only=True)
class ExternalRank:
    """This process is one rank of a job that torchrun, srun or skrl's launcher for JAX has started."""

    source: str
    """Who started it: torchrun, srun or skrl.utils.distributed.jax."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int

    master_addr: str
    """Name or address of the host at which the ranks find each other."""

    master_port: int

    served: bool = False
    """Whether torchrun's agent already serves a store there; otherwise rank 0 serves it."""

    elastic: bool = False
    """Whether the parent is torchrun's agent, which waits for its ranks and may start them again."""


@dataclass(frozen=True, kw_only=True)
class ExternalNode:
    """This process is the launcher of one node of a job, and starts that node's ranks."""

    node_rank: int
    num_nodes: int
    master_addr: str
    """Name or address of node 0."""
    master_port: int


def resolve_external(environ: Mapping[str, str]) -> ExternalRank | ExternalNode | None:
    """Find this process's place in a job from the environment variables.

    Returns:
        The place; None if this process starts the job itself.

    Raises:
        RequestError: Some of the variables that belong together are set, and others are not.
    """
    if JOB_VARIABLE in environ:  # mjtrain's own rank: what it starts is a job of its own
        return None
    if "LOCAL_RANK" in environ:
        return _read_rank(environ)
    if _count_step_tasks(environ) > 1:
        return _read_step(environ)
    if "JAX_LOCAL_RANK" in environ:
        return _read_jax(environ)
    if any(name in environ for name in _NODE_VARIABLES):
        return _read_node(environ)
    return None


def _read_rank(environ: Mapping[str, str]) -> ExternalRank:
    _require(environ, _RANK_VARIABLES, "LOCAL_RANK is set, as in one rank of a job that torchrun has started")
    rank, world_size = _read_place(environ, "RANK", "WORLD_SIZE")
    local_rank, local_world_size = _read_place(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return ExternalRank(
        source="torchrun",
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        node_rank=_read(environ, "GROUP_RANK") if "GROUP_RANK" in environ else rank // local_world_size,
        master_addr=environ["MASTER_ADDR"],
        master_port=_read(environ, "MASTER_PORT"),
        served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        elastic="TORCHELASTIC_RUN_ID" in environ,
    )


def _count_step_tasks(environ: Mapping[str, str]) -> int:
    """Count the tasks of this Slurm step; 0 in the batch script, which is in no step."""
    return _read(environ, "SLURM_STEP_NUM_TASKS") if "SLURM_STEP_NUM_TASKS" in environ else 0


def _read_step(environ: Mapping[str, str]) -> ExternalRank:
    _require(environ, _STEP_VARIABLES, "SLURM_STEP_NUM_TASKS is set, as in one task of an srun")
    rank, world_size = _read_place(environ, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    node_rank = _read(environ, "SLURM_NODEID")
    job, step = (_read(environ, name) if name in environ else 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = _FIRST_PORT + (job * 101 + step) % _NUM_PORTS
    return ExternalRank(
        source="srun",
        rank=rank,
        local_rank=_read(environ, "SLURM_LOCALID"),
        world_size=world_size,
        local_world_size=expand_tasks(environ["SLURM_STEP_TASKS_PER_NODE"])[node_rank],
        node_rank=node_rank,
        master_addr=environ.get("MASTER_ADDR") or expand_hosts(environ["SLURM_STEP_NODELIST"])[0],
        master_port=_read(environ, "MASTER_PORT") if environ.get("MASTER_PORT") else port,
    )


def _read_jax(environ: Mapping[str, str]) -> ExternalRank | None:
    _require(environ, _JAX_VARIABLES, "JAX_LOCAL_RANK is set, as in one rank of a job that skrl's launcher has started")
    rank, world_size = _read_place(environ, "JAX_RANK", "JAX_WORLD_SIZE")
    if world_size == 1:
        return None
    if _read(environ, "JAX_LOCAL_RANK") != rank:
        raise RequestError(
            f"JAX_RANK={rank}, JAX_LOCAL_RANK={environ['JAX_LOCAL_RANK']}: skrl's launcher does not say how many ranks "
            "a host has, so start them on several hosts with torchrun, or with --hostnames"
        )
    return ExternalRank(
        source="skrl.utils.distributed.jax",
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        local_world_size=world_size,
        node_rank=0,
        master_addr=environ["JAX_COORDINATOR_ADDR"],
        master_port=_read(environ, "JAX_COORDINATOR_PORT"),
    )


def _read_node(environ: Mapping[str, str]) -> ExternalNode | None:
    there = next(name for name in _NODE_VARIABLES if name in environ)
    _require(environ, _NODE_VARIABLES, f"{there} is set, as in one node of a job")
    node_rank, num_nodes = _read_place(environ, "RANK", "WORLD_SIZE")
    port = _read(environ, "MASTER_PORT")
    if num_nodes == 1:
        return None
    return ExternalNode(node_rank=node_rank, num_nodes=num_nodes, master_addr=environ["MASTER_ADDR"], master_port=port)


def _require(environ: Mapping[str, str], names: tuple[str, ...], why: str) -> None:
    missing = [name for name in names if not environ.get(name)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise RequestError(
            f"{why}, but {', '.join(missing)} {verb} not: set all of {', '.join(names)}, or none of them to train on "
            "this machine alone"
        )


def _read_place(environ: Mapping[str, str], place: str, size: str) -> tuple[int, int]:
    index, count = _read(environ, place), _read(environ, size)
    if index >= count:
        raise RequestError(f"{place}={index}: must be less than {size}, which is {count}")
    return index, count


def _read(environ: Mapping[str, str], name: str) -> int:
    value = environ[name]
    if not value.isdecimal():
        raise RequestError(f"{name}={value}: must be a number of at least 0")
    return int(value)
