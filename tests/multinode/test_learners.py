"""The commands of Isaac Lab's page on several GPUs and nodes, under the learners that they name.

What stands before the script is theirs, word for word. The script, the task and --learner are mjtrain's.
"""

from pathlib import Path

import pytest
import yaml

from support.cluster import PROGRAMS, PYTHON, Cluster
from support.jobs import BIN
from support.multinode_jobs import FLAGS, check_run, finish, start, start_by_exec

TASK = f"{PROGRAMS / 'task.py'}:make_for_any_learner"
TORCH, JAX = "-m torch.distributed.run", "-m skrl.utils.distributed.jax"
STATIC = "--master_addr=MASTER --master_port=5555"
COMMANDS = [
    ("rl_games", "torchrun, static", [f"{TORCH} --nnodes=1 --nproc_per_node=2"]),
    ("skrl", "torchrun, static", [f"{TORCH} --nnodes=1 --nproc_per_node=2"]),
    ("skrl_jax", "skrl's launcher for JAX", [f"{JAX} --nnodes=1 --nproc_per_node=2"]),
    (
        "rl_games",
        "torchrun, c10d",
        [
            f"{TORCH} --nproc_per_node=2 --nnodes=2 --node_rank=0 --rdzv_id=123 --rdzv_backend=c10d "
            "--rdzv_endpoint=localhost:5555",
            f"{TORCH} --nproc_per_node=2 --nnodes=2 --node_rank=1 --rdzv_id=123 --rdzv_backend=c10d "
            "--rdzv_endpoint=MASTER:5555",
        ],
    ),
    (
        "rl_games",
        "torchrun, static",
        [f"{TORCH} --nproc_per_node=2 --nnodes=2 --node_rank={rank} {STATIC}" for rank in range(2)],
    ),
    (
        "skrl",
        "torchrun, static",
        [f"{TORCH} --nproc_per_node=2 --nnodes=2 --node_rank={rank} {STATIC}" for rank in range(2)],
    ),
    (
        "skrl_jax",
        "skrl's launcher for JAX",
        [
            f"{JAX} --nproc_per_node=2 --nnodes=2 --node_rank={rank} --coordinator_address=MASTER:5555"
            for rank in range(2)
        ],
    ),
]
"""Learner, way to start, and the command on each node; MASTER is the address of the first one."""


@pytest.mark.supports("training", learner="{learner}", start="{way}", hosts="{hosts}")
@pytest.mark.parametrize(
    ("learner", "way", "hosts", "commands"),
    [(learner, way, len(commands), commands) for learner, way, commands in COMMANDS],
    ids=[f"{learner}, {commands[0]}" for learner, _, commands in COMMANDS],
)
def test_commands_for_isaac_lab(
    cluster: Cluster, tmp_path: Path, learner: str, way: str, hosts: int, commands: list[str]
) -> None:
    master = cluster.nodes[0].address
    nodes = cluster.nodes[: len(commands)]
    begin = start_by_exec if hosts == 1 else start  # as a fork, where the launcher lets its ranks be forks
    jobs = []
    for node, command in zip(nodes, commands, strict=True):
        launcher = [PYTHON, *command.replace("MASTER", master).split()]
        jobs.append(begin(node, tmp_path, *launcher, str(BIN / "train"), TASK, "--learner", learner, *FLAGS))
    names = [node.name for node in nodes for _ in range(2)]
    check_run(tmp_path, finish(jobs), names, any_order="c10d" in way)
    (params,) = tmp_path.glob("logs/*/*/params/launch.yaml")
    (first,) = yaml.safe_load(params.read_text())["plan"]["ranks"]
    place = {"rank": 0, "local_rank": 0, "node_rank": 0, "world_size": 2 * hosts, "local_world_size": 2}
    assert {name: first[name] for name in place} == place
