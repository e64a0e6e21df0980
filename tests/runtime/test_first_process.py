"""A command that is process 1 of a container obeys signals from its first imports on."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from support.machine import patience

# The signal comes while mjtrain is imported: when its first module of configuration is.
SCRIPT = """
import os, signal, sys
assert os.getpid() == 1

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "mjtrain.config":
            os.kill(1, {signum})
        return None

sys.meta_path.insert(0, Finder())
import mjtrain.cli.train
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2], ids=lambda signum: signum.name)
def test_process_1_obeys_a_signal_during_its_imports(signum: signal.Signals) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("needs root and unshare for a PID namespace")
    command = [unshare, "-pf", "--mount-proc", "--kill-child", sys.executable, "-c", SCRIPT.format(signum=int(signum))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(30), check=False)
    assert done.returncode == 128 + signum, done.stderr
