"""A rank fails: the job ends at once, names the cause, and leaves no process."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.jobs import Job, Record, function, program, training
from support.promises import Together, run_together

HEARTBEAT_S = 8.0
"""A rank that does not hang gets a processor within that time, on a busy machine too."""

EXCEPTION = "ValueError: the arm fell off"


def first_line(block: str) -> str:
    return block.splitlines()[0].removeprefix("FAILED: ").replace(f" on host {os.uname().nodename}", "")


@pytest.mark.parametrize(("phase", "rank"), [("build", 1), ("rollout", 0)])
def test_an_exception_in_a_term_of_a_training(tmp_path: Path, record: Record, phase: str, rank: int) -> None:
    outcome = training(tmp_path, FAULT=f"{phase}:{rank}").finish()
    assert outcome.status == 1
    block = outcome.last_block
    assert f"FAILED: rank {rank} on host {os.uname().nodename} in phase {phase}: {EXCEPTION}" in block
    assert "task.py" in block
    assert outcome.stderr.count("Traceback") == 1
    (crash,) = tmp_path.glob(f"logs/*/*/crash/rank_{rank}.txt")
    assert "raise ValueError" in crash.read_text()
    assert f"see {crash}" in block
    assert [path.name for path in crash.parent.iterdir()] == [crash.name]
    record("exception", f"{phase}, rank {rank}", outcome, last_words=first_line(block))


def test_an_exception_at_the_start(tmp_path: Path, record: Record) -> None:
    outcome = function(tmp_path, "bomb", "0").finish()
    assert outcome.status == 1
    assert f"FAILED: rank 0 on host {os.uname().nodename} in phase start: {EXCEPTION}" in outcome.last_block
    record("exception", "start, rank 0", outcome, last_words=first_line(outcome.last_block))


@pytest.mark.parametrize(
    ("fault", "rank", "cause"),
    [
        ("raise", 2, EXCEPTION),
        ("unpicklable", 1, "Unpicklable: a socket inside"),
        ("kind=sigkill", 0, "was killed by SIGKILL (last known phase: work)"),
        ("kind=sigsegv", 1, "was killed by SIGSEGV (last known phase: work)"),
        ("kind=exit,status=0", 1, "exited with status 0 before finishing (last known phase: work)"),
        ("kind=exit,status=3", 2, "exited with status 3 before finishing (last known phase: work)"),
        ("kind=oom", 1, "RuntimeError: "),
    ],
)
def test_one_of_three_ranks_fails(tmp_path: Path, record: Record, fault: str, rank: int, cause: str) -> None:
    """By an exception of its own, or by --inject-fault, which the cause then says."""
    if is_injected := fault.startswith("kind="):
        words = f"rank={rank},phase=work,iteration=11,{fault}"
        outcome = function(tmp_path, "injected", str(rank), ranks=3, FAULT_INJECTED=words).finish()
        assert outcome.last_block.splitlines()[0].endswith(f"; after injected fault {words}")
        assert f"[rank {rank}] injecting fault {words}" in outcome.stderr.splitlines()
    else:
        outcome = function(tmp_path, fault, str(rank), ranks=3).finish()
    assert outcome.status == 1
    block = outcome.last_block
    where = rf"FAILED: rank {rank} on host {os.uname().nodename}(?: in phase (?:run|work))?: "
    assert re.search(where + re.escape(cause), block)
    assert f"torchrunx/{next((tmp_path / 'torchrunx').iterdir()).name}/localhost[{rank}].log" in block
    if fault == "kind=sigsegv":
        assert "Fatal Python error: Segmentation fault" in block
        assert "functions.py" in block
    name = fault.removeprefix("kind=").replace(",status=", " with status ") + ", injected" if is_injected else fault
    record(name, f"1 of 3 ranks: {rank}", outcome, last_words=first_line(block).partition("; after")[0])


def test_a_crash_of_native_code_in_the_callers_process_shows_the_stack(tmp_path: Path) -> None:
    outcome = training(tmp_path, "--inject-fault", "phase=rollout,iteration=2,kind=sigsegv", ranks=1).finish()
    assert outcome.status == -signal.SIGSEGV
    _, said, stack = outcome.stderr.partition("Fatal Python error: Segmentation fault")
    assert said
    assert "train_rank.py" in stack


HANGS = [
    ("SIGSTOP", 1, "no heartbeat", '"SIGSTOP": lambda: signal.pthread_kill'),
    ("native_loop", 0, "no heartbeat", "ctypes.PyDLL(None).sleep"),
    ("sleep", 1, "no progress", '"sleep": lambda: time.sleep'),
    ("loop", 0, "no progress", "while True:\n        pass"),
]
IN_CALLER = [
    ("sleep", "time.sleep(1000)"),
    ("deadlock in native code", "libc.pthread_mutex_lock(mutex), libc.pthread_mutex_lock(mutex)"),
]


def start_hanging(fault: str, rank: int) -> Callable[[Path], Job]:
    return lambda folder: function(folder, fault, str(rank), FAULT_HEARTBEAT=str(HEARTBEAT_S))


def start_in_caller(code: str) -> Callable[[Path], Job]:
    source = (
        "import ctypes, pathlib, time\n"
        "import mjtrain\n"
        "libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)\n"
        "def hang(context):\n"
        "    pathlib.Path('fault').write_text(str(time.time()))\n"
        f"    {code}  # here\n"
        "try:\n"
        "    mjtrain.launch(hang, launch=mjtrain.LaunchConfig(gpu_ids=None, heartbeat_timeout_s=4))\n"
        "except mjtrain.RankFailedError as error:\n"
        "    print('caught', error.rank)\n"
        "    raise\n"
    )
    return lambda folder: program(folder, source)


@pytest.fixture(scope="module")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> Together:
    """All jobs that hang, at the same time, as they mostly wait."""
    starts = {f"{fault} of a rank": start_hanging(fault, rank) for fault, rank, _, _ in HANGS}
    starts |= {f"{how} in the caller": start_in_caller(code) for how, code in IN_CALLER}
    return run_together(tmp_path_factory.mktemp("hangs"), starts | {"build": start_hanging("build", 1)})


@pytest.mark.parametrize(("fault", "rank", "cause", "line"), HANGS)
def test_a_rank_that_hangs_shows_its_stack(
    hangs: Together, record: Record, fault: str, rank: int, cause: str, line: str
) -> None:
    outcome = hangs[f"{fault} of a rank"][1].result()
    assert outcome.status == 1
    block = outcome.last_block
    assert f"FAILED: rank {rank} on host {os.uname().nodename}: hangs: {cause} for {HEARTBEAT_S:g} s" in block
    source = (Path(__file__).parent / "functions.py").read_text()
    begin = source[: source.index(line)].count("\n") + 1
    places = [f'functions.py", line {begin + offset} in' for offset in range(line.count("\n") + 1)]
    assert any(place in block for place in places), f"no line of the loop is in the stack:\n{block}"
    assert outcome.noticed_s >= HEARTBEAT_S - 1.5
    record(
        fault,
        f"rank {rank}; heartbeat {HEARTBEAT_S:g} s",
        outcome,
        last_words=first_line(block),
        patience_s=HEARTBEAT_S,
    )


@pytest.mark.parametrize("how", [how for how, _ in IN_CALLER])
def test_one_rank_that_hangs_in_the_callers_process(hangs: Together, record: Record, how: str) -> None:
    """No other process watches this one; what can be interrupted is, so that the caller gets an exception."""
    outcome = hangs[f"{how} in the caller"][1].result()
    assert outcome.status == 1
    assert ("caught 0" in outcome.stdout) == (how == "sleep")
    assert "hangs: no progress for 4 s (--heartbeat-timeout-s)" in outcome.stderr
    assert "# here" in outcome.stderr
    last_words = first_line(outcome.stderr[outcome.stderr.index("FAILED: ") :])
    record(f"{how}, in the caller's process", "1 rank; heartbeat 4 s", outcome, last_words=last_words, patience_s=4.0)


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Together:
    """Two jobs without a rank that is to blame, at the same time."""
    source = (
        "import mjtrain, torch, torch.distributed as dist\n"
        f"launch = mjtrain.LaunchConfig(gpu_ids=None, num_workers=2, heartbeat_timeout_s={HEARTBEAT_S:g})\n"
        "mjtrain.launch(lambda context: dist.recv(torch.ones(1), src=1 - context.rank), launch=launch)\n"
    )
    flags = ["--heartbeat-timeout-s", "4", "--max-restarts", "1", "--max-iterations", "1", "--logger", "none"]
    starts: dict[str, Callable[[Path], Job]] = {
        "all wait": lambda folder: program(folder, source),
        "computes": lambda folder: training(folder, *flags, ranks=1, FAULT_SLOW_BUILD="6"),
    }
    return run_together(tmp_path_factory.mktemp("waits"), starts, since=0.0)


def test_ranks_that_all_wait(waits: Together) -> None:
    outcome = waits["all wait"][1].result()
    assert outcome.status == 1
    cause = f"hangs: no progress for {HEARTBEAT_S:g} s (--heartbeat-timeout-s): all ranks wait for others"
    assert cause in outcome.last_block


def test_a_build_that_compiles_is_no_hang_and_one_that_sleeps_is(hangs: Together) -> None:
    """Without a beat, for longer than the time-out: first at changing lines, then one rank at the same line."""
    outcome = hangs["build"][1].result()
    assert outcome.stdout.splitlines() == ["rank 0 has compiled"]
    assert (
        f"FAILED: rank 1 on host {os.uname().nodename}: hangs: no progress for {HEARTBEAT_S:g} s "
        "(--heartbeat-timeout-s) (last known phase: build)"
    ) in outcome.last_block
    assert "in _sleep_in_build" in outcome.last_block
    assert outcome.noticed_s >= HEARTBEAT_S - 1.5


def test_a_build_that_computes_longer_than_the_time_out_is_no_hang(waits: Together) -> None:
    """In one call of native code, as a compiler of kernels: neither a beat nor another line of Python for 6 s."""
    outcome = waits["computes"][1].result()
    assert outcome.status == 0, outcome.stderr
    assert "restart" not in outcome.stderr


def test_a_grandchild_that_ignores_sigterm(tmp_path: Path, record: Record) -> None:
    job = function(tmp_path, "raise", "1", FAULT_GRANDCHILD="1")
    outcome = job.finish()
    assert EXCEPTION in outcome.last_block
    record("exception, with a daemon below each rank that ignores SIGTERM", "rank 1", outcome, last_words=EXCEPTION)


def _make_memory_group(name: str, limit: int) -> Path | None:
    """Make a cgroup with little memory, if this machine lets us."""
    for root, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / name
        try:
            group.mkdir()
            (group / file).write_text(str(limit))
        except OSError:
            continue
        return group
    return None


def test_the_out_of_memory_killer_is_named(tmp_path: Path, record: Record) -> None:
    group = _make_memory_group(f"mjtrain-test-{os.getpid()}", 2 << 30)
    if group is None:
        pytest.skip("no cgroup with a memory limit can be made here")
    try:
        join = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
        outcome = function(tmp_path, "oom", "1", prefix=join).finish()
    finally:
        group.rmdir()
    assert outcome.status == 1
    assert "was killed by SIGKILL, " in outcome.last_block
    assert "the kernel's out-of-memory killer" in outcome.last_block
    record("out of memory (cgroup)", "rank 1", outcome, last_words=first_line(outcome.last_block), patience_s=30.0)


def test_a_host_name_that_does_not_resolve(tmp_path: Path, record: Record) -> None:
    """In namespaces of its own: an unknown host name, no DNS server that answers, and nothing but loopback."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-uimn", "true"], check=False).returncode != 0:
        pytest.skip("no namespaces can be made here")
    script = (
        "hostname nobody-knows-me && ip link set lo up && "
        'echo "nameserver 203.0.113.1" > resolv && mount --bind resolv /etc/resolv.conf && exec "$@"'
    )
    outcome = function(tmp_path, "raise", "1", prefix=("unshare", "-uimn", "sh", "-c", script, "sh")).finish()
    assert "FAILED: rank 1 on host nobody-knows-me in phase run: ValueError: the arm fell off" in outcome.last_block
    record("exception, unresolvable host name", "rank 1", outcome, last_words=EXCEPTION)


def test_an_unwritable_log_folder(tmp_path: Path) -> None:
    (tmp_path / "torchrunx").write_text("")
    job = function(tmp_path, "short")
    outcome = job.finish(since=0.0)
    assert outcome.status == 1
    assert "RequestError: --torchrunx-log-dir torchrunx: cannot be written" in outcome.stderr
    assert "rank" not in outcome.stdout
