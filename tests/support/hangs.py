"""A plugin of pytest: a test that waits for ever is ended, with the stacks of all threads, and the others still run.

pytest-timeout says how long a test may take (`timeout` in pyproject.toml, `@pytest.mark.timeout`). What it does then is
replaced here by the watchdog of faulthandler, a thread in C that ends the process:

* It also ends a hang in native code that holds the interpreter's lock, for which neither a Python thread (`thread`) nor
  a Python signal handler (`signal`) ever runs.
* It writes to the standard error of the process as it was before any capture. Under pytest-xdist, pytest-timeout writes
  the stacks to a standard output that is /dev/null.

pytest-xdist then reports the test as the one that its worker crashed in, and starts another worker.
"""

import faulthandler
import os

import pytest
from pytest_timeout import Settings
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

_STDERR = pytest.StashKey[int]()
_LIMIT_S = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_STDERR])


def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool:
    item.stash[_LIMIT_S] = settings.timeout
    _start_watchdog(item)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    faulthandler.cancel_dump_traceback_later()
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Start the watchdog again: it is cancelled when a test fails, and what the test leaves may hang."""
    if _LIMIT_S in item.stash:
        _start_watchdog(item)


def _start_watchdog(item: pytest.Item) -> None:
    faulthandler.dump_traceback_later(item.stash[_LIMIT_S], file=item.config.stash[_STDERR], exit=True)


class _Scheduling(LoadGroupScheduling):
    """Survives the end of a worker; that of pytest-xdist 3.8 waits for ever or ends one worker after the other.

    It would give the test that has ended a worker to the next one, and to a worker that replaces another one a single
    unit of work, which may be one whose tests have all run. But a worker runs a test only when it knows the next one,
    or that there is none. It would also give work to a worker that has not collected the tests yet, which is an error.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        units = self.assigned_work[node]
        pending = [(unit, test) for unit in units.values() for test, is_done in unit.items() if not is_done]
        if pending:
            unit, test = pending[0]
            unit[test] = True
        self.assigned_work[node] = {scope: unit for scope, unit in units.items() if not all(unit.values())}
        super().remove_node(node)
        return pending[0][1] if pending else None

    def schedule(self) -> None:
        is_replacement = self.collection is not None
        super().schedule()
        for node in self.nodes if is_replacement else ():
            self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node in self.registered_collections:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    return _Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
