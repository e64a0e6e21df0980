"""Places in jobs that something else has started: environment -> place, or which words the error has."""

import pytest

from mjtrain.launcher.planning.external import (
    ExternalNode,
    ExternalRank,
    add_local_world_size,
    expand_hosts,
    expand_tasks,
    resolve_external,
)
from mjtrain.runtime.errors import RequestError

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "zeta",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}

JAX = {
    "JAX_RANK": "1",
    "JAX_LOCAL_RANK": "1",
    "JAX_WORLD_SIZE": "2",
    "JAX_COORDINATOR_ADDR": "127.0.0.1",
    "JAX_COORDINATOR_PORT": "5000",
    "JAX_LOCAL_WORLD_SIZE": "2",
}

MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-zeta-7@1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
JSRUN = {
    "LSB_JOBID": "42",
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_SIZE": "2",
    "JSM_NAMESPACE_LOCAL_RANK": "0",
    "JSM_NAMESPACE_LOCAL_SIZE": "1",
}
SUBMITIT = {
    "SUBMITIT_LOCAL_JOB_ID": "4711",
    "SUBMITIT_LOCAL_NTASKS": "2",
    "SUBMITIT_LOCAL_GLOBALID": "1",
    "SUBMITIT_LOCAL_LOCALID": "1",
}
NODE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "zeta", "MASTER_PORT": "23456"}
KUBEFLOW = {"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "zeta", "PET_MASTER_PORT": "29400"}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "4"}

# environment -> rank, local_rank, world_size, local_world_size, node_rank, master
RANKS = [
    ("torchrun", TORCHRUN, (3, 1, 4, 2, 1, "zeta:29500")),
    (
        "torchrun's words without its agent",
        {k: v for k, v in TORCHRUN.items() if k != "GROUP_RANK"},
        (3, 1, 4, 2, 1, "zeta:29500"),
    ),
    ("srun", SRUN, (2, 0, 3, 1, 1, "gpu07:24242")),
    ("srun with a master of one's own", SRUN | {"MASTER_ADDR": "ib7", "MASTER_PORT": "5"}, (2, 0, 3, 1, 1, "ib7:5")),
    ("skrl's launcher for JAX", JAX, (1, 1, 2, 2, 0, "127.0.0.1:5000")),
    (
        "skrl's launcher for JAX on the second host",
        JAX | {"JAX_RANK": "2", "JAX_LOCAL_RANK": "0", "JAX_WORLD_SIZE": "4"},
        (2, 0, 4, 2, 1, "127.0.0.1:5000"),
    ),
    ("mpirun on two hosts", MPI | {"MASTER_ADDR": "zeta"}, (3, 1, 4, 2, 1, "zeta:29574")),
    ("mpirun with a port", MPI | {"MASTER_ADDR": "zeta", "MASTER_PORT": "5"}, (3, 1, 4, 2, 1, "zeta:5")),
    ("mpirun on this host", MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (3, 1, 4, 4, 0, "127.0.0.1:29574")),
    ("MPICH's mpiexec", HYDRA | {"MASTER_PORT": "5"}, (1, 1, 2, 2, 0, "127.0.0.1:5")),
    ("LSF's jsrun", JSRUN | {"MASTER_ADDR": "zeta"}, (1, 0, 2, 1, 1, "zeta:25288")),
    ("Submitit on this host", SUBMITIT, (1, 1, 2, 2, 0, "127.0.0.1:22759")),
    ("torchrun below mpirun", MPI | TORCHRUN, (3, 1, 4, 2, 1, "zeta:29500")),
    ("torchrun in SageMaker", SAGEMAKER | TORCHRUN, (3, 1, 4, 2, 1, "zeta:29500")),
    ("torchrun in Kubeflow", KUBEFLOW | TORCHRUN, (3, 1, 4, 2, 1, "zeta:29500")),
    ("srun with MPI's variables", SRUN | HYDRA | {"PMIX_RANK": "2"}, (2, 0, 3, 1, 1, "gpu07:24242")),
    ("torchrun below srun", SRUN | TORCHRUN, (3, 1, 4, 2, 1, "zeta:29500")),
]

NONE = [
    ("nothing", {}),
    ("a batch script", {"SLURM_JOB_ID": "42", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}),
    ("srun of one task", SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}),
    ("skrl's launcher with one rank", JAX | {"JAX_RANK": "0", "JAX_LOCAL_RANK": "0", "JAX_WORLD_SIZE": "1"}),
    ("srun of one task, with MPI", SRUN | {"SLURM_STEP_NUM_TASKS": "1", "PMI_RANK": "0", "PMI_SIZE": "1"}),
    ("srun of one task, with PMIx", SRUN | {"SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"}),
    ("mpirun of one process", MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}),
    ("SageMaker with one host", {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}),
    ("Kubeflow with one node", KUBEFLOW | {"PET_NODE_RANK": "0", "PET_NNODES": "1"}),
    ("the script of an LSF job", {"LSB_JOBID": "42", "LSB_HOSTS": "a b", "LSB_DJOB_NUMPROC": "2"}),
    ("the script of a PBS job", {"PBS_JOBID": "42", "PBS_TASKNUM": "1", "PBS_NODENUM": "0"}),
    ("within one of our own ranks", TORCHRUN | {"MJTRAIN_JOB": "x"}),
]

ERRORS = [
    ("no master", {k: v for k, v in TORCHRUN.items() if "MASTER" not in k}, ["MASTER_ADDR, MASTER_PORT are not"]),
    (
        "only a local rank",
        {"LOCAL_RANK": "0"},
        ["RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not"],
    ),
    ("one is empty", TORCHRUN | {"WORLD_SIZE": ""}, ["WORLD_SIZE is not", "train on this machine alone"]),
    ("not a number", TORCHRUN | {"RANK": "two"}, ["RANK=two", "number"]),
    ("beyond the end", TORCHRUN | {"RANK": "4"}, ["RANK=4", "less than WORLD_SIZE"]),
    ("no port", TORCHRUN | {"MASTER_PORT": "99999"}, ["MASTER_PORT=99999: must be a port, from 1 to 65535"]),
    ("port 0 of a node", NODE | {"MASTER_PORT": "0"}, ["MASTER_PORT=0: must be a port"]),
    ("a host larger than the job", TORCHRUN | {"LOCAL_WORLD_SIZE": "5"}, ["5 ranks, more than the 4"]),
    (
        "skrl's launcher, far above",
        {k: v for k, v in JAX.items() if k != "JAX_LOCAL_WORLD_SIZE"},
        ["JAX_LOCAL_RANK=1", "set JAX_LOCAL_WORLD_SIZE"],
    ),
    ("half of skrl's launcher", {"JAX_LOCAL_RANK": "0"}, ["JAX_RANK, JAX_WORLD_SIZE"]),
    ("half a node", {"RANK": "0", "WORLD_SIZE": "2"}, ["RANK is set", "MASTER_ADDR, MASTER_PORT are not"]),
    ("a stale address", {"MASTER_ADDR": "zeta"}, ["MASTER_ADDR is set", "RANK, WORLD_SIZE, MASTER_PORT are not"]),
    ("mpirun without a meeting point", MPI, ["mpirun has started", "rank 3 of 4", "set MASTER_ADDR", "unset OMPI"]),
    ("mpiexec without a port", HYDRA, ["set MASTER_PORT for", "unset PMI_RANK"]),
    ("PMI alone", {"PMI_RANK": "1", "PMI_SIZE": "2"}, ["MPI_LOCALRANKID, MPI_LOCALNRANKS are not"]),
    ("blaunch", {"LSF_PM_TASKID": "2"}, ["LSF_PM_TASKID=2: blaunch", "unset LSF_PM_TASKID"]),
    ("pbsdsh", {"PBS_TASKNUM": "3"}, ["PBS_TASKNUM=3: pbsdsh", "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"]),
    ("PMIx alone", {"PMIX_RANK": "1"}, ["PMIX_RANK=1", "as one of several"]),
    ("elastic Kubeflow", KUBEFLOW | {"PET_NNODES": "1:2"}, ["PET_NNODES=1:2", "number"]),
    ("SageMaker, not JSON", SAGEMAKER | {"SM_HOSTS": "algo-1"}, ["SM_HOSTS=algo-1", "JSON list"]),
    ("SageMaker, elsewhere", SAGEMAKER | {"SM_CURRENT_HOST": "x"}, ["SM_CURRENT_HOST=x", "not in SM_HOSTS"]),
    ("half of srun", {k: v for k, v in SRUN.items() if k != "SLURM_NODEID"}, ["SLURM_NODEID is not"]),
]


@pytest.mark.parametrize(("environ", "place"), [row[1:] for row in RANKS], ids=[row[0] for row in RANKS])
def test_place(environ: dict[str, str], place: tuple[object, ...]) -> None:
    found = resolve_external(environ)
    assert isinstance(found, ExternalRank)
    master = f"{found.master_addr}:{found.master_port}"
    assert (found.rank, found.local_rank, found.world_size, found.local_world_size, found.node_rank, master) == place


@pytest.mark.parametrize("environ", [row[1] for row in NONE], ids=[row[0] for row in NONE])
def test_no_place(environ: dict[str, str]) -> None:
    assert resolve_external(environ) is None


@pytest.mark.parametrize(("environ", "words"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS])
def test_half_a_place_is_an_error(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        resolve_external(environ)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("--nnodes=2 --nproc_per_node=3 --node_rank=1 --coordinator_address=zeta:5555 train T --num-envs 8", "3"),
        ("--nproc-per-node 4 train.py --nproc-per-node 5", "4"),
        ("train.py", "1"),
    ],
)
def test_skrls_launcher_is_asked_by_its_command(words: str, count: str) -> None:
    """How many ranks a host has: skrl sets no variable for it."""
    above = [["python", "-c", "from multiprocessing.spawn import spawn_main"]]
    above += [["python", "-m", "skrl.utils.distributed.jax", *words.split()], ["init"]]
    alone = {k: v for k, v in JAX.items() if k != "JAX_LOCAL_WORLD_SIZE"}
    assert add_local_world_size(alone, above) == alone | {"JAX_LOCAL_WORLD_SIZE": count}
    assert add_local_world_size(alone, above[::2]) == alone
    assert add_local_world_size(JAX, above) == JAX
    assert add_local_world_size({}, above) == {}


def test_torchrun_serves_and_srun_does_not() -> None:
    torchrun, srun = resolve_external(TORCHRUN), resolve_external(SRUN)
    assert isinstance(torchrun, ExternalRank)
    assert (torchrun.served, torchrun.elastic) == (True, True)
    assert isinstance(srun, ExternalRank)
    assert (srun.served, srun.elastic) == (False, False)


def test_variables_that_number_nodes() -> None:
    """What Kubeflow's PyTorchJob and PAI-DLC set is a node's place, and never taken for a rank's."""
    place = resolve_external(NODE)
    assert place == ExternalNode(node_rank=1, num_nodes=2, master_addr="zeta", master_port=23456)
    assert resolve_external(NODE | {"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert isinstance(resolve_external(NODE | TORCHRUN), ExternalRank)  # torchrun started on that node


@pytest.mark.parametrize("environ", [NODE, KUBEFLOW, SAGEMAKER], ids=["RANK", "Kubeflow", "SageMaker"])
def test_nodes_are_open_without_a_token(environ: dict[str, str]) -> None:
    place = resolve_external(environ)
    assert isinstance(place, ExternalNode)
    assert place.is_open
    secret = resolve_external(environ | {"MJTRAIN_JOB_TOKEN": "a-secret"})
    assert isinstance(secret, ExternalNode)
    assert not secret.is_open
    with pytest.raises(RequestError, match="MJTRAIN_JOB_TOKEN is empty: set it to the same secret on every node"):
        resolve_external(environ | {"MJTRAIN_JOB_TOKEN": " "})


@pytest.mark.parametrize(
    ("environ", "master"), [(KUBEFLOW, ("zeta", 29400)), (SAGEMAKER, ("algo-1", 7777))], ids=["Kubeflow", "SageMaker"]
)
def test_launchers_that_start_a_process_per_node(environ: dict[str, str], master: tuple[str, int]) -> None:
    place = resolve_external(environ)
    assert place == ExternalNode(node_rank=1, num_nodes=2, master_addr=master[0], master_port=master[1])


def test_slurm_lists() -> None:
    assert expand_hosts("node1") == ("node1",)
    assert expand_hosts("gpu[01-03,7],login") == ("gpu01", "gpu02", "gpu03", "gpu7", "login")
    assert expand_hosts("r[1-2]n[1-2]-ib") == ("r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib")
    assert expand_tasks("2(x3),1") == (2, 2, 2, 1)
    for wrong in ("", "a[1-]"):
        with pytest.raises(RequestError, match="not a list of Slurm hosts"):
            expand_hosts(wrong)
    with pytest.raises(RequestError, match="not a list of Slurm tasks"):
        expand_tasks("2(x)")
