"""A real Slurm on the two nodes: slurmctld and a slurmd on the first, a slurmd on the second, no authentication."""

import shutil
import subprocess
from pathlib import Path

from support.cluster import Cluster
from support.machine import wait_until

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "scancel")


def why_no_slurm() -> str | None:
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    return f"needs Slurm: {', '.join(missing)}" if missing else None


class Slurm:
    """A controller and a daemon per node."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        zeta, alpha = cluster.nodes
        self.config = folder / "slurm.conf"
        cores = "CPUs=2 RealMemory=1000 State=UNKNOWN"
        settings = [
            "ClusterName=test",
            f"SlurmctldHost={zeta.name}({zeta.address})",
            "SlurmUser=root",
            "AuthType=auth/none",
            "CredType=cred/none",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/affinity",
            "TaskPluginParam=Threads",
            "JobAcctGatherType=jobacct_gather/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "MpiDefault=none",
            "SchedulerParameters=sched_interval=1",
            "ReturnToService=2",
            "KillWait=5",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/ctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={folder}/ctld.log",
            f"SlurmdLogFile={folder}/slurmd-%n.log",
            *[f"NodeName={node.name} NodeAddr={node.address} {cores}" for node in (zeta, alpha)],
            f"PartitionName=all Nodes={zeta.name},{alpha.name} Default=YES MaxTime=60 State=UP OverSubscribe=EXCLUSIVE",
        ]
        self.config.write_text("\n".join(settings) + "\n")
        (folder / "state").mkdir()
        self._daemons = [
            subprocess.Popen([*node.enter(folder), "env", f"SLURM_CONF={self.config}", program, "-D", *flags])
            for node, program, flags in (
                (zeta, "slurmctld", ["-c"]),
                (zeta, "slurmd", ["-N", zeta.name]),
                (alpha, "slurmd", ["-N", alpha.name]),
            )
        ]
        self._wait_for_nodes()

    def _wait_for_nodes(self) -> None:
        def are_idle() -> bool:
            try:
                return self.run("sinfo", "--noheader", "--format=%T %D").split() == ["idle", "2"]
            except AssertionError:  # the controller is not up yet
                return False

        try:
            wait_until(are_idle, "both nodes are idle")
        except AssertionError as error:
            raise AssertionError((self.folder / "ctld.log").read_text()[-3000:]) from error

    def run(self, *command: str) -> str:
        """Run a command of Slurm on the first node, and return what it prints."""
        return self.cluster.nodes[0].run("env", f"SLURM_CONF={self.config}", *command)

    def submit(self, script: Path, *flags: str) -> str:
        """Submit a script from its folder; return the job's number."""
        return self.run("sbatch", "--parsable", f"--chdir={script.parent}", *flags, str(script)).strip()

    def show(self, job: str) -> dict[str, str]:
        """Return what Slurm knows of a job."""
        text = self.run("scontrol", "show", "job", "--oneliner", job)
        pairs = [word.partition("=") for word in text.split() if "=" in word]
        return {name: value for name, _, value in pairs}

    def wait_for(self, job: str, *states: str) -> dict[str, str]:
        """Wait until a job is in one of some states; return what Slurm knows of it."""
        shown: dict[str, str] = {}

        def has_come() -> bool:
            shown.update(self.show(job))
            return shown["JobState"] in states

        wait_until(has_come, f"job {job} is {' or '.join(states)}")
        return shown

    def stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
