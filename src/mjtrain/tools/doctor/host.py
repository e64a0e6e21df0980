"""The checks of one host: versions, limits, interfaces and ports; those that may hang run in a separate process."""

import _thread
import contextlib
import errno
import importlib
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mjtrain.config import from_plain, to_plain
from mjtrain.launcher.failure import describe_exit
from mjtrain.launcher.ipc.network import find_holder, is_local, list_interfaces, listen_at
from mjtrain.launcher.planning.placement import INTERFACE_VARIABLES, visible_gpus
from mjtrain.runtime.machine import available_memory, cpu_quota, format_bytes, installed_packages, max_tasks
from mjtrain.runtime.processes import die_with_parent
from mjtrain.sim.drawing.backend import list_gpu_uuids
from mjtrain.tools.doctor.finding import Finding, Question, failure, grade, ok, skipped, warning

_GRACE_S = 2
"""Time that a check has to delete what it wrote."""

_NEEDED = ("mjtrain", "torch", "torchrunx", "rsl-rl-lib", "tensordict", "mujoco", "mujoco-warp", "warp-lang", "numpy")

SLOW_CHECKS = {
    "gpus": "the driver does not answer: `nvidia-smi` may hang as well; reset the GPU or restart the machine",
    "log-root": "the file system does not answer: look at its mount and its server, or give another --log-root",
    "storage": "the storage does not answer: look at the URL, the endpoint, the proxy and the firewall",
    "kernels": "give a larger --timeout-s if the machine is slow; otherwise reset the GPU or restart the machine",
    "rendering": "the graphics driver does not answer: restart the machine, or try MUJOCO_GL=osmesa",
}
"""Checks that may hang, in their order, and what to do then; `check_{name}` makes a check, in a separate process."""

_RANK_BYTES = 1 << 30
"""Memory that a small training takes on a rank, libraries included."""

_RANK_TASKS = 64
"""Processes and threads of a rank with one thread for physics, libraries included."""

_GOOD_DESCRIPTORS = 1024
_LEAST_ADDRESSES = 3_500_000_000
"""Address space without which a rank cannot load its libraries."""

_SHM_BYTES = 64 << 20
_ENDLESS = resource.RLIM_INFINITY
_INFINIBAND = Path("/sys/class/infiniband")


def describe_host() -> dict[str, Any]:
    """Return what must be the same on all hosts, and where it is."""
    facts = {"host": socket.gethostname(), "python": platform.python_version(), "prefix": sys.prefix}
    return {**facts, "packages": installed_packages()}


def check_versions(facts: Mapping[str, Any]) -> list[Finding]:
    """Look at the versions of one host."""
    packages = facts["packages"]
    missing = ", ".join(name for name in _NEEDED if packages.get(name) is None)
    there = ", ".join(f"{name} {packages[name]}" for name in ("mjtrain", "torch", "mujoco", "warp-lang"))
    if missing:
        advice = f"install {missing} into {facts['prefix']}: `uv sync`, or pip install mjtrain again"
        return [ok("python", facts["python"]), failure("packages", f"{missing} missing", advice)]
    return [ok("python", facts["python"]), ok("packages", there)]


def compare_versions(facts: Mapping[str, Any], first: Mapping[str, Any]) -> list[Finding]:
    """Compare a host with the first one; empty where they have the same versions."""
    found = []
    if facts["python"] != first["python"]:
        figure = f"{facts['python']}, and {first['python']} on {first['host']}"
        advice = f"use Python {first['python']} on every host, at the same path ({first['prefix']})"
        found.append(failure("python", figure, advice).at(facts["host"]))
    theirs = facts["packages"]
    others = {name: mine for name, mine in first["packages"].items() if theirs.get(name) != mine}
    if others:
        words = [f"{name} {theirs.get(name) or 'missing'}, and {mine or 'none'}" for name, mine in others.items()]
        figure = f"{'; '.join(words)} on {first['host']}"
        wanted = " ".join(f"{name}=={mine}" for name, mine in others.items() if mine)
        advice = f"install the same on every host, into {facts['prefix']}: pip install {wanted}"
        if not wanted:
            advice = f"install the same on every host: pip uninstall {' '.join(others)}"
        found.append(failure("packages", figure, advice).at(facts["host"]))
    return found


def check_host(**plain: Any) -> Iterator[dict[str, Any]]:
    """Make all checks that need no other host, for a `Question` as plain values.

    Yields:
        `facts`, which are what `describe_host` returns, and then each finding, as plain values.
    """
    facts = describe_host()
    yield {"facts": facts}
    question = from_plain(Question, plain)
    found = [*check_versions(facts), *check_limits(question), *check_interface(question, os.environ)]
    yield from map(asdict, [*found, *check_port(question)])
    for name in SLOW_CHECKS:
        yield from map(asdict, _check_apart(name, question))


def _check_apart(name: str, question: Question) -> list[Finding]:
    """Make a check in a separate process; its findings, or a failure if it hangs or crashes."""
    label = "warp kernels" if name == "kernels" else name.replace("-", " ")
    if name in question.skip:
        return [skipped(label, f"--skip {name}")]
    if name == "gpus" and question.launch.gpu_ids is None:
        return [skipped(label, "--gpu-ids None")]
    if name == "storage" and question.checkpoint_url is None:
        return [skipped(label, "no --checkpoint-url")]
    optional = (name == "rendering" and not question.video) or (name == "kernels" and question.launch.gpu_ids is None)
    judge = warning if optional else failure
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "mjtrain.tools.doctor.host", name, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for this process, which ends the check
    )
    try:
        out, err = process.communicate(json.dumps(to_plain(question)), timeout=question.timeout_s)
    except subprocess.TimeoutExpired:
        return [judge(label, f"no answer within {question.timeout_s:g} s (--timeout-s)", SLOW_CHECKS[name])]
    finally:
        _end(process)
    if process.returncode == 0:
        return [Finding(**one) for one in json.loads(out)]
    lines = err.strip().splitlines() or ["without a message"]
    figure = f"the check {describe_exit(process.returncode)[0]}: {lines[-1][:160]}"
    return [judge(label, figure, "reinstall the library or driver named above")]


def _end(process: "subprocess.Popen[str]") -> None:
    """End a process, which may be stuck in the kernel: it is then left to it, and ends when the kernel lets go."""
    for end in (process.terminate, process.kill):
        if process.poll() is None:
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)


def main() -> None:
    """Make the check that the first argument names, for the parent that the second one names."""
    name, parent = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=_leave_on_request, daemon=True).start()
    die_with_parent(int(parent), signal.SIGTERM)
    question = from_plain(Question, json.load(sys.stdin))
    signal.alarm(int(question.timeout_s) + 2 * _GRACE_S)  # for a library that lets no other thread run
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    place = "kernels" if name == "kernels" else "slow_checks"  # only that one imports Warp
    check = getattr(importlib.import_module(f"mjtrain.tools.doctor.{place}"), f"check_{name.replace('-', '_')}")
    findings: list[Finding] = check(question)
    with answer:
        json.dump([asdict(finding) for finding in findings], answer)
    os._exit(0)  # drivers take seconds to close


def _leave_on_request() -> None:
    """Interrupt the check, so that it deletes what it wrote; the kernel ends this process where that takes too long."""
    signal.sigwait([signal.SIGTERM])
    signal.alarm(_GRACE_S)
    _thread.interrupt_main()


def check_limits(question: Question) -> list[Finding]:
    """Look at all limits of this process and its cgroups."""
    ranks = question.num_ranks or count_ranks(question.launch.gpu_ids, os.environ, len(list_gpu_uuids()))
    return [
        check_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0], ranks, question.world_size),
        check_tasks(ranks),
        check_locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], uses_infiniband=_INFINIBAND.exists()),
        check_cores(len(os.sched_getaffinity(0)), cpu_quota(), ranks, question.launch.num_threads),
        check_memory(available_memory(), resource.getrlimit(resource.RLIMIT_AS)[0], ranks),
        check_shared_memory(Path("/dev/shm"), ranks if question.launch.gpu_ids is not None else 1),
    ]


def count_ranks(gpu_ids: tuple[int, ...] | str | None, environ: Mapping[str, str], num_gpus: int) -> int:
    """Return how many ranks --gpu-ids means on this host, without asking the driver, which may hang."""
    if isinstance(gpu_ids, tuple):
        return max(1, len(gpu_ids))
    return max(1, len(visible_gpus(environ, num_gpus))) if gpu_ids == "all" else 1


def check_descriptors(limit: int, num_ranks: int, world_size: int) -> Finding:
    """Compare the limit of open files with what the ranks of this host need."""
    if limit == _ENDLESS:
        return ok("descriptors", "no limit")
    # Measured with small trainings: two ranks on one host end with an error at 20 and run at 24, and four at 30 and
    # at 36. Ranks on other hosts take a connection each.
    least = 12 + 6 * num_ranks + (world_size - num_ranks)
    advice = "`ulimit -n 65536` before the command; for good in /etc/security/limits.conf (nofile) or LimitNOFILE="
    if limit < least:
        return failure("descriptors", f"{limit} open files per process, {least} are needed", advice)
    if limit < max(_GOOD_DESCRIPTORS, 2 * least):
        return warning("descriptors", f"{limit} open files per process, few where environments open files", advice)
    return ok("descriptors", f"{limit:,} open files per process")


def check_tasks(num_ranks: int) -> Finding:
    """Compare the limits of processes and threads with what the ranks of this host need."""
    need = _RANK_TASKS * num_ranks
    in_cgroup = max_tasks()
    if in_cgroup is not None and in_cgroup < need:
        advice = "raise the container's limit (docker run --pids-limit, pids.max of the cgroup)"
        return failure("processes", f"{in_cgroup} more in this cgroup, about {need} are needed", advice)
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() != 0 and limit != _ENDLESS and limit < 2 * need:  # the limit does not hold for root
        advice = "`ulimit -u 32768` before the command; for good in /etc/security/limits.conf (nproc)"
        return warning("processes", f"{limit} per user, about {need} are needed", advice)
    there = [f"{limit:,} per user"] if limit != _ENDLESS else []
    there += [f"{in_cgroup:,} more in this cgroup"] if in_cgroup is not None else []
    return ok("processes", ", ".join(there) or "no limit")


def check_locked_memory(limit: int, *, uses_infiniband: bool) -> Finding:
    """Look at the limit of locked memory, which InfiniBand's driver needs for its buffers."""
    if limit == _ENDLESS:
        return ok("locked memory", "no limit")
    if not uses_infiniband:
        return ok("locked memory", f"{format_bytes(limit)}; only InfiniBand needs more, and this host has none")
    advice = "`ulimit -l unlimited`; in a container --ulimit memlock=-1; without it NCCL cannot register its buffers"
    return warning("locked memory", f"{format_bytes(limit)}, and this host has InfiniBand", advice)


def check_cores(usable: int, quota: float | None, num_ranks: int, num_threads: int | None) -> Finding:
    """Compare the cores with the ranks and their threads."""
    has = min(usable, quota or usable)
    words = f"{usable} usable, {os.cpu_count()} in the machine"
    words += f", of whose time a cgroup allows {quota:g}" if quota is not None and quota < usable else ""
    if num_ranks > max(1, has):
        advice = f"start at most {max(1, int(has))} ranks here: --num-workers {max(1, int(has))}"
        return warning("cores", f"{words}; for {num_ranks} ranks", advice)
    threads = num_ranks * (num_threads or max(1, int(has) // num_ranks))
    if threads > has + 0.5:
        advice = f"give --num-threads {max(1, int(has / num_ranks))}: threads that wait cost time"
        return warning("cores", f"{words}; for {threads} threads", advice)
    return ok("cores", words)


def check_memory(free: int, address_space: int, num_ranks: int) -> Finding:
    """Compare free memory, within this process's cgroups, with what the ranks take before any environment is made."""
    need = _RANK_BYTES * num_ranks
    ranks = "a rank takes" if num_ranks == 1 else f"{num_ranks} ranks take"
    if address_space != _ENDLESS and address_space < _LEAST_ADDRESSES:
        figure = f"address space limited to {format_bytes(address_space)}; libraries alone take more"
        return failure("memory", figure, "`ulimit -v unlimited` before the command: it limits addresses, not memory")
    figure = f"{format_bytes(free)} free"
    if free < need:
        advice = "start fewer ranks, end other programs, or raise the limit of the container or job (--mem of Slurm)"
        return failure("memory", f"{figure}, {ranks} {format_bytes(need)} before any environment", advice)
    if free < 2 * need:
        advice = "keep --num-envs small, or raise the limit; `train --dry-run` says what a rollout needs"
        return warning("memory", f"{figure}, of which {ranks} {format_bytes(need)}", advice)
    return ok("memory", figure)


def check_shared_memory(folder: Path, num_ranks: int) -> Finding:
    """Look at /dev/shm, through which NCCL's ranks and the processes of Gymnasium's environments talk."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return warning("/dev/shm", error.strerror or str(error), f"mount -t tmpfs -o size=1g tmpfs {folder}")
    free, need = found.f_bavail * found.f_frsize, _SHM_BYTES * num_ranks
    figure = f"{format_bytes(free)} free" + (f", {format_bytes(need)} are needed" if free < need else "")
    advice = "docker run --shm-size=1g or --ipc=host; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    return grade("/dev/shm", figure, advice, warns=free < need, fails=free < need and num_ranks > 1)


def check_interface(question: Question, environ: Mapping[str, str]) -> list[Finding]:
    """Look whether the interfaces exist that --interface or the environment name.

    NCCL's variable may hold a prefix, several names, or begin with ^ or =; gloo's may hold several names.
    """
    there = list_interfaces()
    words = ", ".join(f"{name} {address}" for name, address in there.items()) or "none with an IPv4 address"
    asked = [("--interface", question.launch.interface)] if question.launch.interface is not None else []
    asked += [(name, environ[name]) for name in INTERFACE_VARIABLES if environ.get(name)]
    for flag, value in asked:
        for name in value.lstrip("=").split(","):
            exists = any(one.startswith(name) for one in there) if flag.startswith("NCCL") else name in there
            if not exists and not value.startswith("^"):
                others = [one for one, address in there.items() if not is_local(address)] or list(there)
                change = f"unset {flag}, or set it to" if flag.isupper() else f"give {flag}"
                advice = f"{change} one of {', '.join(others)}"
                return [failure("interface", f"{flag} {value}: does not exist; available: {words}", advice)]
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
        holder = f", held by {find_holder(port)}" if cause.errno == errno.EADDRINUSE else ""
        return [failure("port", f"{name}:{port}: {os.strerror(cause.errno or 0).lower()}{holder}", advice)]
    return [ok("port", f"{name}:{port} is free")]


if __name__ == "__main__":
    main()
