"""Names, addresses and interfaces of this host."""

import contextlib
import errno
import fcntl
import ipaddress
import math
import os
import re
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from mjtrain.runtime.standard_streams import write_to_stderr

_SIOCGIFADDR = 0x8915
_RETRY_S = 0.5

_NOTICE_S = 5.0
"""How long a wait lasts before it is announced: processes of one job often start seconds apart."""


class Wait:
    """A wait for other processes of a job, which ends with an error."""

    def __init__(self, timeout_s: float, flag: str = " (--connect-timeout-s)", *, announces: bool = True) -> None:
        self._timeout_s = timeout_s
        self._flag = flag
        self._begin_s = time.monotonic()
        self._notice_s = min(_NOTICE_S, timeout_s) if announces else math.inf

    @property
    def left_s(self) -> float:
        """Seconds until it is over; at least 0."""
        return max(0.0, self._begin_s + self._timeout_s - time.monotonic())

    def check(self, explain: Callable[[str], str]) -> None:
        """Raise a ConnectionError if the time is over. Before that, announce once what has not happened yet.

        Args:
            explain: Takes a phrase such as "within 5 s", and returns a sentence with it that says what did not happen.
        """
        limit = f"{self._timeout_s:g} s{self._flag}"
        if self.left_s == 0:
            raise ConnectionError(explain(f"within {limit}"))
        if self._notice_s < self._timeout_s - self.left_s:
            write_to_stderr(f"{explain(f'within {self._notice_s:g} s')}; waiting for at most {limit}")
            self._notice_s = self._timeout_s


def list_interfaces() -> dict[str, str]:
    """Return the IPv4 address of each network interface that has one, by its name."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def choose_gloo_interface(peer: str) -> None:
    """Have gloo use the interface on the way to a host, or to this one itself, unless the user has said which.

    Its own choice is whatever this host's name resolves to, which is a loopback address on many machines. It is left
    to it where the way cannot be told.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))  # sends nothing: the kernel only chooses the way
        mine = probe.getsockname()[0]
        for name, address in list_interfaces().items():
            if address == mine or (mine.startswith("127.") and address == "127.0.0.1"):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                return


def names_this_machine(host: str) -> bool:
    """Whether a name or address is one at which only this machine can be reached, whoever reads it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local(address: str) -> bool:
    """Whether an address means nothing on other hosts: loopback, or "all addresses of this host"."""
    return address.startswith("127.") or address in ("::1", "0.0.0.0", "::")


def listen_at(host: str, port: int, *, for_others: bool) -> socket.socket:
    """Listen at one address of this host.

    Args:
        host: Name or address; all addresses are taken where it stands for something in front of this host, or where
            this host takes its own name for a loopback address, as Debian writes it, and others are to come. They are
            not for an address such as 127.0.0.1, at which others cannot come.

    Raises:
        ConnectionError: The port is taken, or the name does not resolve to an IPv4 address.
    """
    try:
        address = socket.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)[0][4][0]
        if for_others and is_local(str(address)) and not names_this_machine(host):
            address = ""
        try:
            return socket.create_server((str(address), port), backlog=socket.SOMAXCONN)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return socket.create_server(("", port), backlog=socket.SOMAXCONN)
    except OSError as error:
        holder = f", held by {find_holder(port)}" if error.errno == errno.EADDRINUSE else ""
        only = " to an IPv4 address (only IPv4 is supported)" if isinstance(error, socket.gaierror) else ""
        raise ConnectionError(
            f"cannot listen at {host}:{port}, where the other ranks look: {_reason(error)}{only}{holder}"
        ) from error


def find_holder(port: int) -> str:
    """Name the process of this host that listens at a port, as far as this user may see it."""
    rows: list[list[str]] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):  # not Linux, or a sandbox
            rows += [line.split() for line in Path(table).read_text().splitlines()]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and re.search(rf":{port:04X}$", row[1])}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(path.readlink()) in sockets for path in (folder / "fd").iterdir()):
                return f"process {folder.name} ({(folder / 'comm').read_text().strip()})"
        except OSError:
            continue  # it has ended, or is another user's
    return "a process that this user may not see"


def connect_to(host: str, port: int, wait: Wait, *, what: str) -> socket.socket:
    """Connect to a host that may not be up yet, or raise a ConnectionError that names it and says why.

    A name that does not resolve may do so later: Kubernetes and others publish it when the host runs.
    """
    while True:
        try:
            return socket.create_connection((host, port), timeout=max(0.1, min(wait.left_s, _NOTICE_S)))
        except OSError as error:
            reason = _reason(error)
        wait.check(lambda within, reason=reason: f"{what} at {host}:{port} cannot be reached {within}: {reason}")
        time.sleep(min(_RETRY_S, wait.left_s))


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the name does not resolve"
    return error.strerror or str(error)
