"""One trial while it runs: its runs of train, one seed after the other, in its slot."""

import errno
import math
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from mjtrain.launcher.failure import describe_exit
from mjtrain.launcher.ipc.signals import EventLoop
from mjtrain.launcher.job.process_tree import ProcessTree
from mjtrain.runtime.event_log import MetricLines
from mjtrain.runtime.processes import module_path, send_signal
from mjtrain.tools.plotting import elapsed_s
from mjtrain.tools.sweep.plan import Slot, SweepPlan
from mjtrain.tools.sweep.results import RunFiles
from mjtrain.tools.sweep.study import Trial

STOP_SLACK_S = 10.0  # how much longer than train itself a sweep waits for the end of a run that it has stopped
LEFTOVER_GRACE_S = 2.0  # time that processes have to end by themselves after the command
FULL_DISK = ("No space left on device", "Disk quota exceeded")  # causes that no settings are to blame for
REPORTS = 100  # about how often a run's metric is told to the study; each time is a write to the disk


class TrialProcess:
    """The command train and what it has started, below a reaper that ends them if this process is killed.

    If the reaper is killed, the kernel ends the command.
    """

    def __init__(self, arguments: list[str], slot: Slot, output: Path, loop: EventLoop, inherited: int) -> None:
        """Start it; what it prints is added to {output}.stdout and {output}.stderr."""
        self._loop = loop
        stdout, self._stderr = (output.with_name(f"{output.name}.{stream}") for stream in ("stdout", "stderr"))
        environ = {**os.environ, "PYTHONPATH": module_path()}
        if slot.gpus:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
        places = [",".join(map(str, slot.cores)), str(stdout), str(self._stderr)]
        with self._stderr.open("ab", buffering=0) as log:
            self._began = log.tell()
            self._scratch = Path(tempfile.mkdtemp(prefix="mjtrain-"))
            command = ["mjtrain.tools.start_train", *places, *arguments]
            self._tree = ProcessTree(self._scratch, environ, log, command, inherited=[inherited])
        loop.watch(self._tree.control, self._read)
        self._is_to_stop = False

    @property
    def has_ended(self) -> bool:
        """Whether the command is over, or its reaper is."""
        return self._tree.first_exit_code is not None or self._tree.lost

    @property
    def has_succeeded(self) -> bool:
        """Whether the command ended with status 0."""
        return self._tree.first_exit_code == 0

    def stop(self) -> None:
        """Send the command SIGTERM as soon as it runs; it saves and ends."""
        self._is_to_stop = True
        self._signal()

    def close(self) -> None:
        """End all of its processes; returns when none is left."""
        self._loop.unwatch(self._tree.control)
        self._tree.end([], wait_s=LEFTOVER_GRACE_S if self.has_ended else 0.0)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def describe_end(self) -> str:
        """Say in a line how a command that failed ended: its last words, or the signal that killed it."""
        code = self._tree.first_exit_code
        if code is None:
            return f"its reaper process ended unexpectedly; {self._stderr} has what it printed"
        if code < 0:
            return describe_exit(code)[0]
        try:
            text = self._stderr.read_bytes()[self._began :].decode(errors="replace")
        except OSError:
            text = ""
        lines = [line for line in text.splitlines() if line.strip(" -")]
        return lines[-1].strip().removeprefix("train: ") if lines else describe_exit(code)[0]

    def _read(self) -> None:
        self._tree.read()
        self._signal()
        if self._tree.lost:
            self._loop.unwatch(self._tree.control)

    def _signal(self) -> None:
        if self._is_to_stop and self._tree.first_pid is not None and not self.has_ended:
            self._is_to_stop = False  # a second signal would end it at once
            send_signal([self._tree.first_pid], signal.SIGTERM)


class RunningTrial:
    """A trial that has a slot, and how it ends."""

    def __init__(self, plan: SweepPlan, trial: Trial, slot: Slot, loop: EventLoop, inherited: int) -> None:
        """Start, or resume, the first run of the trial that has not come to its end."""
        self.trial = trial
        self.slot = slot
        self.ended: str = ""  # how it ended, or that it is paused, in a line; empty as long as it continues
        self.iteration = 0  # of its current run
        self.value: float | None = None  # the metric where the current run reported it last
        self.seed_index = 0  # which of its seeds runs
        self._plan, self._loop, self._inherited = plan, loop, inherited
        self._process: TrialProcess | None = None
        self._interrupted = self._is_stopping = self._is_paused = False
        self._advance(known=0)

    @property
    def is_over(self) -> bool:
        """Whether it has no process any more."""
        return self._process is None

    def follow(self) -> None:
        """Take in what its run has written, judge it, and continue with the next seed or end it."""
        process = self._process
        if process is None:
            return
        has_ended = process.has_ended  # before the metrics are read, as the last ones are written before that
        self._read_metrics()
        is_late = not has_ended and time.monotonic() > self._deadline_s
        if is_late and not self._is_stopping:
            hang = f"no iteration for {self._plan.options.stall_timeout_s:g} s (--stall-timeout-s)"
            if self._is_starting:
                hang = f"no new iteration within {self._plan.start_timeout_s:g} s of its start (--start-timeout-s)"
            self._fail(hang)
        if is_late or has_ended:
            self._end_run(process)

    def stop(self) -> None:
        """Ask its run to save and end; the trial continues when the sweep is started again."""
        self._interrupted = True
        self._stop_run()

    def close(self) -> None:
        """End all of its processes now."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _files(self, seed_index: int | None = None) -> RunFiles:
        index = self.seed_index if seed_index is None else seed_index
        return RunFiles(log_root=self._plan.log_root, name=f"trial_{self.trial.number:04d}_seed_{index}")

    def _advance(self, known: int) -> None:
        """Start the first run that has not ended, after the `known` ones; without one, the trial is complete."""
        metric, values = self._plan.metric, []
        for seed_index in range(self._plan.options.seeds_per_trial):
            self.seed_index = seed_index
            rows = self._files().read()
            last = rows[-1:] if metric.startswith("eval/") else reversed(rows)  # an earlier evaluation is not the last
            value = next((row[metric] for row in last if metric in row), None)
            # A run that is done may lack its last evaluation, which a signal prevented: when it is resumed, it makes up
            # for that.
            if seed_index >= known and (value is None or self._files().find_end()[0] != "done"):
                if not self._interrupted:
                    self._start()
                return
            if value is None:
                self._fail(f"{metric} is not a finite number at the end (iteration {_count_iterations(rows)})")
                return
            values.append(value)
        value = math.fsum(values) / len(values)
        self.trial.end("complete", value, **self._record(), seed_values=values)
        self.ended = f"complete: {metric} {value:.6g}"

    def _start(self) -> None:
        plan, files = self._plan, self._files()
        files.remove_stillborn()
        self._seen: tuple[int, bytes] | None = None  # the last line that was read
        self._iterations_before = _count_iterations(files.read())  # in earlier starts
        self.iteration, self.value = 0, None
        self._is_starting = True
        self._deadline_s = time.monotonic() + plan.start_timeout_s
        arguments = plan.train_arguments(self.trial.params, self.seed_index, files.name)
        output = plan.folder / "output" / files.name
        self._process = TrialProcess(arguments, self.slot, output, self._loop, self._inherited)

    def _read_metrics(self) -> None:
        """Hand what is new to the study, which may end the trial."""
        plan, lines = self._plan, self._files().lines_after(self._seen)
        self._seen = lines[-1] if lines else self._seen
        rows = [row for row in MetricLines(line for _, line in lines) if "event" not in row]
        if not rows:
            return
        self.iteration = rows[-1]["iteration"]
        if not self._is_stopping:
            self._expect_next()
        reported = {row["iteration"]: row[plan.metric] for row in rows if isinstance(row.get(plan.metric), int | float)}
        if not reported:
            return
        self.value = reported[max(reported)]
        if self._is_stopping or self.seed_index > 0:  # only first seeds are compared with each other
            return
        interval = max(1, plan.max_iterations // REPORTS)
        for iteration, value in reported.items():
            if not self.trial.is_due(iteration, interval):
                continue  # too soon, or known: a resumed run repeats iterations
            self.trial.report(value, iteration)
            if iteration >= plan.max_iterations:
                return
            if self.trial.should_prune():
                self._is_paused = plan.options.pruner == "asha"
                if not self._is_paused:
                    self.trial.end("pruned", **self._record())
                how = "paused" if self._is_paused else "pruned"
                self.ended = f"{how} after iteration {iteration}: {plan.metric} {value:.6g}"
                self._stop_run()
                return

    def _expect_next(self) -> None:
        """Allow time for the next iteration; a run that repeats those of earlier starts keeps its time to start."""
        deadline_s = time.monotonic() + self._plan.options.stall_timeout_s
        self._is_starting = self._is_starting and self.iteration <= self._iterations_before
        self._deadline_s = max(self._deadline_s, deadline_s) if self._is_starting else deadline_s

    def _stop_run(self) -> None:
        if self._process is not None and not self._is_stopping:
            self._is_stopping = True
            self._deadline_s = time.monotonic() + self._plan.stop_grace_s + STOP_SLACK_S
            self._process.stop()

    def _end_run(self, process: TrialProcess) -> None:
        process.close()
        self._process = None
        if self._is_paused:
            self.trial.record(**self._record())
        if self.ended:
            return
        if process.has_succeeded:
            self._advance(known=self.seed_index + 1)
        elif not self._interrupted:
            state, detail = self._files().find_end()
            cause = detail if state == "failed" and detail else process.describe_end()
            if any(words in cause for words in FULL_DISK):
                raise OSError(errno.ENOSPC, f"trial {self.trial.number}: {cause}")  # the trial has not ended
            self._fail(cause)

    def _fail(self, cause: str) -> None:
        self.trial.end("failed", **self._record(), cause=cause)
        self.ended = f"failed: {cause}"

    def _record(self) -> dict[str, Any]:
        """Return what the study keeps of its runs."""
        files = [self._files(index) for index in range(self.seed_index + 1)]
        metrics = [rows for run in files if (rows := run.read())]
        return {
            "env_steps": sum(int(rows[-1].get("env_steps_total") or 0) for rows in metrics),
            "train_s": round(math.fsum(elapsed_s(rows)[-1] for rows in metrics), 3),
            "iterations": _count_iterations(files[-1].read()),
            "runs": [str(folder.relative_to(self._plan.folder)) for run in files if (folder := run.folder)],
        }


def _count_iterations(rows: list[dict[str, Any]]) -> int:
    return rows[-1]["iteration"] if rows else 0
