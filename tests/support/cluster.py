"""Several "nodes" on one machine: network namespaces, each with its own address, host name, hosts file and sshd."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.commands import warm_parent_address
from support.machine import patience, read_proc, wait_until
from support.warm_reaper import read_on_import

PROGRAMS = Path(__file__).parents[1] / "multinode"
PYTHON = sys.executable
SSH_COMMAND = Path(__file__).with_name("ssh_command.py")
TASK = f"{PROGRAMS / 'task.py'}:make"
TORCHRUN = [PYTHON, "-m", "torch.distributed.run"]
TRAIN = ["-m", "mjtrain.cli.train"]


def why_not() -> str | None:
    """Say why this machine allows no such nodes; None if it does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "unshare", "nsenter", "/usr/sbin/sshd", "ssh-keygen"):
        if shutil.which(program) is None:
            return f"needs the program {program}"
    done = subprocess.run(
        [
            "unshare",
            "--net",
            "--uts",
            "--mount",
            "ip",
            "link",
            "add",
            "probe0",
            "type",
            "veth",
            "peer",
            "name",
            "probe1",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else f"network namespaces are not allowed here: {done.stderr.strip()}"


def _namespace(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def _wait_for_namespace(pid: int) -> None:
    """Wait until a process has a separate network namespace."""
    wait_until(lambda: _namespace(pid) != _namespace(os.getpid()), "a separate network namespace")


class Node:
    """One host of the cluster."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        self.sshd: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        self._holder = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sleep", "infinity"])
        _wait_for_namespace(self._holder.pid)
        self.pid = self._holder.pid
        self.run("hostname", name)

    def enter(self, folder: Path) -> list[str]:
        """What to put before a command to run it there."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--mount", f"--wd={folder}", "--"]

    def run(self, *command: str) -> str:
        """Run a command there and return what it prints."""
        done = subprocess.run(
            [*self.enter(self.folder), *command], capture_output=True, text=True, check=False, timeout=patience(60.0)
        )
        assert done.returncode == 0, f"{command} on {self.name}: {done.stderr}"
        return done.stdout

    def know(self, others: "list[Node]") -> None:
        """Give it a hosts file as Debian writes one: the own name is a loopback address."""
        hosts = self.folder / "hosts"
        lines = ["127.0.0.1 localhost", f"127.0.1.1 {self.name}"]
        lines += [f"{other.address} {other.name}" for other in others if other is not self]
        hosts.write_text("\n".join(lines) + "\n")
        self.run("mount", "--bind", str(hosts), "/etc/hosts")

    def has(self, pid: int) -> bool:
        """Whether a process lives there."""
        try:
            return _namespace(pid) == _namespace(self.pid)
        except OSError:  # it has ended, or is not ours to ask
            return False

    def find(self, word: str) -> list[int]:
        """Find the processes there whose command line has a word in it, whatever started them."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in pids if word.encode() in read_proc(pid, "cmdline") and self.has(pid)]

    def kill_all(self) -> None:
        """Kill every process there at once, as when the host loses its power; its sshd stays, for the next boot."""
        kept = {self.pid} | ({self.sshd.pid} if self.sshd is not None else set())
        for pid in self.find(""):
            if pid not in kept:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def set_link(self, state: str) -> None:
        """Plug the cable in ("up") or out ("down")."""
        self.run("ip", "link", "set", "eth0", state)

    def serve_ssh(self, authorized: Path) -> str:
        """Start sshd there; return its public host key."""
        key = self.folder / "host_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        settings = [f"HostKey {key}", f"AuthorizedKeysFile {authorized}", f"ListenAddress {self.address}"]
        settings += ["StrictModes no", "UsePAM no", "PasswordAuthentication no", "PidFile none"]
        variables = [f'"{name}={value}"' for name, value in read_on_import(os.environ).items()]
        settings += [" ".join(["SetEnv", *variables])] if variables else []
        settings.append(f"ForceCommand exec {PYTHON} -E -S {SSH_COMMAND} {warm_parent_address()} {self.folder}")
        config = self.folder / "sshd_config"
        config.write_text("\n".join(settings) + "\n")
        Path("/run/sshd").mkdir(exist_ok=True)
        command = [*self.enter(self.folder), "/usr/sbin/sshd", "-D", "-f", str(config)]
        self.sshd = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        return " ".join(key.with_suffix(".pub").read_text().split()[:2])

    @contextlib.contextmanager
    def execute_agents(self) -> Iterator[None]:
        """Have agents that come over SSH executed in processes that have imported nothing."""
        mark = self.folder / "execute"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    def stop(self) -> None:
        for process in (self.sshd, self._holder):
            if process is not None:
                process.kill()
                process.wait()


class Cluster:
    """Two nodes with a cable between them, or more at a switch. The name of node 0 sorts last."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("zeta", "alpha")) -> None:
        self.folder = folder
        self.nodes = [Node(name, f"10.77.0.{index + 1}", folder / name) for index, name in enumerate(names)]
        self._switch: subprocess.Popen[bytes] | None = None
        ends = self._lay_cable() if len(names) == 2 else self._connect_switch()
        for node, end in zip(self.nodes, ends, strict=True):
            subprocess.run(["ip", "link", "set", end, "netns", str(node.pid), "name", "eth0"], check=True)
            node.run("ip", "address", "add", f"{node.address}/24", "dev", "eth0")
            node.run("ip", "link", "set", "eth0", "up")
            node.run("ip", "link", "set", "lo", "up")
            node.know(self.nodes)
        self.ssh_config = self._serve_ssh()

    def _lay_cable(self) -> list[str]:
        """Return the names of the ends of a new cable."""
        ends = [f"mjt{os.getpid() % 100000}{letter}" for letter in "ab"]
        subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
        return ends

    def _connect_switch(self) -> list[str]:
        """Return the names of the loose ends of one cable per node, whose other ends are in a switch."""
        self._switch = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        pid = self._switch.pid
        _wait_for_namespace(pid)
        inside = ["nsenter", "--target", str(pid), "--net", "--", "ip", "link"]
        subprocess.run([*inside, "add", "switch", "type", "bridge"], check=True)
        subprocess.run([*inside, "set", "switch", "up"], check=True)
        ends = [f"mjs{os.getpid() % 100000}{index}" for index in range(len(self.nodes))]
        for index, end in enumerate(ends):
            port = f"mjp{os.getpid() % 100000}{index}"
            subprocess.run(["ip", "link", "add", end, "type", "veth", "peer", "name", port], check=True)
            subprocess.run(["ip", "link", "set", port, "netns", str(pid)], check=True)
            subprocess.run([*inside, "set", port, "master", "switch", "up"], check=True)
        return ends

    def _serve_ssh(self) -> Path:
        """Start an sshd on each node, and write a configuration for ssh that knows one more name for the second."""
        key = self.folder / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        known = []
        for node in self.nodes:
            host_key = node.serve_ssh(key.with_suffix(".pub"))
            known += [f"{name} {host_key}" for name in (node.name, node.address)]
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text("\n".join(known) + "\n")
        return self.write_ssh_config("ssh_config", self.known_hosts)

    def write_ssh_config(self, name: str, known_hosts: Path) -> Path:
        config = self.folder / name
        key = self.folder / "id_ed25519"
        common = f"  IdentityFile {key}\n  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile none\n"
        config.write_text(f"Host box\n  HostName {self.nodes[1].address}\nHost *\n{common}")
        return config

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
