"""One host's ranks, from the first process to the last."""

import pickle
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mjtrain.launcher.failure import RunResult
from mjtrain.launcher.ipc.host_connection import HostConnection
from mjtrain.launcher.job.spawner import JOB_NAME, Job
from mjtrain.launcher.job.supervisor import Supervisor


def run_host_job(
    job: Job,
    log_dir: Path | None,
    environ: Mapping[str, str],
    *,
    host: str = "localhost",
    connection: HostConnection | None = None,
) -> RunResult:
    """Start the ranks of this host and supervise them; when this returns, no process of them is left."""
    scratch = Path(tempfile.mkdtemp(prefix="mjtrain-"))
    try:
        (scratch / JOB_NAME).write_bytes(pickle.dumps(job))
        supervisor = Supervisor(job.plan, scratch, log_dir, host=host, connection=connection)
        return supervisor.run({**environ, **job.plan.environ})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
