"""Where the time of an iteration goes: a table of the phases, and a trace of torch.profiler."""

import gzip
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function  # torch.profiler would import PyTorch's compiler

from mjtrain.env.env import Env
from mjtrain.learning.learner import IterationResult
from mjtrain.runtime import heartbeat
from mjtrain.runtime.files import write_whole
from mjtrain.training.hooks.base import Hook, HookContext
from mjtrain.training.reporting.report import RunReport


class PhaseTimer:
    """Adds up the time spent in methods, including what they start on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.spent_s: dict[tuple[str, ...], float] = defaultdict(float)
        """Seconds by phase, each with those in which it was called before it, the outermost first."""
        self.is_tracing = False
        """Whether phases are ranges of a running profiler, and neither timed nor waited for."""
        self._wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        self._path: tuple[str, ...] = ()
        self._watched: list[tuple[Any, str]] = []

    def watch(self, label: str, owner: Any, name: str) -> None:
        """Put a timed function in the place of an object's method."""
        function: Callable[..., Any] = getattr(owner, name)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.is_tracing:
                with record_function(label):
                    return function(*args, **kwargs)
            outside = self._path
            self._path = inside = (*outside, label)
            self._wait()
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._wait()
                self.spent_s[inside] += time.perf_counter() - begin
                self._path = outside

        setattr(owner, name, timed)
        self._watched.append((owner, name))

    def unwatch(self) -> None:
        """Put the methods back."""
        for owner, name in reversed(self._watched):
            delattr(owner, name)
        self._watched.clear()


class ProfileHook(Hook):
    """Times num_iterations iterations after the first, and traces the same number after these; then does nothing.

    Timing and tracing are apart, because a profiler slows operations down, the small ones most.
    """

    def __init__(self, context: HookContext, report: RunReport, num_iterations: int) -> None:
        super().__init__(context)
        self._report = report
        self._num_iterations = num_iterations
        self._folder = context.run_dir / "profile"
        self._device = context.env.device
        self._steps = context.config.agent.num_steps_per_env * context.env.num_envs
        self._phases = context.learner.phases()
        self._phases += context.env.phases() if isinstance(context.env, Env) else []
        self._timer = PhaseTimer(self._device)
        self._profiler: profile | None = None
        self._calls = 0
        self._began_s = 0.0
        self._waited_s = 0.0

    def after_iteration(self, result: IterationResult) -> None:
        """Begin or end the timing or the trace, if that is due."""
        self._calls += 1
        self._waited_s += result.metrics["wait_time_s"]
        if self._calls == 1:
            for label, owner, name in self._phases:
                self._timer.watch(label, owner, name)
            self._waited_s, self._began_s = 0.0, time.perf_counter()
        elif self._calls == 1 + self._num_iterations:
            self._end_timing(result.iteration)
        elif self._calls == 1 + 2 * self._num_iterations:
            self._end_trace(result.iteration)

    def __exit__(self, *exc_info: object) -> None:
        self._timer.unwatch()
        if self._profiler is not None:
            self._profiler.__exit__(None, None, None)

    def finish(self) -> None:
        """Say what is missing if the training ended before."""
        if self._calls < 1 + 2 * self._num_iterations:
            self._report.warn(f"--profile {self._num_iterations}: the training ended before the profile was complete")

    def _end_timing(self, iteration: int) -> None:
        """Report and write the table, and begin the trace."""
        total_s = time.perf_counter() - self._began_s
        lines = [
            f"profile of iterations {iteration + 1 - self._num_iterations} to {iteration} on rank 0: "
            f"{total_s / self._num_iterations:.4g} s each, for {self._steps:,} env steps",
            *make_table(self._timer.spent_s, total_s, self._num_iterations),
        ]
        if self._waited_s:
            waited_s = self._waited_s / self._num_iterations
            lines.append(f"ranks waited for each other for {waited_s:.4g} s of this, as a mean over ranks")
        if self._device.type == "cuda":
            lines.append("each phase waits for the GPU here, so an iteration takes longer than without --profile")
        for line in lines:
            self._report.tell(line)
        self._write(iteration, "txt", "".join(f"{line}\n" for line in lines).encode)
        self._timer.is_tracing = True
        heartbeat.beat("report", warming_up=True)
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it reports its begin and end as errors
        self._profiler = profile(use_kineto=True, use_device="cuda" if self._device.type == "cuda" else None)
        self._profiler.__enter__()

    def _end_trace(self, iteration: int) -> None:
        assert self._profiler is not None
        heartbeat.beat("report", warming_up=True)
        self._profiler.__exit__(None, None, None)
        self._timer.unwatch()
        trace, self._profiler = self._profiler, None
        self._write(iteration, "json.gz", partial(_to_json, trace))

    def _write(self, iteration: int, ending: str, make: Callable[[], bytes]) -> None:
        path = self._folder / f"iterations_{iteration + 1 - self._num_iterations}_to_{iteration}.{ending}"
        try:
            self._folder.mkdir(exist_ok=True)
            write_whole(path, make())
        except OSError as error:
            self._report.warn(f"--profile: {path} could not be written ({error.strerror}); training continues")
        else:
            self._report.tell(f"profile: {path}")


def _to_json(trace: profile) -> bytes:
    """Return a trace as gzipped JSON; an OSError is about the folder for temporary files."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        trace.export_chrome_trace(str(file))
        return gzip.compress(file.read_bytes(), compresslevel=5)


def make_table(spent_s: dict[tuple[str, ...], float], total_s: float, num_iterations: int) -> list[str]:
    """Return a line for each phase, the longest first, those inside it below it, and what remains of it last.

    Seconds are those of all iterations. Phases of less than 0.05 % of the total are part of what remains.
    """

    def rows(path: tuple[str, ...], whole_s: float) -> list[tuple[str, float]]:
        inside = {deeper: spent for deeper, spent in spent_s.items() if deeper[:-1] == path}
        inside = {deeper: spent for deeper, spent in inside.items() if spent > 0.0005 * total_s}
        if not inside:
            return []
        indent = "  " * len(path)
        found = []
        for deeper, spent in sorted(inside.items(), key=lambda entry: -entry[1]):
            found += [(indent + deeper[-1], spent), *rows(deeper, spent)]
        return [*found, (indent + ("rest" if path else "metrics, checkpoints, rest"), whole_s - sum(inside.values()))]

    shown = [("phase", "s per iteration", "share")]
    for label, spent in rows((), total_s):
        shown.append((label, f"{spent / num_iterations:.4f}", f"{spent / total_s:.1%}"))
    return [f"{label:30}{seconds:>16}{share:>8}" for label, seconds, share in shown]
