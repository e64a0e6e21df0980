"""MuJoCo's own window, on a display without a screen."""

import shutil
import subprocess
import sys

import pytest

from support.machine import patience

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


@pytest.mark.parametrize("task", ["Cartpole-Balance", "Quadruped-Track"])
def test_the_window_opens_and_time_passes(task: str) -> None:
    if shutil.which("xvfb-run") is None:
        pytest.skip("needs a display: there is no xvfb-run here")
    command = ["xvfb-run", "-a", sys.executable, "-c", PROGRAM, str(patience(30)), task]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 30
