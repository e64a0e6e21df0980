"""Checkpoints of a job on several hosts go to a storage that is on the network, from whichever host rank 0 is on."""

import subprocess
from pathlib import Path

from support.cluster import PYTHON, TASK, TRAIN, Cluster, Node
from support.multinode_jobs import FLAGS, notes, start

MOTO = [str(Path(PYTHON).parent / "moto_server")]
PREPARE = """
import sys, time, urllib.request, boto3
while True:
    try:
        urllib.request.urlopen(sys.argv[1])
        break
    except OSError:
        time.sleep(0.1)
boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    ).create_bucket(Bucket="bucket")
"""
LOOK = """
import sys
from pathlib import Path
from mjtrain.runs.storage.checkpoints import fetch_checkpoint
print(*fetch_checkpoint("s3://bucket/run", Path(sys.argv[1])))
"""


def test_rank_0_on_another_host_uploads(cluster: Cluster, tmp_path: Path) -> None:
    """The launcher is on zeta, rank 0 on alpha; only the launcher's environment holds the credentials."""
    zeta, _ = cluster.nodes
    url = f"http://{zeta.address}:5000"
    server = subprocess.Popen(
        [*zeta.enter(tmp_path), *MOTO, "-H", zeta.address, "-p", "5000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        zeta.run(PYTHON, "-c", PREPARE, url)
        environ = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "an-access-key-id",
            "AWS_SECRET_ACCESS_KEY": "a-well-kept-secret",
            "AWS_REGION": "us-east-1",
        }
        flags = ["--hostnames", "alpha", "zeta", "--ssh-config-file", str(cluster.ssh_config)]
        flags += ["--checkpoint-url", "s3://bucket/run"]
        job = start(zeta, tmp_path, PYTHON, *TRAIN, TASK, *FLAGS, *flags, **environ)
        outcome = job.finish(since=0.0)
        assert outcome.status == 0, outcome.stderr
        assert [note["host"] for note in notes(tmp_path)] == ["alpha", "zeta"]
        assert look(zeta, tmp_path, environ) == f"{tmp_path / 'there' / 'model_4.pt'} []"
    finally:
        server.kill()
        server.wait()


def test_a_host_of_rank_0_that_lacks_the_run_is_named(cluster: Cluster, tmp_path: Path) -> None:
    zeta, alpha = cluster.nodes
    assert start(zeta, tmp_path, PYTHON, *TRAIN, TASK, *FLAGS).finish(since=0.0).status == 0
    (run,) = tmp_path.glob("logs/*/*")
    flags = ["--hostnames", "alpha", "zeta", "--ssh-config-file", str(cluster.ssh_config)]
    flags += ["--resume", str(run), "--max-iterations", "8", "--max-restarts", "1"]
    alpha.run("mount", "-t", "tmpfs", "none", str(tmp_path / "logs"))
    try:
        outcome = start(zeta, tmp_path, PYTHON, *TRAIN, TASK, *FLAGS, *flags).finish(since=0.0)
    finally:
        alpha.run("umount", str(tmp_path / "logs"))
    assert outcome.status == 2, outcome.stderr
    assert f"{run}: the run has 4 iterations, and host alpha, where rank 0 is, has 0 of them" in outcome.stderr
    assert (run / "model_4.pt").exists()


def look(node: Node, folder: Path, environ: dict[str, str]) -> str:
    """What is in the storage, as a node sees it."""
    (folder / "there").mkdir()
    return node.run(
        "env", *(f"{name}={value}" for name, value in environ.items()), PYTHON, "-c", LOOK, str(folder / "there")
    ).strip()
