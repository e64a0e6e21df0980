"""MuJoCo's own window, on a display without a screen."""

import shutil
import subprocess
import sys

import pytest

from mjtrain_tasks.quadruped_track import CLIPS
from support.machine import patience

PAW = str(CLIPS / "paw.npz")

PROGRAM = """
import sys, time
import mjtrain
from mjtrain.evaluation.playing.native_viewer import run_native_viewer
from mjtrain.evaluation.playing.player import Player
from mjtrain.runs.trained_run import make_untrained_run
from mjtrain.evaluation.playing.policy_session import PolicySession

run = make_untrained_run(sys.argv[2])
session = PolicySession(Player(mjtrain.RankContext(), run, num_envs=2, policy="zero"))
deadline = time.monotonic() + float(sys.argv[1])
run_native_viewer(session, stop=lambda: session.num_steps >= 30 or time.monotonic() > deadline)
print("steps", session.num_steps, flush=True)
"""

MOTION_PROGRAM = """
import sys, time
from mjtrain.cli.motion import main
from mjtrain.evaluation.playing import native_viewer

deadline = time.monotonic() + float(sys.argv[1])
run = native_viewer.run_native_viewer

def run_for_some_frames(session):
    run(session, stop=lambda: session.frame >= 5 or time.monotonic() > deadline)
    print("frame", session.frame, flush=True)

native_viewer.run_native_viewer = run_for_some_frames
main(["play", sys.argv[2], "--task", "Quadruped-Track", "--viewer", "native"])
"""


@pytest.mark.parametrize("task", ["Cartpole-Balance", "Quadruped-Track"])
def test_the_window_opens_and_time_passes(task: str) -> None:
    assert _show(PROGRAM, task) >= 30


def test_the_window_shows_a_reference_motion() -> None:
    assert _show(MOTION_PROGRAM, PAW) >= 5


def _show(program: str, what: str) -> int:
    """Run a program on a display, and return the number that it prints last."""
    if shutil.which("xvfb-run") is None:
        pytest.skip("needs a display: there is no xvfb-run here")
    command = ["xvfb-run", "-a", sys.executable, "-c", program, str(patience(30)), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])
