"""Every template of deploy/ is what its reader takes, and every command in it works."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from mjtrain.cli.train import main
from mjtrain.config import LaunchConfig, RunConfig
from mjtrain.runs.storage.checkpoints import find_stored_iteration
from support.machine import free_port, patience, wait_until
from support.templates import (
    DEPLOY,
    arguments_of_train,
    find_commands,
    load_container_args,
    load_job_specs,
    load_kind,
    render_osmo,
)
from support.tiers import PACKAGES, SOURCES

BIN = Path(sys.executable).parent
ROOT = DEPLOY.parent
OSMO_SEED = {
    "workflow.name",
    "workflow.groups.name",
    "workflow.groups.tasks.name",
    "workflow.groups.tasks.lead",
    "workflow.groups.tasks.command",
    "workflow.groups.tasks.args",
    "workflow.groups.tasks.image",
    "workflow.groups.tasks.environment",
    "workflow.groups.tasks.files.contents",
    "workflow.groups.tasks.files.path",
    "workflow.groups.tasks.outputs.url",
    "workflow.resources.default.cpu",
    "workflow.resources.default.gpu",
    "workflow.resources.default.memory",
    "workflow.resources.default.storage",
    "default-values.num_gpu",
    "default-values.num_nodes",
}
"""Every field that OSMO's own example of multi-node training has (cookbook/reinforcement_learning/multi_node)."""


def run_apart(package: str, *command: str) -> str:
    """Run a command with a package that is too heavy, or too particular, for the environment of the project."""
    exclude_newer = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["exclude-newer"]
    uv = shutil.which("uv")
    assert uv is not None
    done = subprocess.run(
        [uv, "run", "-q", "--no-project", "--isolated", "--exclude-newer", exclude_newer, "--with", package, *command],
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.proves("deploy/kubernetes", "pyproject.toml")
@pytest.mark.supports("template", start="Kubernetes", hosts="2")
def test_kubernetes_takes_its_files() -> None:
    said = run_apart("kubernetes-validate", "kubernetes-validate", "--strict", str(DEPLOY / "kubernetes" / "job.yaml"))
    assert said.count("passed for resource") == 3


TRAINJOB = """
import sys, yaml
from kubeflow_trainer_api import models

KINDS = {"TrainJob": models.TrainerV1alpha1TrainJob, "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime}

def compare(given, taken, path):
    if isinstance(given, dict):
        assert set(given) <= set(taken), f"{path}: unknown {set(given) - set(taken)}"
        for key in given:
            compare(given[key], taken[key], f"{path}.{key}")
    elif isinstance(given, list):
        assert len(given) == len(taken), path
        for index, item in enumerate(given):
            compare(item, taken[index], f"{path}[{index}]")
    else:
        assert given == taken, path

for given in yaml.safe_load_all(open(sys.argv[1])):
    if given["kind"] in KINDS:
        compare(given, KINDS.pop(given["kind"]).from_dict(given).to_dict(), "")
assert not KINDS
"""


@pytest.mark.proves("deploy/kubeflow", "pyproject.toml")
@pytest.mark.supports("template", start="Kubeflow Trainer 2", hosts="2")
def test_kubeflow_knows_every_key_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(TRAINJOB)
    check = ["python", str(tmp_path / "check.py")]
    path = DEPLOY / "kubeflow" / "trainjob.yaml"
    run_apart("kubeflow-trainer-api,pyyaml", *check, str(path))
    (tmp_path / "wrong.yaml").write_text(path.read_text().replace("numNodes", "numNode"))
    with pytest.raises(AssertionError, match=r"unknown \{'numNode'\}"):
        run_apart("kubeflow-trainer-api,pyyaml", *check, str(tmp_path / "wrong.yaml"))


@pytest.mark.proves("deploy/skypilot", "pyproject.toml")
@pytest.mark.supports("template", start="SkyPilot", hosts="2")
def test_skypilot_takes_its_file() -> None:
    code = "import sky, sys; task = sky.Task.from_yaml(sys.argv[1]); print(task.num_nodes, task.resources)"
    said = run_apart("skypilot", "python", "-c", code, str(DEPLOY / "skypilot" / "train.yaml"))
    assert re.search(r"2 .*'L4': 2", said)


def fields(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict):
        return {path} | {field for key in value for field in fields(value[key], f"{path}.{key}".removeprefix("."))}
    if isinstance(value, list):
        return {path} | {field for item in value for field in fields(item, path)}
    return {path}


@pytest.mark.parametrize("num_nodes", [2, 3])
def test_osmo_renders_a_master_and_workers(num_nodes: int) -> None:
    workflow = render_osmo({}, num_nodes=num_nodes, num_gpu=4)
    assert fields(workflow) >= OSMO_SEED
    (group,) = workflow["workflow"]["groups"]
    names = ["master", *(f"worker-{index}" for index in range(1, num_nodes))]
    assert [task["name"] for task in group["tasks"]] == names
    assert [task.get("lead", False) for task in group["tasks"]] == [name == "master" for name in names]
    assert workflow["workflow"]["resources"]["default"]["gpu"] == 4
    for index, task in enumerate(group["tasks"]):
        (script,) = [file["contents"] for file in task["files"] if file["path"] == task["args"][0]]
        (command,) = find_commands(script, {})
        assert f"export RANK={index} WORLD_SIZE={num_nodes} MASTER_ADDR=<host:master> MASTER_PORT=5555" in script
        assert command[:4] == ["train", "Quadruped-Velocity-Flat", "--gpu-ids", "all"]
        assert command[-3:] == ["s3://my-bucket/mjtrain/<workflow_id>", "--resume", "auto"]
        assert ("tensorboard --logdir" in script) == (index == 0)
        assert task["exitActions"] == {"COMPLETE": "0", "FAIL": "2", "RESCHEDULE": "1,3-255"}
        assert "--bind_all" not in script


@pytest.mark.supports("template", start="OSMO", hosts="2")
def test_osmo_trains_and_goes_on_after_a_reschedule(tmp_path: Path, no_gpu: None) -> None:
    """Two nodes on this machine run the scripts that OSMO would give them; then both start again, elsewhere."""
    url = f"file://{tmp_path}/stored"
    for life, iterations in (("first", 2), ("second", 4)):
        train_args = (
            f"--gpu-ids None --num-workers 1 --num-envs 4 --num-threads 1 --max-iterations {iterations} --logger none"
        )
        tokens = {"host:master": "127.0.0.1", "workflow_id": "one", "output": str(tmp_path / life / "output")}
        workflow = render_osmo(
            tokens, num_gpu=1, storage_url=url, task="Cartpole-Balance", train_args=train_args
        )  # fmt: skip
        master_port, board_port = str(free_port()), str(free_port())
        nodes = []
        for task in workflow["workflow"]["groups"][0]["tasks"]:
            folder = tmp_path / life / task["name"]
            (tmp_path / life / "output").mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            script = task["files"][0]["contents"].replace("5555", master_port).replace("6006", board_port)
            (folder / "entry.sh").write_text(script)
            path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
            nodes.append(
                subprocess.Popen(
                    [*task["command"], "entry.sh"], cwd=folder, env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
                )
            )
        assert [node.wait(patience(60)) for node in nodes] == [0, 0]
        assert find_stored_iteration(f"{url}/one") == iterations
        (run_dir,) = (tmp_path / life / "output").glob("*/*")
        assert (run_dir / f"model_{iterations}.pt").exists()
        assert (run_dir / "model_2.pt").exists()  # saved there by the first life, downloaded by the second


def list_commands() -> dict[str, list[str]]:
    """The arguments of train in every template."""
    commands = load_container_args()
    sky = yaml.safe_load((DEPLOY / "skypilot" / "train.yaml").read_text())
    (commands["skypilot"],) = find_commands(sky["run"], sky["envs"])
    for task in render_osmo({})["workflow"]["groups"][0]["tasks"]:
        (commands[f"osmo {task['name']}"],) = find_commands(task["files"][0]["contents"], {})
    for path in sorted((DEPLOY / "slurm").glob("train*.sbatch")):
        (commands[path.name],) = find_commands(path.read_text(), {"SLURM_JOB_ID": "42", "SLURM_CPUS_PER_TASK": "8"})
    return {name: arguments_of_train(command) for name, command in commands.items()}


@pytest.mark.parametrize("name", list_commands())
def test_train_takes_the_command(
    name: str, no_gpu: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")  # Slurm's template asks to be requeued
    main([*list_commands()[name], "--gpu-ids", "None", "--dry-run"])
    assert json.loads(capsys.readouterr().out)["config"]["run"]["resume"] == "auto"


@pytest.mark.parametrize("name", list_commands())
def test_the_next_job_is_another_run(name: str) -> None:
    """Constant names let the second job resume the first, which is complete, and do nothing."""
    command = list_commands()[name]
    names = ("SKYPILOT_TASK_ID", "JOB_UID", "workflow_id", "slurm-42")
    assert any(part in " ".join(command) for part in names)


def test_an_element_of_a_sweep_is_requeued_alone(tmp_path: Path) -> None:
    for name, text in ((".venv/bin/sweep", "exit 138"), ("bin/scontrol", f'echo "$*" > {tmp_path}/said')):
        program = tmp_path / name
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    environ = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    environ["PATH"] = f"{tmp_path}/bin:{os.environ['PATH']}"
    script = DEPLOY / "slurm" / "sweep.sbatch"
    assert subprocess.run(["bash", str(script)], cwd=tmp_path, env=environ, check=False).returncode == 138
    assert (tmp_path / "said").read_text() == "requeue 7_3\n"


def run_script(script: str, folder: Path, train: str, **environ: str) -> subprocess.Popen[str]:
    """Start a script of a template, in which `train` is this one."""
    (folder / "bin").mkdir()
    for program, text in (("train", train), ("tensorboard", "exec sleep 60")):
        path = folder / "bin" / program
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", **environ}
    return subprocess.Popen(["bash", "-c", script], cwd=folder, env=environ, stdout=subprocess.PIPE, text=True)


def test_a_job_of_pai_dlc_has_a_name_from_its_master(tmp_path: Path) -> None:
    script = (DEPLOY / "pai-dlc" / "train.sh").read_text()
    done = run_script(script, tmp_path, 'echo "$@"', MASTER_ADDR="dlc18isgeayd-master-0")
    assert " --run-name pai-dlc-dlc18isgeayd --resume auto" in done.communicate(timeout=patience(10))[0]


@pytest.mark.parametrize("task", [0, 1], ids=["master", "worker"])
def test_osmo_passes_a_stop_on_and_ends_with_the_status(task: int, tmp_path: Path) -> None:
    workflow = render_osmo({"output": str(tmp_path)})
    script = workflow["workflow"]["groups"][0]["tasks"][task]["files"][0]["contents"].replace("<host:master>", "m")
    train = "trap 'sleep 0.2; touch saved; exit 143' TERM; touch began; while :; do sleep 0.05; done"
    job = run_script(script.replace("<workflow_id>", "one"), tmp_path, train)
    wait_until((tmp_path / "began").exists, "train begins")
    job.terminate()
    assert job.wait(patience(10)) == 143
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("name", load_job_specs())
def test_pods_are_what_restricted_clusters_accept(name: str) -> None:
    """As Pod Security's level "restricted" wants it, with memory to share and time to save, and no typo repeated."""
    spec = load_job_specs()[name]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["terminationGracePeriodSeconds"] >= LaunchConfig().stop_grace_s + RunConfig().checkpoint_flush_s + 20
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["medium"] == "Memory"
    assert all("sizeLimit" in volume for volume in volumes.values())
    assert pod["restartPolicy"] == "Never"  # or the policy would be refused
    stop = spec["podFailurePolicy"]["rules"][0]
    assert (stop["action"], stop["onExitCodes"]["containerName"]) == ("FailJob", container["name"])
    assert stop["onExitCodes"]["values"] == [2]
    command = load_container_args()[name]
    assert command[:3] == ["tini", "--", "train"]  # process 1 passes signals on and reaps


@pytest.mark.parametrize("path", ["kubernetes/job.yaml", "kubeflow/trainjob.yaml"])
def test_only_pods_of_the_job_reach_its_pods(path: str) -> None:
    spec = load_kind(path, "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    (rule,) = spec["ingress"]
    assert rule["from"] == [{"podSelector": spec["podSelector"]}]
    images = re.findall(r"^ +image: (\S+)", (DEPLOY / path).read_text(), re.MULTILINE)
    assert all(re.search("@sha256:[0-9a-f]{64}$", image) for image in images)


@pytest.mark.proves("deploy/Dockerfile*", *PACKAGES, layout=SOURCES)
@pytest.mark.supports("template", start="Docker", hosts="1")
def test_the_dockerfile_builds_what_it_says(tmp_path: Path) -> None:
    """No container can be built here: its COPY and its installation are done in a folder instead of an image."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    steps = [line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {name for name, _ in steps} <= {"FROM", "ENV", "WORKDIR", "RUN", "COPY", "USER", "ENTRYPOINT", "CMD"}
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    workdir = tmp_path / "root" / "opt" / "mjtrain"
    workdir.mkdir(parents=True)
    bin_dir = workdir / ".venv" / "bin"
    ours = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH")
    environ = {key: value for key, value in os.environ.items() if key not in ours}
    environ |= {"PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}", "UV_LINK_MODE": "symlink"}
    installed = []
    for name, rest in steps:
        if name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                assert f"!{Path(source).parts[0]}" in allowed, f"{source} does not reach the build"
                into = workdir / target
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, into, dirs_exist_ok=True)
                else:
                    into.mkdir(exist_ok=True)
                    shutil.copy(ROOT / source, into)
        elif name == "RUN" and not rest.startswith(("useradd", "apt-get")):
            if rest == "python -m venv .venv":
                command = f"uv venv -q --seed --python {sys.executable} .venv"
            else:
                # uv in place of pip: it takes the same flags, and its cache spares gigabytes of downloads.
                assert rest.startswith("pip install --no-cache-dir --no-deps ")
                command = f"uv {rest.replace('--no-cache-dir ', '')} --python {bin_dir / 'python'}"
                installed.append(rest)
            done = subprocess.run(
                ["bash", "-c", command], cwd=workdir, env=environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
    assert ["--require-hashes -r requirements.lock" in command for command in installed] == [True, False]
    assert "--no-build-isolation" in installed[1]  # or the build backend would come without a hash
    (entrypoint,) = [rest for name, rest in steps if name == "ENTRYPOINT"]
    assert entrypoint == '["tini", "--", "train"]'
    (user,) = [rest for name, rest in steps if name == "USER"]
    assert user.isdigit()  # Kubernetes refuses a name where pods must not run as root
    (packages,) = [rest for name, rest in steps if name == "RUN" and rest.startswith("apt-get")]
    assert {"libegl1", "tini"} <= set(packages.split())
    train = [str(bin_dir / "train"), "Cartpole-Balance", "--gpu-ids", "None", "--dry-run"]
    train += ["--checkpoint-url", "s3://bucket/run"]
    done = subprocess.run(train, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(workdir) in subprocess.run(
        [str(bin_dir / "python"), "-c", "import mjtrain_tasks; print(mjtrain_tasks.__file__)"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    shutil.rmtree(tmp_path / "root")
