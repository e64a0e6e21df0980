"""What stands for the launcher on one host of a job on several: says what the host is like, and runs its ranks.

Run as `python -m mjtrain.launcher.multinode.node_agent`, through ssh or srun or on this very host; standard input and
output are the connection to the launcher. The launcher sends `survey`, which is answered with `facts`, or `start` with
a job, which is answered with `output`, in the end `verdict`, and `gone` when no process of the job is left. When the
connection is cut, the job ends.
"""

import os
import pickle
import platform
import select
import shutil
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

from mjtrain.errors import RequestError
from mjtrain.launcher.failure import Failure, RunResult, send_result
from mjtrain.launcher.ipc.host_connection import HostConnection
from mjtrain.launcher.ipc.network import list_interfaces
from mjtrain.launcher.ipc.signals import STOP_SIGNALS
from mjtrain.launcher.job.spawner import JOB_NAME, Job
from mjtrain.launcher.job.supervisor import Supervisor
from mjtrain.launcher.multinode.probe import installed_packages

_FLUSH_S = 5.0


def main() -> None:
    """Serve the launcher at standard input and output."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, lambda *_: None)  # the launcher decides
    link = HostConnection(os.dup(0), os.dup(1))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    while not link.lost:
        select.select([link], [], [], 1.0)
        link.beat()
        if link.unresponsive:
            break
        if not select.select([link], [], [], 0)[0]:
            continue
        for message, body in link.receive():
            if message["kind"] == "port":
                link.send("port", port=find_free_port())
            elif message["kind"] == "survey":
                os.environ.update(message["environ"])
                link.send("facts", **survey_host(message))
            elif message["kind"] == "start":
                # Only the user's own launcher is at the other end: whoever could log in, or started this process.
                os.environ.update(message["environ"])
                job: Job = pickle.loads(body)
                run_part(link, job, host=message["host"], log_dir=message["log_dir"])
    os._exit(0)


def survey_host(message: dict[str, Any]) -> dict[str, Any]:
    """Find out what this host is like.

    Args:
        message: `folder` that must be writable (or None), whether to `count_gpus`, and `names`
            of hosts to resolve.
    """
    folder = message["folder"]
    return {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "packages": installed_packages(),
        "writable": folder is None or _is_writable(Path(folder)),
        "num_gpus": _count_gpus() if message["count_gpus"] else 0,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "num_cores": len(os.sched_getaffinity(0)),
        "interfaces": list_interfaces(),
        "connection": os.environ.get("SSH_CONNECTION", "").split(),
        "resolved": {name: _resolve(name) for name in message["names"]},
    }


def find_free_port() -> int:
    """Find a port that nothing listens at now, for the ranks to meet."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _is_writable(folder: Path) -> bool:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    return existing.is_dir() and os.access(existing, os.W_OK)


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _resolve(name: str) -> str | None:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


def run_part(link: HostConnection, job: Job, *, host: str, log_dir: str | None) -> RunResult:
    """Run the ranks of this host, and tell the launcher of the whole job how it goes; nothing of them is left then."""
    scratch = Path(tempfile.mkdtemp(prefix="mjtrain-"))
    try:
        folder = None if log_dir is None else _make_log_dir(log_dir)
        (scratch / JOB_NAME).write_bytes(pickle.dumps(job))
        environ = {**os.environ, **job.plan.environ}
        verdict = Supervisor(job.plan, scratch, folder, host=host, connection=link).run(environ)
    except Exception as error:
        if not isinstance(error, RequestError):
            error = RuntimeError(f"{type(error).__name__}: {error}")
        verdict = RunResult(failure=Failure(summary=str(error), host=host, may_pass=False))
        send_result(link, verdict)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    link.send("gone")
    link.flush(_FLUSH_S)
    return verdict


def _make_log_dir(log_dir: str) -> Path:
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
