"""The plan as one table: environment, flags, number of GPUs -> what runs where, or which words the error has."""

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from mjtrain.config import LaunchConfig
from mjtrain.launcher.planning.placement import resolve_hostnames, resolve_plan
from mjtrain.launcher.planning.plan import Host
from mjtrain.launcher.rank.spawned import rank_environ
from mjtrain.runtime.errors import RequestError

RUN = PurePosixPath("/runs/one")
CVD = "CUDA_VISIBLE_DEVICES"
LOGS = "TORCHRUNX_LOG_DIR"
MIG, MIG_2 = "MIG-c7c8e0a1-0000-5000-8000-000000000001", "MIG-c7c8e0a1-0000-5000-8000-000000000002"
SLICES = f"{MIG},{MIG_2}"
UUID = "GPU-2f1b7a30-0000-4000-9000-000000000002"

RANK_OF_4 = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}
STEP = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "4"}
STEP |= {"SLURM_STEP_NODELIST": "a,b", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}

NODE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
TOKEN = {"MJTRAIN_JOB_TOKEN": "a secret"}

# name, environ, flags, visible GPUs -> devices of the ranks, and further fields of the plan
# fmt: off
PLANS: list[tuple[str, dict[str, str], dict[str, Any], int, list[str], dict[str, Any]]] = [
    ("nothing asked, no GPU: CPU with a notice", {}, {}, 0, ["cpu"], {"mode": "in_process", "notice": "no GPU"}),
    ("nothing asked, GPUs there: the first", {}, {}, 4, ["cuda:0"], {"mode": "in_process", "notice": None}),
    ("nothing asked, GPUs hidden", {CVD: ""}, {}, 0, ["cpu"], {"notice": "no GPU"}),
    ("the CPU by name, no notice", {}, {"gpu_ids": None}, 0, ["cpu"], {"mode": "in_process", "notice": None}),
    ("the CPU by name where GPUs are", {}, {"gpu_ids": None}, 8, ["cpu"], {"mode": "in_process"}),
    ("one worker is not a spawn", {}, {"gpu_ids": None, "num_workers": 1}, 0, ["cpu"], {"mode": "in_process", "backend": None}),
    ("two workers", {}, {"gpu_ids": None, "num_workers": 2}, 0, ["cpu"] * 2, {"mode": "spawn", "backend": "gloo"}),
    ("two workers see no GPU", {CVD: "0,1"}, {"gpu_ids": None, "num_workers": 2}, 2, ["cpu"] * 2, {CVD: ""}),
    ("workers where nothing is visible", {}, {"num_workers": 2}, 0, ["cpu"] * 2, {"mode": "spawn", "notice": "no GPU"}),
    ("five workers on two cores", {}, {"gpu_ids": None, "num_workers": 5}, 0, ["cpu"] * 5, {"threads": 1}),
    ("one rank takes all cores", {}, {"gpu_ids": None}, 0, ["cpu"], {"threads": 2}),
    ("threads as asked", {}, {"gpu_ids": None, "num_threads": 7}, 0, ["cpu"], {"threads": 7}),
    ("one GPU by index", {}, {"gpu_ids": (0,)}, 1, ["cuda:0"], {"mode": "in_process", "backend": None}),
    ("the third GPU, in this process", {}, {"gpu_ids": (2,)}, 4, ["cuda:2"], {"mode": "in_process"}),
    ("two GPUs", {}, {"gpu_ids": (0, 1)}, 2, ["cuda:0"] * 2, {"mode": "spawn", "backend": "nccl", CVD: "0,1", "gpus": ("0", "1")}),
    ("two GPUs of four", {}, {"gpu_ids": (1, 3)}, 4, ["cuda:0"] * 2, {CVD: "1,3", "gpus": ("1", "3")}),
    ("order is kept", {}, {"gpu_ids": (3, 1)}, 4, ["cuda:0"] * 2, {CVD: "3,1", "gpus": ("3", "1")}),
    ("all GPUs", {}, {"gpu_ids": "all"}, 4, ["cuda:0"] * 4, {CVD: "0,1,2,3", "gpus": ("0", "1", "2", "3")}),
    ("all of one GPU is not a spawn", {}, {"gpu_ids": "all"}, 1, ["cuda:0"], {"mode": "in_process"}),
    ("indices count in the visible list", {CVD: "2,3"}, {"gpu_ids": (0, 1)}, 2, ["cuda:0"] * 2, {CVD: "2,3", "gpus": ("2", "3")}),
    ("second of the visible list, in this process", {CVD: "2,3"}, {"gpu_ids": (1,)}, 2, ["cuda:1"], {}),
    ("all of the visible list", {CVD: "5,7,6"}, {"gpu_ids": "all"}, 3, ["cuda:0"] * 3, {CVD: "5,7,6", "gpus": ("5", "7", "6")}),
    ("spaces in the variable", {CVD: " 4 , 6 "}, {"gpu_ids": "all"}, 2, ["cuda:0"] * 2, {CVD: "4,6", "gpus": ("4", "6")}),
    ("a MIG slice", {CVD: MIG}, {"gpu_ids": (0,)}, 1, ["cuda:0"], {"mode": "in_process", "gpus": ()}),
    ("MIG and UUID pass through", {CVD: f"{MIG},{UUID}"}, {"gpu_ids": (1, 0)}, 2, ["cuda:0"] * 2, {CVD: f"{UUID},{MIG}", "gpus": (UUID, MIG)}),
    ("UUIDs", {CVD: f"{UUID},GPU-3"}, {"gpu_ids": "all"}, 2, ["cuda:0"] * 2, {"backend": "nccl", "gpus": (UUID, "GPU-3")}),
    ("MIG slices, of which CUDA counts one", {CVD: SLICES}, {"gpu_ids": "all"}, 1, ["cuda:0"] * 2, {"mode": "spawn", "gpus": (MIG, MIG_2), "backend": "gloo"}),
    ("MIG slices with nccl all the same", {CVD: SLICES}, {"gpu_ids": "all", "backend": "nccl"}, 1, ["cuda:0"] * 2, {"backend": "nccl"}),
    ("the first of the MIG slices, in this process", {CVD: SLICES}, {}, 1, ["cuda:0"], {"mode": "in_process"}),
    ("the second MIG slice needs a separate process", {CVD: SLICES}, {"gpu_ids": (1,)}, 1, ["cuda:0"], {"mode": "spawn", "gpus": (MIG_2,), "backend": None}),
    ("MIG slices that are not there", {CVD: SLICES}, {}, 0, ["cpu"], {"notice": "no GPU"}),
    ("CUDA sees fewer than listed", {CVD: "0,1,9"}, {"gpu_ids": "all"}, 2, ["cuda:0"] * 2, {CVD: "0,1", "gpus": ("0", "1")}),
    ("gloo on GPUs", {}, {"gpu_ids": (0, 1), "backend": "gloo"}, 2, ["cuda:0"] * 2, {"backend": "gloo"}),
    ("seed plus rank", {}, {"gpu_ids": None, "num_workers": 3, "seed": 40}, 0, ["cpu"] * 3, {"seeds": [40, 41, 42]}),
    ("logs go below the run", {}, {"gpu_ids": None, "num_workers": 2}, 0, ["cpu"] * 2, {"log_dir": "/runs/one/torchrunx"}),
    ("an empty log folder writes none", {}, {"gpu_ids": None, "num_workers": 2, "torchrunx_log_dir": ""}, 0, ["cpu"] * 2, {"log_dir": None}),
    ("a log folder of one's own", {}, {"gpu_ids": None, "num_workers": 2, "torchrunx_log_dir": "/l"}, 0, ["cpu"] * 2, {"log_dir": "/l"}),
    ("the variable wins over the flag", {LOGS: "/v"}, {"gpu_ids": None, "num_workers": 2, "torchrunx_log_dir": "/l"}, 0, ["cpu"] * 2, {"log_dir": "/v"}),
    ("an empty variable wins too", {LOGS: ""}, {"gpu_ids": None, "num_workers": 2, "torchrunx_log_dir": "/l"}, 0, ["cpu"] * 2, {"log_dir": None}),
    ("joining, a GPU each", RANK_OF_4, {}, 2, ["cuda:1"], {"mode": "join", "backend": "nccl", "seeds": [3], "notice": None, "log_dir": None}),
    ("joining on the CPU", RANK_OF_4, {}, 0, ["cpu"], {"mode": "join", "backend": "gloo", "notice": "no GPU", "threads": 1}),
    ("joining on the CPU by name", RANK_OF_4, {"gpu_ids": None, "seed": 40}, 8, ["cpu"], {"notice": None, "seeds": [43]}),
    ("joining with an interface", RANK_OF_4, {"interface": "eth1"}, 0, ["cpu"], {"environ": dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "eth1")}),
    ("joining a step", STEP, {}, 2, ["cuda:1"], {"mode": "join"}),
    ("joining a step, a GPU per task", STEP, {}, 1, ["cuda:0"], {"backend": "nccl"}),
    ("joining a step, cores per task", STEP | {"SLURM_CPUS_PER_TASK": "2"}, {}, 0, ["cpu"], {"threads": 2}),
    ("joining a step, more cores per task than there are", STEP | {"SLURM_CPUS_PER_TASK": "8"}, {"gpu_ids": None}, 0, ["cpu"], {"threads": 2, "notice": "SLURM_CPUS_PER_TASK=8, but this rank may use 2 cores: srun does not inherit"}),
    ("joining a step that is not bound to its cores", STEP | {"SLURM_CPUS_PER_TASK": "1"}, {"gpu_ids": None}, 0, ["cpu"], {"threads": 1, "notice": None}),
    ("one rank writes no torchrunx logs", {LOGS: "/v"}, {"gpu_ids": None}, 0, ["cpu"], {"log_dir": None}),
]

# name, environ, flags, visible GPUs -> words of the one line that the user sees
ERRORS: list[tuple[str, dict[str, str], dict[str, Any], int, list[str]]] = [
    ("an index where no GPU is", {}, {"gpu_ids": (0,)}, 0, ["--gpu-ids 0", "no GPU is visible", "--gpu-ids None"]),
    ("all where no GPU is", {}, {"gpu_ids": "all"}, 0, ["--gpu-ids all", "no GPU is visible"]),
    ("all where GPUs are hidden", {CVD: ""}, {"gpu_ids": "all"}, 0, ["--gpu-ids all", "no GPU is visible"]),
    ("out of range", {}, {"gpu_ids": (2,)}, 2, ["--gpu-ids 2", "GPU 2 does not exist", "0 to 1"]),
    ("out of range of one", {}, {"gpu_ids": (5,)}, 1, ["GPU 5 does not exist", "visible GPU is 0"]),
    ("physical index outside the visible list", {CVD: "2,3"}, {"gpu_ids": (3,)}, 2, ["GPU 3 does not exist", "0 to 1"]),
    ("negative", {}, {"gpu_ids": (-1,)}, 2, ["--gpu-ids -1", "negative"]),
    ("repeated", {}, {"gpu_ids": (0, 1, 0)}, 2, ["--gpu-ids 0 1 0", "0 is repeated"]),
    ("no index at all", {}, {"gpu_ids": ()}, 2, ["--gpu-ids", "0 1"]),
    ("no worker", {}, {"gpu_ids": None, "num_workers": 0}, 0, ["--num-workers 0", "at least 1"]),
    ("workers with GPUs", {}, {"gpu_ids": (0, 1), "num_workers": 2}, 2, ["--num-workers 2", "--gpu-ids None"]),
    ("workers on the default GPU", {}, {"num_workers": 2}, 1, ["--num-workers 2", "--gpu-ids None"]),
    ("workers with GPUs that are not there", {}, {"gpu_ids": "all", "num_workers": 2}, 0, ["--num-workers 2"]),
    ("no thread", {}, {"gpu_ids": None, "num_threads": 0}, 0, ["--num-threads 0", "at least 1"]),
    ("a seed without room for the ranks", {}, {"gpu_ids": None, "num_workers": 3, "seed": 2**63 - 2}, 0, [f"--seed {2**63 - 2}: must be at most {2**63 - 3}"]),
    ("a seed beyond torch", {}, {"gpu_ids": None, "seed": 2**64}, 0, [f"--seed {2**64}: must be at most {2**63 - 1}"]),
    ("a negative seed", {}, {"gpu_ids": None, "seed": -3}, 0, ["--seed -3", "at least 0"]),
    ("no patience", {}, {"heartbeat_timeout_s": 0.0}, 0, ["--heartbeat-timeout-s 0", "more than 0"]),
    ("no floor", {}, {"heartbeat_floor_s": 0.0}, 0, ["--heartbeat-floor-s 0", "more than 0"]),
    (
        "a fault of a rank that is not there",
        {},
        {"num_workers": 2, "gpu_ids": None, "inject_fault": ("rank=2,phase=run,kind=raise",)},
        0,
        ["--inject-fault rank=2,phase=run,kind=raise", "there are ranks 0 to 1"],
    ),
    (
        "a network of one rank",
        {},
        {"gpu_ids": None, "inject_fault": ("kind=network,phase=run",)},
        0,
        ["--inject-fault", "one rank alone has no connections"],
    ),
    (
        "NCCL without a network",
        {CVD: "0,1"},
        {"gpu_ids": "all", "inject_fault": ("kind=network,phase=run",)},
        2,
        ["--inject-fault", "NCCL uses no network between the GPUs of one host"],
    ),
    (
        "a stop that nothing would notice",
        {},
        {"gpu_ids": None, "inject_fault": ("kind=sigstop,phase=run",)},
        0,
        ["--inject-fault", "--max-restarts 1"],
    ),
    ("negative restarts", {}, {"max_restarts": -1}, 0, ["--max-restarts -1", "at least 0"]),
    ("negative grace", {}, {"stop_grace_s": -1.0}, 0, ["--stop-grace-s -1", "at least 0"]),
    ("no patience for others", {}, {"connect_timeout_s": 0.0}, 0, ["--connect-timeout-s 0", "more than 0"]),
    ("no patience in collectives", {}, {"process_group_timeout_s": -1.0}, 0, ["--process-group-timeout-s -1"]),
    ("GPUs by index for one who joins", RANK_OF_4, {"gpu_ids": (0, 1)}, 2, ["--gpu-ids", "torchrun has started", "rank 3 of 4"]),
    ("all GPUs for one who joins", STEP, {"gpu_ids": "all"}, 2, ["--gpu-ids", "srun has started", "its local rank"]),
    ("workers for one who joins", RANK_OF_4, {"gpu_ids": None, "num_workers": 2}, 0, ["--num-workers", "torchrun"]),
    ("more ranks than there are", {}, {"gpu_ids": None, "num_workers": 2, "max_restarts": 1, "min_ranks": 5}, 0, ["--min-ranks 5", "the job has 2 ranks"]),
    ("no ranks", {}, {"gpu_ids": None, "num_workers": 2, "max_restarts": 1, "min_ranks": 0}, 0, ["--min-ranks 0", "at least 1"]),
    ("fewer ranks without restarts", {}, {"gpu_ids": None, "num_workers": 2, "min_ranks": 1}, 0, ["--min-ranks 1", "needs --max-restarts"]),
    ("more hosts than there are", {}, {"gpu_ids": None, "max_restarts": 1, "min_hosts": 2}, 0, ["--min-hosts 2", "the job has 1 host"]),
    ("hosts that cannot come back", {}, {"gpu_ids": None, "num_workers": 2, "max_restarts": 1, "min_ranks": 1, "rejoin_at_save": True}, 0, ["--rejoin-at-save", "the job has 1 host"]),
    ("hosts that are never left out", {}, {"gpu_ids": None, "rejoin_at_save": True}, 0, ["--rejoin-at-save", "--min-hosts or --min-ranks"]),
    ("hosts that are taken in for one who joins", RANK_OF_4, {"rejoin_at_save": True}, 0, ["--rejoin-at-save", "torchrun decides when"]),
    ("fewer ranks for one who joins", RANK_OF_4, {"min_ranks": 2}, 0, ["--min-ranks", "torchrun sets the minimum number of ranks"]),
    ("restarts for one who joins", RANK_OF_4, {"max_restarts": 2}, 0, ["--max-restarts", "only torchrun"]),
    ("logs for one who joins", RANK_OF_4, {"torchrunx_log_dir": "x"}, 0, ["--torchrunx-log-dir"]),
    ("MIG slices for ranks that join", RANK_OF_4 | {CVD: SLICES}, {}, 1, ["1 visible GPU per process", "--gpu-ids None"]),
    ("MIG slices for tasks of a step", STEP | {CVD: SLICES}, {}, 1, ["1 visible GPU per process"]),
    ("fewer GPUs than ranks that join", RANK_OF_4, {}, 1, ["rank 3 of 4", "1 visible GPU", "--gpu-ids None"]),
    ("hosts for one who joins", RANK_OF_4, {"hostnames": ("a", "b")}, 0, ["--hostnames", "torchrun has started"]),
    ("hosts for a node", NODE, {"gpu_ids": None, "hostnames": ("a", "b")}, 0, ["--hostnames", "node 1 of 2"]),
    ("a port for anyone", NODE, {"gpu_ids": None}, 0, ["MJTRAIN_JOB_TOKEN is not set", "a:1", "--no-job-token"]),
    ("a port that only looks local", NODE | {"MASTER_ADDR": "127.example"}, {"gpu_ids": None}, 0, ["MJTRAIN_JOB_TOKEN is not set"]),
    ("all addresses", NODE | {"MASTER_ADDR": "0.0.0.0"}, {"gpu_ids": None}, 0, ["MJTRAIN_JOB_TOKEN is not set"]),
    ("an empty token", NODE | {"MJTRAIN_JOB_TOKEN": ""}, {"gpu_ids": None}, 0, ["MJTRAIN_JOB_TOKEN is empty"]),
    ("an empty token in spite of the flag", NODE | {"MJTRAIN_JOB_TOKEN": " "}, {"gpu_ids": None, "no_job_token": True}, 0, ["MJTRAIN_JOB_TOKEN is empty"]),
    ("nccl on the CPU", {}, {"gpu_ids": None, "num_workers": 2, "backend": "nccl"}, 0, ["--backend nccl", "gloo"]),
]

# fmt: on


@pytest.mark.parametrize(
    ("environ", "flags", "gpus", "devices", "more"), [row[1:] for row in PLANS], ids=[row[0] for row in PLANS]
)
def test_plan(
    environ: dict[str, str], flags: dict[str, Any], gpus: int, devices: list[str], more: dict[str, Any]
) -> None:
    plan = resolve_plan(LaunchConfig(**flags), environ, gpus, num_cores=2).for_run(RUN)
    assert [rank.device for rank in plan.ranks] == devices
    if plan.mode == "join":
        (rank,) = plan.ranks
        assert (rank.rank, rank.local_rank, rank.world_size, rank.local_world_size, rank.node_rank) == (3, 1, 4, 2, 1)
        assert (plan.world_size, plan.leads) == (4, False)
    else:
        numbers = list(range(len(devices)))
        assert [rank.rank for rank in plan.ranks] == [rank.local_rank for rank in plan.ranks] == numbers
        assert {rank.world_size for rank in plan.ranks} == {len(devices)}
        assert {rank.local_world_size for rank in plan.ranks} == {len(devices)}
    for key, expected in more.items():
        if key == "notice":
            assert plan.notices == () if expected is None else expected in plan.notices[0]
        elif key == "threads":
            assert {rank.num_threads for rank in plan.ranks} == {expected}
        elif key == "seeds":
            assert [rank.seed for rank in plan.ranks] == expected
        elif key == CVD:
            assert plan.environ[CVD] == expected
        else:
            assert getattr(plan, key) == expected


@pytest.mark.parametrize(
    ("environ", "flags", "gpus", "words"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS]
)
def test_plan_error(environ: dict[str, str], flags: dict[str, Any], gpus: int, words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        resolve_plan(LaunchConfig(**flags), environ, gpus, num_cores=2)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("environ", "flags", "gpus", "expected"),
    [
        ({}, {"gpu_ids": None}, 4, ()),
        ({}, {"gpu_ids": (2,)}, 4, ("2",)),
        ({CVD: "5, 7"}, {"gpu_ids": (1,)}, 2, ("7",)),
        ({CVD: UUID}, {}, 1, (UUID,)),
        ({CVD: "5,7,6"}, {"gpu_ids": (0, 2)}, 3, ("5", "6")),
    ],
)
def test_the_gpus_of_this_host_have_names(
    environ: dict[str, str], flags: dict[str, Any], gpus: int, expected: tuple[str, ...]
) -> None:
    assert resolve_plan(LaunchConfig(**flags), environ, gpus).local_gpus(environ) == expected


def test_a_single_rank_that_may_be_restarted_has_a_process_of_its_own() -> None:
    config = LaunchConfig(gpu_ids=(2,), max_restarts=1, heartbeat_timeout_s=400.0)
    plan = resolve_plan(config, {CVD: "4,5,6"}, 3)
    assert (plan.mode, plan.backend, plan.ranks[0].device, plan.environ[CVD]) == ("spawn", None, "cuda:0", "6")
    assert plan.gpus == ("6",)
    assert (plan.max_restarts, plan.heartbeat_timeout_s, plan.start_timeout_s) == (1, 400.0, 400.0)


def test_a_node_that_something_else_has_started_has_its_share_of_the_ranks() -> None:
    plan = resolve_plan(LaunchConfig(gpu_ids="all", seed=40), NODE | TOKEN | {CVD: "4,6"}, 2, num_cores=8)
    assert (plan.mode, plan.backend, plan.environ[CVD], plan.master) == ("node", "nccl", "4,6", ("a", 0))
    assert [(r.rank, r.local_rank, r.node_rank, r.world_size, r.local_world_size) for r in plan.ranks] == [
        (2, 0, 1, 4, 2),
        (3, 1, 1, 4, 2),
    ]
    assert [(rank.seed, rank.device, rank.num_threads) for rank in plan.ranks] == [(42, "cuda:0", 4), (43, "cuda:0", 4)]
    assert plan.gpus == ("4", "6")
    assert "GLOO_SOCKET_IFNAME" not in plan.environ  # loopback is for ranks that are all on one host
    assert not plan.leads


HOSTS = (
    Host(name="a", visible=("0", "1"), num_cores=8, address="10.0.0.1"),
    Host(name="b", visible=("5",), num_cores=4),
)


def test_hosts_get_the_ranks_that_each_would_get_alone() -> None:
    config = LaunchConfig(
        gpu_ids="all", hostnames=("a", "b"), interface="eth1", seed=7, copy_env=("X*",), ssh_config_file="here"
    )
    plan = resolve_plan(config, {}, 0, hosts=HOSTS)
    assert (plan.copy_env, plan.ssh_config_file) == (("X*",), "here")
    assert (plan.mode, plan.backend, plan.world_size, plan.transport) == ("hosts", "nccl", 3, "ssh")
    assert [(r.rank, r.node_rank, r.local_rank, r.local_world_size, r.device, r.seed) for r in plan.ranks] == [
        (0, 0, 0, 2, "cuda:0", 7),
        (1, 0, 1, 2, "cuda:0", 8),
        (2, 1, 0, 1, "cuda:0", 9),
    ]
    assert [rank.num_threads for rank in plan.ranks] == [4, 4, 4]
    first, second = plan.part(0, 1234), plan.part(1, 1234)
    assert (len(first.ranks), len(second.ranks)) == (2, 1)
    assert first.master == second.master == ("10.0.0.1", 1234)
    assert (first.environ[CVD], second.environ[CVD]) == ("0,1", "5")
    assert (first.gpus, second.gpus) == (("0", "1"), ("5",))
    assert second.environ["GLOO_SOCKET_IFNAME"] == "eth1"


def test_hosts_that_differ_in_kind_are_an_error() -> None:
    config = LaunchConfig(hostnames=("a", "c"))
    with pytest.raises(RequestError, match="host c has no visible GPU and a has one"):
        resolve_plan(config, {}, 0, hosts=(HOSTS[0], Host(name="c", num_cores=4)))
    with pytest.raises(RequestError, match="host c: --gpu-ids all: no GPU is visible"):
        resolve_plan(replace(config, gpu_ids="all"), {}, 0, hosts=(HOSTS[0], Host(name="c")))
    with pytest.raises(RequestError, match="host b: --gpu-ids 0 1: GPU 1 does not exist"):
        resolve_plan(replace(config, gpu_ids=(0, 1)), {}, 0, hosts=HOSTS)


def test_hosts_with_counts() -> None:
    counted = (replace(HOSTS[0], num_ranks=1), replace(HOSTS[1], num_ranks=3))
    plan = resolve_plan(LaunchConfig(gpu_ids=None, hostnames=("a:1", "b:3")), {}, 0, hosts=counted)
    assert [(rank.node_rank, rank.local_rank) for rank in plan.ranks] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert [rank.num_threads for rank in plan.ranks] == [8, 1, 1, 1]
    on_gpu = (replace(HOSTS[0], num_ranks=2), replace(HOSTS[1], num_ranks=1))
    plan = resolve_plan(LaunchConfig(hostnames=("a:2", "b:1")), {}, 0, hosts=on_gpu)
    assert [rank.device for rank in plan.ranks] == ["cuda:0"] * 3
    with pytest.raises(RequestError, match=r"--hostnames b:3: the host has only 1 GPU$"):
        resolve_plan(LaunchConfig(gpu_ids="all", hostnames=("a:1", "b:3")), {}, 0, hosts=counted)


def test_names_of_hosts() -> None:
    def names(*hostnames: str, **environ: str) -> dict[str, int | None]:
        return resolve_hostnames(LaunchConfig(hostnames=hostnames), environ)

    assert names("a", "b:4") == {"a": None, "b": 4}
    assert names("fe80::1") == {"fe80::1": None}
    assert names("slurm", SLURM_JOB_NODELIST="n[1-2]") == {"n1": None, "n2": None}
    assert names("a", **RANK_OF_4) == {}  # an error of the plan, before any host is asked
    for wrong, words in (
        (("a", "a:2"), "a is repeated"),
        (("slurm",), "not a Slurm allocation"),
        (("-oProxyCommand=x",), "not a host name"),
        (("a:0",), "without a rank"),
    ):
        with pytest.raises(RequestError, match=words):
            names(*wrong)


def test_plan_is_pure() -> None:
    environ = {CVD: "1,2"}
    config = LaunchConfig(gpu_ids="all")
    assert resolve_plan(config, environ, 2) == resolve_plan(replace(config), dict(environ), 2)
    assert environ == {CVD: "1,2"}


def test_a_function_without_a_run_directory_writes_no_logs() -> None:
    assert resolve_plan(LaunchConfig(gpu_ids=None, num_workers=2), {}, 0).log_dir is None


def test_a_plan_for_a_run_has_its_log_folder_and_restarts() -> None:
    plan = resolve_plan(LaunchConfig(gpu_ids=None, num_workers=2), {}, 0)
    run = plan.for_run(RUN, restarts=3)
    assert (run.run_dir, run.log_dir) == (str(RUN), "/runs/one/torchrunx")
    assert [rank.restarts for rank in run.ranks] == [3, 3]
    assert replace(run.with_restarts(0), log_dir=None, run_dir=None) == plan


def test_each_rank_sees_its_own_gpu_only() -> None:
    plan = resolve_plan(LaunchConfig(gpu_ids="all", hostnames=("a", "b")), {}, 0, hosts=HOSTS)
    for node_rank, gpus in ((0, ["0", "1"]), (1, ["5"])):
        part = plan.part(node_rank, 1234)
        assert [rank_environ(part, rank)[CVD] for rank in part.ranks] == gpus
    cpu = resolve_plan(LaunchConfig(gpu_ids=None, num_workers=2), {}, 0)
    assert CVD not in rank_environ(cpu, cpu.ranks[1])
    assert rank_environ(cpu, cpu.ranks[1])["RANK"] == "1"
