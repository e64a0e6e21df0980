"""Faults that happen as heartbeats begin a phase: the only seam between them and the rest of mjtrain."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mjtrain.launcher.faults.fault import Fault
from mjtrain.launcher.faults.kinds import FAULTS, LASTING, Place
from mjtrain.runtime import heartbeat
from mjtrain.runtime.event_log import read_lines, write_event
from mjtrain.runtime.heartbeat import Heartbeat
from mjtrain.runtime.rank import RankContext

EVENT = "fault"
"""Event in metrics.jsonl for each fault that was injected."""


def make_heartbeat(
    faults: tuple[Fault, ...], context: RankContext, run_dir: str | None, announce: Callable[[str], None]
) -> Heartbeat:
    """Return the heartbeat of a rank: a plain one if no fault is to happen to it."""
    mine = [fault for fault in faults if fault.rank in (None, context.rank)]
    if not mine:
        return Heartbeat()
    happened = _count_happened(run_dir, context)
    due = [fault for fault in mine if happened(fault) < fault.times]
    return Injector(due, context, run_dir, announce) if due else Heartbeat()


def register_targets(env: Any, learner: Any, checkpoint: Callable[[int], Path]) -> None:
    """Show the parts of a training to the faults that change them, see `Place`."""
    if isinstance(heartbeat.current, Injector):
        place = heartbeat.current.place
        place.env, place.learner, place.checkpoint = env, learner, checkpoint


def _count_happened(run_dir: str | None, context: RankContext) -> Callable[[Fault], int]:
    """Return how many times a fault has happened to this rank, by the record of the run, or else by its starts."""
    if run_dir is None:
        return lambda _: context.restarts
    counts: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for row in read_lines(Path(run_dir)):
            if row.get("event") == EVENT and row.get("rank") == context.rank:
                counts[str(row.get("fault"))] += 1
    return lambda fault: counts[str(fault)]


class Injector(Heartbeat):
    """A heartbeat that has faults happen at their place, each of them once at most."""

    def __init__(
        self, faults: list[Fault], context: RankContext, run_dir: str | None, announce: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.place = Place(device=context.device, run_dir=None if run_dir is None else Path(run_dir))
        self._rank = context.rank
        self._announce = announce
        self._faults = faults
        self._lasting: list[Fault] = []
        self._begun: Counter[str] = Counter()
        self._step = 0

    def begin(self, phase: str, *, warming_up: bool = False, iteration: int | None = None) -> None:
        """Begin a phase, and have happen what is due as it begins."""
        super().begin(phase, warming_up=warming_up, iteration=iteration)
        self._begun[phase] += 1
        self._step = 0
        self._strike()
        for fault in self._lasting:
            if fault.phase == phase:
                FAULTS[fault.kind](fault, self.place)

    def count(self) -> None:
        """Make progress, and have happen what is due after it."""
        super().count()
        self._step += 1
        self._strike()

    def _strike(self) -> None:
        for fault in [fault for fault in self._faults if self._is_due(fault)]:
            self._faults.remove(fault)
            self._record(fault)
            if fault.kind in LASTING:
                self._lasting.append(fault)
            else:
                FAULTS[fault.kind](fault, self.place)

    def _is_due(self, fault: Fault) -> bool:
        if fault.phase != self.phase or (fault.step or 0) != self._step:
            return False
        now = self._begun[self.phase] if self.iteration is None else self.iteration
        return fault.iteration is None or fault.iteration == now or (fault.kind in LASTING and fault.iteration <= now)

    def _record(self, fault: Fault) -> None:
        """Say so before it happens, because nothing may run afterwards."""
        self.injected.append(str(fault))
        self.place.iteration = self.iteration
        self._announce(str(fault))
        if self.place.run_dir is not None:
            where = {"rank": self._rank, "phase": self.phase, "iteration": self.iteration, "kind": fault.kind}
            with contextlib.suppress(OSError):  # the disk is full: what was asked for happens all the same
                write_event(self.place.run_dir, EVENT, fault=str(fault), injected=True, **where, time=time.time())
