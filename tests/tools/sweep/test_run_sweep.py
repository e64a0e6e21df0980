"""What the processes of a sweep share, and which runs it keeps when their files are damaged."""

import fcntl
import os
import struct
from pathlib import Path

from mjtrain.launcher.ipc.signals import EventLoop
from mjtrain.runs.checkpoint import checkpoint_path
from mjtrain.tools.sweep.plan import Slot
from mjtrain.tools.sweep.results import RunFiles, TrialResult
from mjtrain.tools.sweep.run_sweep import Claims, _SweepDisplay
from mjtrain.tools.sweep.running_trial import TrialProcess
from support.sweep_plans import make_plan


def lose(descriptor: int) -> None:
    """Give a lock back without a word, as a server of NFS that was restarted does."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_UNLCK, 0, 0, 0, 0))


def test_a_lock_that_was_lost_is_noticed_once_somebody_else_has_it(tmp_path: Path) -> None:
    one, other = Claims(tmp_path, needs_locks=True), Claims(tmp_path, needs_locks=True)
    claim = one.take("trial_0", "processes_0")
    assert claim is not None
    assert other.take("trial_0") is None
    assert claim.is_held()
    lose(claim.descriptors["trial_0"])
    assert claim.is_held()  # nobody has taken it, so it is taken again
    assert other.take("trial_0") is None
    lose(claim.descriptors["trial_0"])
    theirs = other.take("trial_0")
    assert theirs is not None
    assert not claim.is_held()
    theirs.release()
    claim.release()


def test_shared_claims_do_not_disturb_each_other(tmp_path: Path) -> None:
    claims = Claims(tmp_path, needs_locks=True)
    one, other = claims.take("sweep", shared=True), claims.take("sweep", shared=True)
    assert one is not None
    assert other is not None
    assert one.is_held()
    assert claims.take("sweep") is None
    one.release()
    other.release()


def test_runs_whose_checkpoints_are_damaged_are_kept_under_another_name(tmp_path: Path) -> None:
    for name in ("a_trial_0_seed_0", "b_trial_0_seed_0"):
        (tmp_path / "task" / name).mkdir(parents=True)
        (tmp_path / "task" / name / "metrics.jsonl").write_text('{"iteration": 1}\n')
    checkpoint_path(tmp_path / "task" / "a_trial_0_seed_0", 1).write_bytes(b"damaged")
    RunFiles(log_root=tmp_path, name="trial_0_seed_0").remove_stillborn()
    (kept,) = (tmp_path / "task").iterdir()
    assert kept.name == "a_trial_0_seed_0.damaged-1"
    assert (kept / "metrics.jsonl").is_file()
    RunFiles(log_root=tmp_path, name="trial_0_seed_0").remove_stillborn()
    assert kept.is_dir()


def test_a_sweep_continues_though_the_record_of_a_run_was_broken_by_hand(tmp_path: Path) -> None:
    (tmp_path / "task" / "a_trial_0_seed_0" / "params").mkdir(parents=True)
    (tmp_path / "task" / "a_trial_0_seed_0" / "params" / "launch.yaml").write_text("task: 3\n")
    state, detail = RunFiles(log_root=tmp_path, name="trial_0_seed_0").find_end()
    assert state == "unreadable"
    assert "task is 3" in detail


def test_a_trial_whose_reaper_is_killed_names_the_file_of_its_output(tmp_path: Path) -> None:
    slot = Slot(cores=tuple(os.sched_getaffinity(0)), gpus=())
    with Path(os.devnull).open() as inherited, EventLoop(lambda _: None) as loop:
        process = TrialProcess(["Cartpole-Balance"], slot, tmp_path / "trial", loop, inherited.fileno())
        process._tree._reaper.kill()
        while not process.has_ended:
            loop.turn()
        process.close()
    said = process.describe_end()
    assert said == f"its reaper process ended unexpectedly; {tmp_path / 'trial.stderr'} has what it printed"
    assert (tmp_path / "trial.stderr").is_file()


def test_the_last_trial_takes_as_long_as_any_other(tmp_path: Path) -> None:
    slots = tuple(Slot(cores=(core,), gpus=()) for core in range(2))
    display = _SweepDisplay(make_plan(tmp_path, slots=slots, trials=4))
    display._durations_s.append(10.0)
    display.set_results([TrialResult(number=0, state="complete", params={}, value=1.0)])
    assert display._describe() == "1/4 trials, best 1 of trial 0, about 0:00:20 to go"
