"""Every way to start, in every shape of nodes and ranks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.cluster import PYTHON, TASK, TORCHRUN, TRAIN, Cluster
from support.multinode_jobs import FLAGS, check_run, finish, start_by_exec, train

Place = tuple[list[str], dict[str, str]]
VARIABLES = "a launcher on every node (Kubeflow's PyTorchJob, PAI-DLC)"
supports = pytest.mark.supports


def static(index: int, nodes: int, ranks: int) -> Place:
    place = [f"--node_rank={index}", "--master_addr=zeta", "--master_port=5557"]
    return [*TORCHRUN, f"--nnodes={nodes}", f"--nproc_per_node={ranks}", *place, *train()], {}


def c10d(index: int, nodes: int, ranks: int) -> Place:
    place = ["--rdzv_backend=c10d", "--rdzv_endpoint=zeta:29401", f"--rdzv_id={nodes}x{ranks}"]
    return [*TORCHRUN, f"--nnodes={nodes}", f"--nproc_per_node={ranks}", *place, *train()], {}


def variables(index: int, nodes: int, ranks: int) -> Place:
    place = {"RANK": str(index), "WORLD_SIZE": str(nodes), "MASTER_ADDR": "zeta", "MASTER_PORT": "23458"}
    return [PYTHON, *TRAIN, TASK, *FLAGS, "--num-workers", str(ranks)], place


def hostnames(cluster: Cluster, nodes: int, ranks: int) -> list[str]:
    hosts = ["--hostnames", "zeta", "alpha"][: 1 + nodes]
    config = ["--ssh-config-file", str(cluster.ssh_config)]
    return [PYTHON, *TRAIN, TASK, *FLAGS, *config, *hosts, "--num-workers", str(ranks)]


@pytest.mark.parametrize(
    ("way", "nodes", "ranks"),
    [
        pytest.param(static, 1, 2, marks=supports("training", start="torchrun, static")),
        pytest.param(c10d, 1, 2, marks=supports("training", start="torchrun, c10d")),
        pytest.param(c10d, 2, 2, marks=supports("training", start="torchrun, c10d", hosts="2")),
        pytest.param(variables, 2, 2, marks=supports("training", start=VARIABLES, hosts="2")),
    ],
)
def test_nodes_that_are_started_one_by_one(
    cluster: Cluster, tmp_path: Path, way: Callable[[int, int, int], Place], nodes: int, ranks: int
) -> None:
    """The other shapes are in test_join.py and test_hostnames.py. With c10d, rank 0 may be on either node."""
    jobs = []
    for index, node in enumerate(cluster.nodes[:nodes]):
        command, environ = way(index, nodes, ranks)
        jobs.append(start_by_exec(node, tmp_path, *command, **environ))
    check_run(
        tmp_path,
        finish(jobs),
        [node.name for node in cluster.nodes[:nodes] for _ in range(ranks)],
        any_order=way is c10d,
    )


@pytest.mark.supports("training", start="several hosts over SSH", hosts="{nodes}")
@pytest.mark.parametrize(("nodes", "ranks"), [(1, 2), (2, 1)])
def test_hostnames(cluster: Cluster, tmp_path: Path, nodes: int, ranks: int) -> None:
    command = hostnames(cluster, nodes, ranks)
    with cluster.nodes[1].execute_agents():
        outcome = start_by_exec(cluster.nodes[0], tmp_path, *command).finish(since=0.0)
    check_run(tmp_path, [outcome], [node.name for node in cluster.nodes[:nodes] for _ in range(ranks)])
