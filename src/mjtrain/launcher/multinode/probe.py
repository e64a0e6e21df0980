"""What the hosts of a job have: asked on all of them before anything starts on any."""

import fnmatch
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mjtrain.config import LaunchConfig
from mjtrain.launcher.ipc.messages import HOST_TIMEOUT_S, await_readable
from mjtrain.launcher.multinode.transport import HostHandle, open_handles
from mjtrain.launcher.planning.placement import visible_gpus
from mjtrain.launcher.planning.plan import Host, LaunchPlan
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.machine import installed_packages
from mjtrain.runtime.processes import JOB_VARIABLE

PROBE_TIMEOUT_S = 90.0
"""Time that a host has to answer; counting GPUs imports torch, perhaps from a cold disk."""

RETURN_TIMEOUT_S = 10.0
"""Time that a host which was lost has to answer before a restart that could have it again."""

COPIED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "PYTHON*",
    "CUDA*",
    "NVIDIA_*",
    "NCCL*",
    "GLOO*",
    "TORCH*",
    "PYTORCH*",
    "WARP_*",
    "MUJOCO_*",
    "OMP_*",
    "MKL_*",
    "WANDB_*",
    "AWS_*",
    "AZURE_*",
    "GOOGLE_*",
    "MJTRAIN_*",
)
"""Environment variables that every host gets from the launcher."""


def select_environ(environ: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """Choose the environment variables that every host gets."""
    return {
        name: value
        for name, value in environ.items()
        if name != JOB_VARIABLE and any(fnmatch.fnmatchcase(name, pattern) for pattern in (*COPIED, *more))
    }


def probe_hosts(names: Sequence[str], config: LaunchConfig, folder: Path | None) -> tuple[Host, ...]:
    """Probe all hosts at the same time; return them in this order, each with an address at which others reach it."""
    facts, failed = _describe(names, config, folder, count=config.gpu_ids is not None, resolve=names)
    problems = [f"host {name}: {problem}" for name, problem in failed.items()]
    for name in names:
        if name in facts:
            problems += [f"host {name}: {problem}" for problem in list_differences(facts[name], folder)]
    if problems:
        raise RequestError.of([f"--hostnames: {problems[0]}", *problems[1:]])
    return tuple(
        Host(
            name=name,
            visible=visible_gpus(
                {} if facts[name]["visible"] is None else {"CUDA_VISIBLE_DEVICES": facts[name]["visible"]},
                facts[name]["num_gpus"],
            ),
            num_cores=facts[name]["num_cores"],
            address=_find_address(name, facts, config.interface),
        )
        for name in names
    )


def find_answering(names: Sequence[str], plan: LaunchPlan, is_cancelled: Callable[[], bool]) -> list[str]:
    """Return which hosts of a job that were lost can be used again."""
    folder = None if plan.log_dir is None else Path(plan.log_dir)
    facts = _describe(names, plan, folder, timeout_s=RETURN_TIMEOUT_S, is_cancelled=is_cancelled)[0]
    return [name for name in facts if not list_differences(facts[name], folder)]


def _describe(
    names: Sequence[str],
    way: LaunchConfig | LaunchPlan,
    folder: Path | None,
    *,
    count: bool = False,
    resolve: Sequence[str] = (),  # which may take seconds where DNS does not answer
    timeout_s: float = PROBE_TIMEOUT_S,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return what `describe_host` finds on each host, with the number of GPUs if they count, and why others fail."""
    question = {"folder": None if folder is None else str(folder), "with_gpus": count, "names": list(resolve)}
    facts: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    call_on_hosts(
        "mjtrain.launcher.multinode.node_agent:describe_host",
        dict.fromkeys(names, question),
        way,
        facts.__setitem__,
        failed.__setitem__,
        timeout_s=timeout_s,
        is_cancelled=is_cancelled,
    )
    return facts, failed


def call_on_hosts(
    function: str,
    arguments: Mapping[str, Mapping[str, Any]],
    way: LaunchConfig | LaunchPlan,
    on_value: Callable[[str, Any], None],
    on_failure: Callable[[str, str], None],
    *,
    timeout_s: float,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Call a generator function on several hosts at the same time, before any rank is started there.

    Only JSON travels, so the hosts may have different versions of Python and of packages.

    Args:
        function: Where it is, as "module:name".
        arguments: Its keyword arguments on each host, by the host's name; plain values.
        way: How to reach the hosts, and which environment variables they get.
        on_value: Called with the name of a host and a plain value that the function there has yielded, as it comes.
        on_failure: Called with the name of a host where the function does not finish, and why.
        timeout_s: Time that all of it may take, in seconds.
    """
    by_srun = way.transport == "srun" if isinstance(way, LaunchPlan) else way.hostnames == ("slurm",)
    transport = "srun" if by_srun else "ssh"
    handles = open_handles(arguments, ssh_config_file=way.ssh_config_file, transport=transport)
    waiting = {handle.connection.fileno(): handle for handle in handles}
    begin_s = time.monotonic()
    try:
        environ = select_environ(os.environ, way.copy_env)
        for handle in handles:
            handle.connection.heard_s = begin_s + PROBE_TIMEOUT_S - HOST_TIMEOUT_S
            handle.connection.send("call", environ=environ, function=function, arguments=dict(arguments[handle.host]))
        while waiting and (left_s := begin_s + timeout_s - time.monotonic()) > 0 and not is_cancelled():
            ready = await_readable(*waiting, wait_s=min(left_s, 1.0))
            for descriptor, handle in list(waiting.items()):
                handle.connection.beat()
                is_silent = handle.connection.explain_silence() is not None
                problem = "it does not answer: it is down, or the network is" if is_silent else ""
                if descriptor in ready:
                    problem = _hear(handle, on_value)
                if problem is None:
                    del waiting[descriptor]
                elif problem:
                    on_failure(waiting.pop(descriptor).host, problem)
        for handle in waiting.values():
            on_failure(handle.host, f"did not answer within {timeout_s:g} s")
    finally:
        for handle in handles:
            handle.close()


def _hear(handle: HostHandle, on_value: Callable[[str, Any], None]) -> str | None:
    """Take what has arrived; return what is wrong with the host, empty for nothing, or None once it is done."""
    try:
        messages = handle.connection.receive()
    except ValueError:
        return "its answer is not one of mjtrain's: something prints into the connection, such as a shell's start file"
    for message, _ in messages:
        if message["kind"] == "value":
            on_value(handle.host, message["value"])
        elif message["kind"] == "returned":
            return None
    return handle.explain_end() if handle.connection.lost else ""


def list_differences(facts: Mapping[str, Any], folder: Path | None) -> list[str]:
    """Compare a host with this one; returns a line for each problem."""
    problems = []
    if facts["python"] != platform.python_version():
        problems.append(f"Python is {facts['python']} there and {platform.python_version()} here")
    for package, here in installed_packages().items():
        there = facts["packages"].get(package)
        if there != here:
            state = "is missing there" if there is None else f"is {there} there and {here} here"
            problems.append(f"{package} {state}; the environments ({sys.prefix}) must be the same")
    if not facts["writable"]:
        problems.append(f"{folder} cannot be written there")
    return problems


def _find_address(name: str, facts: Mapping[str, Mapping[str, Any]], interface: str | None) -> str:
    mine, others = facts[name], [fact for other, fact in facts.items() if other != name]
    if interface is not None:
        address = mine["interfaces"].get(interface)
        if address is None:
            there = ", ".join(mine["interfaces"])
            raise RequestError(f"--interface {interface}: host {name} has no such interface; it has {there}")
        return address
    if not others:
        return "127.0.0.1"
    # Where the launcher reached it; or else the launcher is on this host, and reached others from there.
    ways = [
        fact["connection"][place]
        for fact, place in ((mine, 2), *((other, 0) for other in others))
        if fact["connection"]
    ]
    for address in ways:
        if ":" not in address:  # the ranks meet at an IPv4 address
            return address
    return next((fact["resolved"][name] for fact in others if fact["resolved"][name]), "127.0.0.1")
