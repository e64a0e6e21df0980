"""What the jobs without RSL-RL do: `functions.py RANKS NAME [ARGUMENT...]`."""

import atexit
import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import mjtrain
from mjtrain.runtime import heartbeat


def mark() -> None:
    """Write down the moment of the fault."""
    marker = Path(os.environ["FAULT_MARKER"])
    if not marker.exists():
        marker.with_suffix(".new").write_text(str(time.time()))
        marker.with_suffix(".new").rename(marker)


class Unpicklable(Exception):
    def __reduce__(self) -> str:
        raise TypeError("no")


class Bomb:
    """Goes off when a certain rank unpickles it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __reduce__(self) -> tuple:
        return _go_off, (self.rank,)


def _go_off(rank: int) -> None:
    if int(os.environ["RANK"]) == rank:
        mark()
        raise ValueError("the arm fell off")


def _raise() -> None:
    raise ValueError("the arm fell off")


def _raise_unpicklable() -> None:
    raise Unpicklable("a socket inside")


def _loop_natively() -> None:
    ctypes.PyDLL(None).sleep(1000)  # PyDLL keeps the interpreter's lock


def _loop() -> None:
    while True:
        pass


def _eat_memory() -> None:
    hoard = []
    while True:
        hoard.append(torch.ones(1 << 22))


FAULTS = {
    "raise": _raise,
    "unpicklable": _raise_unpicklable,
    "SIGSTOP": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),  # a process may run on for a while
    "sleep": lambda: time.sleep(1000),
    "loop": _loop,
    "native_loop": _loop_natively,
    "oom": _eat_memory,
}


def work(context: mjtrain.RankContext, name: str, who: str = "0", *_: object) -> str:
    """Work together for a while, until the fault; "none" never ends, "short" comes to an end.

    With "injected", the fault is that of FAULT_INJECTED.
    """
    if "FAULT_GRANDCHILD" in os.environ:
        _start_grandchild(context.rank)
    try:
        return _work(context, name, int(who))
    finally:
        Path(f"cleaned_up_{context.rank}").write_text("")


def _work(context: mjtrain.RankContext, name: str, who: int) -> str:
    for step in range(1_000_000):
        if step == 10:
            print(f"rank {context.rank} works", flush=True)
            if name == "short":
                return "done"
            if context.rank == who and name in FAULTS:
                mark()
                FAULTS[name]()
            if context.rank == who and name == "injected":
                mark()
        if name == "injected":
            mjtrain.beat("work")
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == context.world_size
        time.sleep(0.01)
    return "never"


def build(context: mjtrain.RankContext, _: str, who: str) -> None:
    """Compile for longer than the time-out, without a beat; then one rank sleeps."""
    heartbeat.beat("build", warming_up=True)
    end = time.monotonic() + 1.75 * float(os.environ["FAULT_HEARTBEAT"])
    while time.monotonic() < end:
        time.sleep(0.15)
        time.sleep(0.15)
    print(f"rank {context.rank} has compiled", flush=True)
    if context.rank == int(who):
        mark()
        _sleep_in_build()
    dist.barrier()


def _sleep_in_build() -> None:
    time.sleep(1000)


def wait_apart(context: mjtrain.RankContext, *_: object) -> None:
    """Never ask and never end; rank 1 waits in a collective for rank 0."""
    try:
        Path(f"at_work_{context.rank}").write_text("")
        if context.rank == 1:
            dist.recv(torch.ones(1), src=0)
        while True:
            time.sleep(0.01)
    finally:
        Path(f"cleaned_up_{context.rank}").write_text("")


def save_when_asked(context: mjtrain.RankContext, *_: object) -> str:
    """Work until a stop is asked for; rank 0 then saves."""
    step = 0
    while True:
        step += 1
        stop = torch.tensor([float(mjtrain.stop_requested())])
        dist.all_reduce(stop)
        if step == 10 and context.is_main:
            print("at work", flush=True)
        if stop > 0:
            break
        time.sleep(0.01)
    time.sleep(float(os.environ.get("FAULT_SLOW_SAVE", "0")))
    if context.is_main:
        Path("saved").write_text(str(step))
    return "saved"


def _start_grandchild(rank: int) -> None:
    """Start what a video encoder could be: in the background, in a separate session, which ignores SIGTERM."""
    code = (
        "import os, signal, socket, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "open(sys.argv[1], 'w').write(str(server.getsockname()[1]))\n"
        "time.sleep(1000)"
    )
    file = Path(f"grandchild_{rank}")
    subprocess.Popen([sys.executable, "-c", code, str(file)], start_new_session=True)
    while not file.exists():
        time.sleep(0.01)


def main() -> None:
    ranks, name, *args = sys.argv[1:]
    launch = mjtrain.LaunchConfig(
        gpu_ids=None,
        num_workers=int(ranks),
        heartbeat_timeout_s=float(os.environ.get("FAULT_HEARTBEAT", "300")),
        stop_grace_s=float(os.environ.get("FAULT_GRACE", "60")),
        torchrunx_log_dir="torchrunx",
        inject_fault=tuple(os.environ.get("FAULT_INJECTED", "").split()),
    )
    fn = {"save_when_asked": save_when_asked, "build": build, "wait_apart": wait_apart}.get(name, work)
    bombs = [Bomb(int(args[0]))] if name == "bomb" else []
    print(mjtrain.launch(fn, name, *args, *bombs, launch=launch))


if __name__ == "__main__":
    atexit.register(gc.freeze)  # the time to the job's end is not that of the search for cycles among torch's modules
    main()
