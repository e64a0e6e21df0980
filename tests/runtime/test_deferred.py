import pickle
import subprocess
import sys

import pytest
import torch

from mjtrain.runtime.deferred_imports import DeferredModule
from support.machine import patience


@pytest.mark.process
def test_the_first_use_imports_the_module():
    code = (
        "import sys, pickle; from mjtrain.runtime.deferred_imports import torch\n"
        "copy = pickle.loads(pickle.dumps(torch))\n"
        "before = 'torch' in sys.modules\n"
        "print(before, copy.ones(2).tolist(), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert done.stdout.strip() == "False [1.0, 1.0] True"


def test_it_gives_what_the_module_has():
    deferred = DeferredModule("torch")
    assert deferred.Tensor is torch.Tensor
    assert deferred.linalg is torch.linalg
    assert not hasattr(deferred, "no_such_name")
    assert pickle.loads(pickle.dumps(deferred)).float32 is torch.float32
