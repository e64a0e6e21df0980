"""How the launcher reaches a host: through ssh, through srun in a Slurm allocation, or directly if it runs there."""

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from mjtrain.launcher.ipc.messages import HostConnection
from mjtrain.launcher.ipc.network import is_local, list_interfaces
from mjtrain.runtime.errors import RequestError

Transport = Literal["ssh", "srun"]

_NO_FOLDER, _NO_PYTHON = 91, 92

_SSH_OPTIONS = (
    "BatchMode=yes",  # a question would wait forever
    "StrictHostKeyChecking=yes",  # an unknown key is not taken on trust
    "ConnectTimeout=10",
    "ServerAliveInterval=10",  # mjtrain's heartbeats find a lost host; this ends ssh where nobody reads them
    "ServerAliveCountMax=30",
    "ClearAllForwardings=yes",
    "LogLevel=ERROR",
)


@dataclass(kw_only=True)
class HostHandle:
    """A connection to a host, and the process that carries it."""

    host: str
    connection: HostConnection
    process: subprocess.Popen[bytes] | None = None
    """ssh, srun, or the agent itself; None for a node that connected by itself."""
    trusted: bool = True
    """Whether the process at the other end was started by this user."""
    errors: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    """What the process has written to standard error."""

    def explain_end(self) -> str:
        """Say why the connection has ended."""
        if self.process is None:
            return "it closed its connection"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2.0)
        self.errors.seek(0)
        lines = [line for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        return explain_status(self.process.returncode, lines)

    def close(self) -> None:
        """Close the connection, and end the process that carries it."""
        self.connection.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def explain_status(status: int | None, lines: list[str]) -> str:
    """Say in words why the agent of a host ended."""
    said = "\n".join(lines)
    last = lines[-1].strip() if lines else "without a message"
    if status == _NO_FOLDER:
        return f"the working directory {Path.cwd()} does not exist; folders must be at the same path on every host"
    if status == _NO_PYTHON:
        return f"{sys.executable} does not exist; the same environment must be at the same path on every host"
    if "Could not resolve hostname" in said:
        return "the name does not resolve"
    if "Host key verification failed" in said or "HOST IDENTIFICATION HAS CHANGED" in said:
        if "HAS CHANGED" in said:
            return "its SSH host key has changed: find out why, then update known_hosts"
        return "its SSH host key is not known: log in once by hand to add it to known_hosts"
    if status == 255 and not lines:
        return "mjtrain's agent on this host was killed, or the connection to it broke"
    if status == 255:
        return f"SSH failed: {last}"
    if status is not None and not 0 <= status <= 128:
        return f"mjtrain's agent on this host was killed by signal {-status if status < 0 else status - 128}"
    return f"mjtrain's agent on this host ended with status {status}: {last}"


def open_handles(hosts: Iterable[str], *, ssh_config_file: str | None, transport: Transport) -> list[HostHandle]:
    """Start the agents of several hosts, or of none."""
    handles: list[HostHandle] = []
    try:
        for host in hosts:
            handles.append(open_handle(host, ssh_config_file=ssh_config_file, transport=transport))
    except BaseException:
        for handle in handles:
            handle.close()
        raise
    return handles


def open_handle(host: str, *, ssh_config_file: str | None, transport: Transport) -> HostHandle:
    """Start the agent of a host."""
    python = [sys.executable, "-P", "-m", "mjtrain.launcher.multinode.node_agent"]
    if transport == "srun":
        # A separate step on that host, beside others of this job. srun would bind its one task to one core.
        step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--cpu-bind=none"]
        step += ["--export=ALL", "--unbuffered"]
        command = [*step, *python]
    elif is_this_machine(host, ssh_config_file):
        command = python
    else:
        remote = (
            f"cd {shlex.quote(str(Path.cwd()))} 2>/dev/null || exit {_NO_FOLDER}; "
            f"test -x {shlex.quote(sys.executable)} || exit {_NO_PYTHON}; exec {shlex.join(python)}"
        )
        command = [*_ssh(ssh_config_file), "-T", host, "exec /bin/sh -c " + shlex.quote(remote)]
    # That of the user's login, perhaps on another host, is not the way to this agent; sshd sets it where it is.
    environ = {name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"}
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True, env=environ)
    except BaseException as error:
        errors.close()
        if command is python or not isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise RequestError(
            f"--hostnames: {command[0]}, which reaches {host}, cannot be started on this machine ({error.strerror})"
        ) from error
    assert process.stdin is not None
    assert process.stdout is not None
    host_connection = HostConnection(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()), skips_noise=True)
    process.stdin.close()
    process.stdout.close()
    return HostHandle(host=host, connection=host_connection, process=process, errors=errors)


def _ssh(ssh_config_file: str | None) -> list[str]:
    options = [word for option in _SSH_OPTIONS for word in ("-o", option)]
    return ["ssh", *options, *(["-F", ssh_config_file] if ssh_config_file is not None else [])]


def is_this_machine(host: str, ssh_config_file: str | None) -> bool:
    """Whether a name means this machine, and SSH would reach it directly."""
    if host in ("localhost", "127.0.0.1", socket.gethostname()):
        return True
    try:
        shown = subprocess.run(
            [*_ssh(ssh_config_file), "-G", host], capture_output=True, text=True, check=True, timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    pairs = [line.partition(" ") for line in shown.splitlines()]
    settings: dict[str, str] = {name: value for name, _, value in pairs}
    if "proxyjump" in settings or "proxycommand" in settings or settings.get("port", "22") != "22":
        return False  # leads elsewhere, whatever the address looks like from here
    try:
        address = socket.gethostbyname(settings.get("hostname", host))
    except OSError:
        return False
    return is_local(address) or address in list_interfaces().values()
