"""The agent on a host: makes the checks that need no other host, and reports to the process that asks.

Run as `python -m mjtrain.tools.doctor.host_agent`, over the launcher's own way to a host. Standard input and output
are the connection. The other end sends `check` with a question, and the agent answers with `facts`, one `finding` per
result, and `done`. When the connection breaks, the agent ends its checks and itself.
"""

import os
import select
import threading
from typing import Any

from mjtrain.launcher.ipc.host_connection import HostConnection
from mjtrain.tools.doctor.connection import check_interface, check_port
from mjtrain.tools.doctor.finding import Finding, Question
from mjtrain.tools.doctor.limits import check_limits
from mjtrain.tools.doctor.timed import SLOW_CHECKS, TimedChecks
from mjtrain.tools.doctor.versions import check_versions, describe_host

_FLUSH_S = 5.0


def main() -> None:
    """Serve the process at standard input and output."""
    connection = HostConnection(os.dup(0), os.dup(1))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    timed: TimedChecks | None = None
    while not connection.lost and not connection.unresponsive:
        connection.beat()
        if not select.select([connection], [], [], 0.5)[0]:
            continue
        for message, _ in connection.receive():
            if message["kind"] == "check":
                timed = _begin(connection, message)
    if timed is not None:
        timed.stop()
    os._exit(0)


def _begin(connection: HostConnection, message: dict[str, Any]) -> TimedChecks:
    """Start the checks in a thread, so that this process keeps in touch with the other end."""
    os.environ.update(message["environ"])
    question = Question.from_plain(message["question"])
    timed = TimedChecks(question)
    threading.Thread(target=_check_all, args=(connection, question, timed), name="mjtrain-checks", daemon=True).start()
    return timed


def _check_all(connection: HostConnection, question: Question, timed: TimedChecks) -> None:
    facts = describe_host()
    connection.send("facts", facts=facts)
    _send(connection, check_versions(facts))
    _send(connection, check_limits(question))
    _send(connection, check_interface(question, os.environ) + check_port(question))
    for name in SLOW_CHECKS:
        _send(connection, timed.run(name))
    connection.send("done")
    connection.flush(_FLUSH_S)


def _send(connection: HostConnection, findings: list[Finding]) -> None:
    for finding in findings:
        connection.send("finding", finding=finding.to_plain())


if __name__ == "__main__":
    main()
