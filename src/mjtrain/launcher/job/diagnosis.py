"""Why a job failed: from what its supervisor knows of the ranks to the one cause that is shown."""

import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjtrain.launcher.failure import Failure, describe_exit
from mjtrain.launcher.ipc.processes import send_signal
from mjtrain.launcher.job.health import RankState, Silence
from mjtrain.launcher.job.oom import OomWatch
from mjtrain.launcher.job.outputs import LogFile
from mjtrain.launcher.rank.spawned import STACK_SIGNAL, stack_file

_STACK_WAIT_S = 2.0
"""Time that ranks have to write their stacks down."""

_TAIL_LINES = 40
"""Lines of the starter's log that are shown when no rank can say anything."""


class Diagnosis:
    """Finds the cause among the ranks of one job on this host.

    Args:
        scratch: The job's folder, where its ranks leave their stacks.
        log_dir: Where logs go; None if they are not kept.
        members: The ranks that have said hello, by rank; the supervisor goes on changing them.
        logs: Their log files, by rank; likewise.
        host: What this host is called in the names of logs.
    """

    def __init__(
        self,
        scratch: Path,
        log_dir: Path | None,
        members: Mapping[int, RankState],
        logs: Mapping[int, LogFile],
        host: str,
    ) -> None:
        self._scratch = scratch
        self._members = members
        self._logs = logs
        self._oom = OomWatch()
        self._host_log_kept = log_dir is not None
        self.host_log = (log_dir or scratch) / f"{host}.log"
        """What starter and agent write."""

    def close(self) -> None:
        """Stop watching the kernel."""
        self._oom.close()

    def explain(self, starter_exit_code: int | None, agent_lost: bool) -> Failure:
        """Find the cause: a process that died without a word, else the earliest exception.

        Args:
            starter_exit_code: How the process that starts the ranks ended; None if it runs.
            agent_lost: Whether the process above the ranks hung up.

        Returns:
            The failure to show.
        """
        members = self._members.values()
        lost = [member for member in members if member.lost_s is not None and not member.done]
        known = [member for member in lost if member.exit_code is not None]
        if known:
            return self._explain_death(min(known, key=lambda member: member.lost_s or 0.0))
        if lost and not agent_lost:
            first = min(lost, key=lambda member: member.lost_s or 0.0)
            return self._blame(first, summary="closed its connection to the launcher")
        reports = [(member, member.report) for member in members if member.report is not None]
        if reports and not agent_lost:
            first, report = min(reports, key=lambda pair: pair[1]["time_s"])
            returned = [member.rank for member in members if member.done]
            hint = f"\n(Ranks that had returned before: {returned}.)\n" if returned else ""
            return self._blame(
                first,
                summary=report["summary"],
                detail=report["traceback"] + hint,
                phase=report["phase"],
                pickled_error=first.pickled_error,
                may_pass=report["retry"],
            )
        if starter_exit_code is not None and not self._members:
            how, _, _ = describe_exit(starter_exit_code)
            return self.explain_start(f"the process that starts its ranks {how}")
        return self.explain_start("the processes that start its ranks have ended")

    def explain_silence(self, silence: Silence) -> Failure:
        """Have every rank write its stack down, and show that of the one to blame.

        Args:
            silence: Who is silent, and how.

        Returns:
            The failure to show.
        """
        running = [member for member in self._members.values() if not member.done]
        pids = [member.pid for member in running]
        send_signal(pids, STACK_SIGNAL)
        send_signal(pids, signal.SIGCONT)  # a stopped process hears the other as soon as it goes on, before it gets far
        deadline_s = time.monotonic() + _STACK_WAIT_S
        while time.monotonic() < deadline_s and not all(map(self._read_stack, running)):
            time.sleep(0.05)
        time.sleep(0.1)  # the last lines of the last stack
        for member in running:
            if member.rank in self._logs:
                for line in self._read_stack(member).encode().splitlines():
                    self._logs[member.rank].write(line)
        culprit = silence.culprits[0]
        stack = self._read_stack(culprit) or "(it could not be made to show its Python stack)"
        others = f" (so do ranks {[member.rank for member in silence.culprits[1:]]})" if silence.culprits[1:] else ""
        summary = f"hangs: {silence.reason}{others} (last known phase: {culprit.phase})"
        return self._blame(culprit, summary=summary, phase="", detail=f"Its Python stack:\n{stack}")

    def explain_start(self, summary: str) -> Failure:
        """Blame what starts the ranks, with the end of its log.

        Args:
            summary: What happened.

        Returns:
            The failure to show.
        """
        tail = "\n".join(self.host_log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        files = (self.host_log,) if self._host_log_kept else ()
        return Failure(summary=summary, detail=tail, host=socket.gethostname(), files=files)

    def _explain_death(self, member: RankState) -> Failure:
        assert member.exit_code is not None
        how, signum, exit_code = describe_exit(member.exit_code)
        if signum == signal.SIGKILL and (word := self._oom.explain(member.pid)):
            how += f", {word}"
        how += f" (last known phase: {member.phase})"
        stack = self._read_stack(member)
        return self._blame(member, summary=how, phase="", detail=stack, signal=signum, exit_code=exit_code)

    def _blame(self, member: RankState, **fields: Any) -> Failure:
        log = self._logs.get(member.rank)
        defaults = {"phase": member.phase, "files": () if log is None else (log.path,)}
        return Failure(rank=member.rank, host=member.host, **{**defaults, **fields})

    def _read_stack(self, member: RankState) -> str:
        try:
            text = stack_file(self._scratch, member.rank).read_text(errors="replace")
            return text.partition("\nExtension modules:")[0]
        except OSError:
            return ""
