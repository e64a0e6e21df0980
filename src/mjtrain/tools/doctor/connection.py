"""Network interfaces and ports of this host, before anything uses them."""

import errno
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from mjtrain.launcher.ipc.network import is_local, list_interfaces, listen_at
from mjtrain.launcher.planning.placement import INTERFACE_VARIABLES
from mjtrain.tools.doctor.finding import Finding, Question, failure, ok


def check_interface(question: Question, environ: Mapping[str, str]) -> list[Finding]:
    """Look whether the interfaces exist that --interface or the environment name.

    NCCL's variable may hold a prefix, several names, or begin with ^ or =; gloo's may hold several names.
    """
    there = list_interfaces()
    words = ", ".join(f"{name} {address}" for name, address in there.items()) or "none with an IPv4 address"
    asked = [("--interface", question.interface)] if question.interface is not None else []
    asked += [(name, environ[name]) for name in INTERFACE_VARIABLES if environ.get(name)]
    for flag, value in asked:
        for name in value.lstrip("=").split(","):
            exists = any(one.startswith(name) for one in there) if flag.startswith("NCCL") else name in there
            if not exists and not value.startswith("^"):
                others = [one for one, address in there.items() if not is_local(address)] or list(there)
                change = f"unset {flag}, or set it to" if flag.isupper() else f"give {flag}"
                advice = f"{change} one of {', '.join(others)}"
                return [failure("interface", f"{flag} {value}: there is no such interface; there are {words}", advice)]
    chosen = "".join(f"; {flag} {value}" for flag, value in asked)
    return [ok("interface", words + chosen)]


def check_port(question: Question) -> list[Finding]:
    """Look whether the port is free at which this host waits for the others; nothing if it does not wait anywhere."""
    if question.listens_at is None:
        return []
    name, port = question.listens_at
    try:
        listen_at(name, port, for_others=True).close()
    except ConnectionError as error:
        cause = error.__cause__
        assert isinstance(cause, OSError)
        if isinstance(cause, socket.gaierror):
            advice = "set MASTER_ADDR to a name or address of the first host that every host can resolve"
            return [failure("port", f"{name}:{port}: the name does not resolve", advice)]
        advice = "set MASTER_PORT to a free port on every host, or end the program that holds this one"
        holder = f", held by {_find_holder(port)}" if cause.errno == errno.EADDRINUSE else ""
        return [failure("port", f"{name}:{port}: {os.strerror(cause.errno or 0).lower()}{holder}", advice)]
    return [ok("port", f"{name}:{port} is free")]


def _find_holder(port: int) -> str:
    """Name the process of this host that listens at a port, as far as this user may see it."""
    tables = [path.read_text() for path in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if path.exists()]
    rows = [line.split() for table in tables for line in table.splitlines()]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and re.search(rf":{port:04X}$", row[1])}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(path.readlink()) in sockets for path in (folder / "fd").iterdir()):
                return f"process {folder.name} ({(folder / 'comm').read_text().strip()})"
        except OSError:
            continue  # it has ended, or is another user's
    return "a process that this user may not see"
