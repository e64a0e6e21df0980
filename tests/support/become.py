"""Become another process without an exec: signals, descriptors, limits, namespaces, and what /proc shows."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import resource
import signal
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14

_memory: list[mmap.mmap] = []
"""What /proc shows of this process."""


def enter_namespaces(pid: int) -> None:
    """Get the network, the host name and the mounts of another process."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("net", "uts", "mnt"):
        descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        if libc.setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns({kind})")


def reset_signals(ignored: Sequence[int]) -> None:
    """Have signals ignored, and the dispositions with which an interpreter begins for all others."""
    signal.set_wakeup_fd(-1)
    kept = {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGINT,
        signal.SIGPIPE,
        signal.SIGXFSZ,
    }  # Python ignores the last two
    for signum in signal.valid_signals() - kept:
        with contextlib.suppress(OSError):  # two that the C library keeps for itself
            signal.signal(signum, signal.SIG_IGN if signum in ignored else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN if signal.SIGINT in ignored else signal.default_int_handler)


def move(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors other numbers, and close all others."""
    above = max(numbers) + 1
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
    for copy, number in zip(copies, numbers, strict=True):
        os.dup2(copy, number)
    for number in {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - {*numbers}:
        with contextlib.suppress(OSError):  # the one through which they were listed
            os.close(number)


def take_limits(request: dict[str, Any]) -> None:
    """Take over what a process has from the one that starts it, besides its streams, its folder and its environment."""
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["cores"])
    for name, limits in request["limits"].items():
        resource.setrlimit(int(name), tuple(limits))


def show(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Have /proc show this command line and this environment of this process; return whether the kernel allows it."""
    variables = [f"{name}={value}" for name, value in environ.items()]
    blocks = [b"".join(os.fsencode(entry) + b"\0" for entry in entries) for entries in (words, variables)]
    _memory[:] = [mmap.mmap(-1, sum(map(len, blocks)) + 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)]
    _memory[0].write(b"".join(blocks))
    begin = ctypes.addressof(ctypes.c_char.from_buffer(_memory[0]))
    middle, end = begin + len(blocks[0]), begin + len(blocks[0]) + len(blocks[1])
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start_code, end_code, start_stack = (int(stat[field - 3]) for field in (26, 27, 28))
    start_data, end_data, start_brk = (int(stat[field - 3]) for field in (45, 46, 47))
    places = [start_code, end_code, start_data, end_data, start_brk, libc.sbrk(ctypes.c_long(0)), start_stack]
    new = struct.pack("12QIi", *places, begin, middle, middle, end, 0, 0, -1)  # struct prctl_mm_map
    option, size, unused = ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.c_ulong(len(new)), ctypes.c_ulong(0)
    return libc.prctl(_PR_SET_MM, option, new, size, unused) == 0
