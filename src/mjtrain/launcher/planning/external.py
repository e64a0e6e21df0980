"""Whether torchrun, Slurm or another launcher has started this job, and which place this process has in it; pure.

torchrun, srun, mpirun, Submitit and skrl's launcher for JAX start one process per rank. Kubeflow, PAI-DLC and SageMaker
start one process per node. RANK and WORLD_SIZE without LOCAL_RANK number nodes, and are never taken for ranks. What
starts several processes and does not say enough for one job is refused: each of them would be a separate run.

skrl's launcher sets no variable for the number of ranks of a host. `add_local_world_size` takes it from the command
that it was started with.
"""

import argparse
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mjtrain.launcher.ipc.network import names_this_machine
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.processes import JOB_VARIABLE

TOKEN_VARIABLE = "MJTRAIN_JOB_TOKEN"
"""A secret of the job, with which its nodes prove to each other that they belong to it."""

_NODE_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_STEP_VARIABLES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
_JAX_VARIABLES = ("JAX_RANK", "JAX_LOCAL_RANK", "JAX_WORLD_SIZE", "JAX_COORDINATOR_ADDR", "JAX_COORDINATOR_PORT")
_JAX_LAUNCHER = "skrl.utils.distributed.jax"

_JAX_LOCAL_WORLD_SIZE = "JAX_LOCAL_WORLD_SIZE"
"""Like LOCAL_WORLD_SIZE of torchrun; skrl does not set it."""

_FIRST_PORT, _NUM_PORTS = 20000, 10000
"""Ports for the ranks of a Slurm step if MASTER_PORT is not set; below the range that Linux assigns by itself."""

_TASK_VARIABLES = {"PMIX_RANK": "an MPI launcher", "LSF_PM_TASKID": "blaunch", "PALS_RANKID": "PALS"}
"""Variables that number the processes of one command, and say nothing that would make a job of them."""

_KUBEFLOW_VARIABLES = ("PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT")
_SAGEMAKER_VARIABLES = ("SM_CURRENT_HOST", "SM_HOSTS")

_SAGEMAKER_PORT = 7777
"""The port that SageMaker's own launchers use."""


def expand_hosts(text: str) -> tuple[str, ...]:
    """Expand Slurm's short form of host names, for instance "gpu[01-02,7],a" to ("gpu01", "gpu02", "gpu7", "a")."""
    hosts: list[str] = []
    for pattern in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", pattern):
            endings = [literal] if literal else _expand_ranges(ranges, text)
            names = [name + ending for name in names for ending in endings]
        hosts += names
    if not hosts:
        raise RequestError(f"{text!r}: is not a list of Slurm hosts")
    return tuple(hosts)


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers = []
    for part in ranges.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if found is None:
            raise RequestError(f"{text!r}: is not a list of Slurm hosts")
        first, last = found[1], found[2] or found[1]
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def expand_tasks(text: str) -> tuple[int, ...]:
    """Expand Slurm's short form of tasks per node, for instance "2(x3),1" to (2, 2, 2, 1)."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise RequestError(f"{text!r}: is not a list of Slurm tasks per node")
        counts += [int(found[1])] * int(found[2] or 1)
    return tuple(counts)


@dataclass(frozen=True, kw_only=True)
class ExternalRank:
    """This process is one rank of a job that something like torchrun, srun or mpirun has started."""

    source: str
    """Who started it, for instance torchrun, srun, mpirun or skrl.utils.distributed.jax."""

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

    def __post_init__(self) -> None:
        if self.local_world_size > self.world_size:
            raise RequestError(
                f"{self.source} says that this host has {self.local_world_size} ranks, more than the {self.world_size} "
                "of the job; set the number of ranks on a host to at most that"
            )


@dataclass(frozen=True, kw_only=True)
class ExternalNode:
    """This process is the launcher of one node of a job, and starts that node's ranks."""

    node_rank: int
    num_nodes: int
    master_addr: str
    """Name or address of node 0."""
    master_port: int
    has_token: bool = False
    """Whether MJTRAIN_JOB_TOKEN is set."""

    @property
    def is_open(self) -> bool:
        """Whether other machines may reach the port of node 0, without a token that tells the nodes from others."""
        return not self.has_token and not names_this_machine(self.master_addr)


def resolve_external(environ: Mapping[str, str]) -> ExternalRank | ExternalNode | None:
    """Find this process's place in a job from the environment variables."""
    if JOB_VARIABLE in environ:  # mjtrain's own rank: what it starts is a separate job
        return None
    if "LOCAL_RANK" in environ:
        return _read_rank(environ)
    if "SLURM_STEP_NUM_TASKS" in environ and _read(environ, "SLURM_STEP_NUM_TASKS") > 1:  # not in the batch script
        return _read_step(environ)
    if "JAX_LOCAL_RANK" in environ:
        return _read_jax(environ)
    for launcher in _RANK_LAUNCHERS:
        if launcher.rank in environ:
            return _read_launched(environ, launcher)
    if there := [name for name in _NODE_VARIABLES if name in environ]:
        return _read_node(environ, _NODE_VARIABLES, f"{there[0]} is set, as in one node of a job")
    if "PET_NODE_RANK" in environ:
        return _read_node(environ, _KUBEFLOW_VARIABLES, "PET_NODE_RANK is set, as in one node of Kubeflow's job")
    if "SM_HOSTS" in environ:
        return _read_sagemaker(environ)
    _refuse_unnumbered(environ)
    return None


def add_local_world_size(environ: Mapping[str, str], ancestors: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return a rank's environment, with JAX_LOCAL_WORLD_SIZE added if that is missing and skrl's launcher is above.

    The ancestors are the command lines of the processes above this one, the nearest first; read only if needed.
    """
    if "JAX_LOCAL_RANK" not in environ or _JAX_LOCAL_WORLD_SIZE in environ:
        return dict(environ)
    for command in ancestors:
        if _JAX_LAUNCHER in command:
            return {**environ, _JAX_LOCAL_WORLD_SIZE: _read_ranks_per_node(command)}
    return dict(environ)


def _read_ranks_per_node(command: Sequence[str]) -> str:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--nproc-per-node", "--nproc_per_node", dest="count", default="1")
    for words in (("--nnodes",), ("--node-rank", "--node_rank"), ("--coordinator-address", "--coordinator_address")):
        parser.add_argument(*words)
    parser.add_argument("rest", nargs="...")
    return parser.parse_args(command[command.index(_JAX_LAUNCHER) + 1 :]).count


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


@dataclass(frozen=True)
class _RankLauncher:
    """How a launcher that starts one process per rank describes a rank, by names of variables."""

    source: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    job: str = ""
    """Variable that all ranks of a job share and no other job has; a port is derived from it."""


def _by_prefix(source: str, prefix: str, job: str = "") -> _RankLauncher:
    rank, size, local_rank, local_size = (prefix + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    return _RankLauncher(source, rank, size, local_rank, local_size, job)


_RANK_LAUNCHERS = (
    _by_prefix("mpirun", "OMPI_COMM_WORLD_", "PMIX_NAMESPACE"),
    _by_prefix("jsrun", "JSM_NAMESPACE_", "LSB_JOBID"),
    _by_prefix("mpirun_rsh", "MV2_COMM_WORLD_"),
    _RankLauncher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _RankLauncher(
        "Submitit",
        "SUBMITIT_LOCAL_GLOBALID",
        "SUBMITIT_LOCAL_NTASKS",
        "SUBMITIT_LOCAL_LOCALID",
        "SUBMITIT_LOCAL_NTASKS",
        "SUBMITIT_LOCAL_JOB_ID",
    ),
)


def _read_launched(environ: Mapping[str, str], launcher: _RankLauncher) -> ExternalRank | None:
    """Read the place of a rank that one of `_RANK_LAUNCHERS` has started; None if it has started this rank only."""
    names = (launcher.rank, launcher.world_size)
    _require(environ, names, f"{launcher.rank} is set, as in one process of {launcher.source}")
    rank, world_size = _read_place(environ, *names)
    if world_size == 1:
        return None
    local_names = (launcher.local_rank, launcher.local_world_size)
    _require(environ, (*names, *local_names), f"{launcher.rank} is set, as in one process of {launcher.source}")
    local_rank, local_world_size = _read_place(environ, *local_names)
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    job = environ.get(launcher.job)
    if not address and local_world_size == world_size:
        address = "127.0.0.1"
    missing = [] if address else ["MASTER_ADDR"]
    missing += [] if port or job else ["MASTER_PORT"]
    if missing or not address:
        raise RequestError(
            f"{launcher.source} has started this process as rank {rank} of {world_size}, and does not say where the "
            f"ranks meet: set {' and '.join(missing)} for all of them, to the host of rank 0 and a free port there; "
            f"or unset {launcher.rank} to train on this machine alone"
        )
    return ExternalRank(
        source=launcher.source,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        node_rank=rank // local_world_size,
        master_addr=address,
        master_port=_read(environ, "MASTER_PORT") if port else _FIRST_PORT + zlib.crc32(str(job).encode()) % _NUM_PORTS,
    )


def _read_sagemaker(environ: Mapping[str, str]) -> ExternalNode | None:
    _require(environ, _SAGEMAKER_VARIABLES, "SM_HOSTS is set, as in one host of a SageMaker job")
    try:
        hosts = json.loads(environ["SM_HOSTS"])
    except ValueError:
        hosts = None
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise RequestError(f"SM_HOSTS={environ['SM_HOSTS']}: must be a JSON list of host names")
    current = environ["SM_CURRENT_HOST"]
    if current not in hosts:
        raise RequestError(f"SM_CURRENT_HOST={current}: is not in SM_HOSTS, which is {environ['SM_HOSTS']}")
    return _make_node(environ, hosts.index(current), len(hosts), hosts[0], _SAGEMAKER_PORT)


def _refuse_unnumbered(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several processes that would each be a separate run, with the same seed."""
    found = {name: source for name, source in _TASK_VARIABLES.items() if name in environ}
    if "SLURM_STEP_NUM_TASKS" in environ:
        found.pop("PMIX_RANK", None)  # srun has said above that it started one process
    if environ.get("PBS_TASKNUM", "1") not in ("", "1"):  # 1 is the job's own script
        found["PBS_TASKNUM"] = "pbsdsh"
    for name, source in found.items():
        raise RequestError(
            f"{name}={environ[name]}: {source} has started this process as one of several, and does not say how many "
            f"there are; set {', '.join(_NODE_VARIABLES)} on each node, with one process per node, or unset {name} to "
            "train on this machine alone"
        )


def _read_jax(environ: Mapping[str, str]) -> ExternalRank | None:
    _require(environ, _JAX_VARIABLES, "JAX_LOCAL_RANK is set, as in one rank of a job that skrl's launcher has started")
    rank, world_size = _read_place(environ, "JAX_RANK", "JAX_WORLD_SIZE")
    if world_size == 1:
        return None
    if _JAX_LOCAL_WORLD_SIZE not in environ:
        raise RequestError(
            f"JAX_LOCAL_RANK={environ['JAX_LOCAL_RANK']}: no process above this one is {_JAX_LAUNCHER} with its "
            f"--nproc_per_node; set {_JAX_LOCAL_WORLD_SIZE} to the number of ranks on this host"
        )
    local_rank, local_world_size = _read_place(environ, "JAX_LOCAL_RANK", _JAX_LOCAL_WORLD_SIZE)
    return ExternalRank(
        source=_JAX_LAUNCHER,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        node_rank=rank // local_world_size,  # it starts the same number on every host
        master_addr=environ["JAX_COORDINATOR_ADDR"],
        master_port=_read(environ, "JAX_COORDINATOR_PORT"),
    )


def _read_node(environ: Mapping[str, str], names: tuple[str, str, str, str], why: str) -> ExternalNode | None:
    """Read a node's rank, the number of nodes, and node 0's address and port from variables, in this order."""
    _require(environ, names, why)
    rank, size, address, port = names
    node_rank, num_nodes = _read_place(environ, rank, size)
    return _make_node(environ, node_rank, num_nodes, environ[address], _read(environ, port))


def _make_node(
    environ: Mapping[str, str], node_rank: int, num_nodes: int, master_addr: str, master_port: int
) -> ExternalNode | None:
    """Return a node of a job, whoever has started it; None if it is the only one, which no other node calls."""
    if num_nodes == 1:
        return None
    if environ.get(TOKEN_VARIABLE, "-").strip() == "":
        raise RequestError(f"{TOKEN_VARIABLE} is empty: set it to the same secret on every node, or unset it")
    return ExternalNode(
        node_rank=node_rank,
        num_nodes=num_nodes,
        master_addr=master_addr,
        master_port=master_port,
        has_token=TOKEN_VARIABLE in environ,
    )


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
    if name.endswith("PORT") and not 0 < int(value) < 65536:
        raise RequestError(f"{name}={value}: must be a port, from 1 to 65535")
    return int(value)
