"""What the hosts of a job have: asked on all of them before anything starts on any."""

import fnmatch
import os
import platform
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mjtrain.config import LaunchConfig
from mjtrain.launcher.multinode.transport import HostHandle, open_handle
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
    """Probe all hosts at the same time.

    Returns:
        The hosts, in the same order, each with an address at which the others reach it.

    Raises:
        RequestError: Some cannot be used; the message has the first problem, and each further one is a note.
    """
    transport = "srun" if config.hostnames == ("slurm",) else "ssh"
    handles = [open_handle(name, ssh_config_file=config.ssh_config_file, transport=transport) for name in names]
    try:
        question = {
            "environ": select_environ(os.environ, config.copy_env),
            "folder": None if folder is None else str(folder),
            "count_gpus": config.gpu_ids is not None,
            "names": list(names),
        }
        facts, problems = _ask(handles, question)
    finally:
        for handle in handles:
            handle.close()
    for name in names:
        if name in facts:
            problems += [f"host {name}: {problem}" for problem in list_differences(facts[name], folder)]
    if problems:
        error = RequestError(f"--hostnames: {problems[0]}")
        for problem in problems[1:]:
            error.add_note(problem)
        raise error
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


def find_answering(
    names: Sequence[str], plan: LaunchPlan, is_cancelled: Callable[[], bool] = lambda: False
) -> list[str]:
    """Return which hosts of a job that were lost can be used again."""
    handles = [open_handle(name, ssh_config_file=plan.ssh_config_file, transport=plan.transport) for name in names]
    try:
        environ = select_environ(os.environ, plan.copy_env)
        question = {"environ": environ, "folder": plan.log_dir, "count_gpus": False, "names": []}
        facts = _ask(handles, question, RETURN_TIMEOUT_S, is_cancelled)[0]
    finally:
        for handle in handles:
            handle.close()
    folder = None if plan.log_dir is None else Path(plan.log_dir)
    return [name for name in facts if not list_differences(facts[name], folder)]


def _ask(
    handles: list[HostHandle],
    question: dict[str, Any],
    timeout_s: float = PROBE_TIMEOUT_S,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return what each host answers, by name, and why others do not."""
    for handle in handles:
        handle.connection.send("probe", **question)
    facts: dict[str, dict[str, Any]] = {}
    problems = []
    waiting = {handle.connection.fileno(): handle for handle in handles}
    deadline_s = time.monotonic() + timeout_s
    while waiting and (left_s := deadline_s - time.monotonic()) > 0 and not is_cancelled():
        for descriptor in select.select(list(waiting), [], [], min(left_s, 1.0))[0]:
            handle = waiting[descriptor]
            try:
                answers = [message for message, _ in handle.connection.receive() if message["kind"] == "facts"]
            except ValueError:
                answers, handle.connection.lost = [], True
            if answers:
                facts[handle.host] = answers[0]
            elif handle.connection.lost:
                problems.append(f"host {handle.host}: {handle.explain_end()}")
            else:
                continue
            del waiting[descriptor]
        for handle in waiting.values():
            handle.connection.beat()
    problems += [f"host {handle.host}: did not answer within {timeout_s:g} s" for handle in waiting.values()]
    return facts, problems


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
    """Find the address at which the other hosts reach one of them."""
    mine, others = facts[name], [fact for other, fact in facts.items() if other != name]
    if interface is not None:
        address = mine["interfaces"].get(interface)
        if address is None:
            there = ", ".join(mine["interfaces"])
            raise RequestError(f"--interface {interface}: host {name} has no such interface; it has {there}")
        return address
    if not others:
        return "127.0.0.1"
    if mine["connection"]:
        return mine["connection"][2]  # where the launcher reached it
    for other in others:
        if other["connection"]:
            return other["connection"][0]  # the launcher is on this host, and came from there
    return next((fact["resolved"][name] for fact in others if fact["resolved"][name]), "127.0.0.1")
