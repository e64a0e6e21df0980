"""Modules are imported on first use, and Warp finds a folder for its kernels, also where a home cannot be written."""

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from mjtrain.runtime.deferred_imports import DeferredModule, choose_kernel_cache
from mjtrain.runtime.errors import RequestError
from mjtrain.tools.doctor.kernels import check_kernel_cache
from support.machine import patience

TRAIN, COMPILE = (
    """
import sys
import mjtrain
launch = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
mjtrain.train(
    "Cartpole-Balance", num_envs=4, max_iterations=1, launch=launch, logger="none", log_root=sys.argv[1]
)
import inspect
for module in list(sys.modules.values()):
    hasattr(module, "__file__")
unused = ("torch._dynamo.symbolic_convert", "wandb.sdk", "warp._src", "mujoco_warp", "glfw.library", "boto3")
print([name for name in unused if name in sys.modules])
""",
    """
import sys
import mjtrain.learning.rsl_rl.construct
import tensordict.base, tensordict.utils, torch

weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.Adam([weight], lr=0.1)

def learn():
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()

learn()
assert "torch._dynamo.symbolic_convert" not in sys.modules

@torch.compile(backend="eager", fullgraph=True)
def double(batch):
    return batch["a"] * 2

print(double(tensordict.TensorDict({"a": torch.ones(3)}, [3])).tolist())
learn()
rules = torch._dynamo.trace_rules
print(tensordict.utils._lock_warn._dynamo_marked_constant)
print(id(tensordict.base._foreach_copy_compiled) in rules._allowed_callable_ids)
print([round(value, 3) for value in weight.tolist()], torch._dynamo is sys.modules["torch._dynamo"])
import wandb
print(wandb.sdk.__name__, callable(wandb.init))
""",
)


def run(program: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.process
def test_a_training_on_a_cpu_imports_neither_the_compiler_nor_wandb_nor_warp_nor_windows_nor_s3(tmp_path):
    assert run(TRAIN, str(tmp_path))[-1] == "[]"


@pytest.mark.process
def test_the_first_use_imports_them_and_repeats_what_tensordict_said_about_its_functions():
    assert run(COMPILE) == ["[2.0, 2.0, 2.0]", "True", "True", "[0.8, 0.8] True", "wandb.sdk True"]


@pytest.mark.process
def test_the_first_use_imports_the_module() -> None:
    code = """
import sys, pickle; from mjtrain.runtime.deferred_imports import torch
copy = pickle.loads(pickle.dumps(torch))
before = 'torch' in sys.modules
print(before, copy.ones(2).tolist(), 'torch' in sys.modules)
"""
    assert run(code) == ["False [1.0, 1.0] True"]


def test_it_gives_what_the_module_has() -> None:
    deferred = DeferredModule("torch")
    assert deferred.Tensor is torch.Tensor
    assert deferred.linalg is torch.linalg
    assert not hasattr(deferred, "no_such_name")
    assert pickle.loads(pickle.dumps(deferred)).float32 is torch.float32


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WARP_CACHE_PATH", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "home"


def test_the_usual_folder(home: Path) -> None:
    assert choose_kernel_cache() == (home / ".cache" / "warp", False)
    assert check_kernel_cache(on_cpu=False).result == "ok"


def test_a_home_that_cannot_be_written(home: Path) -> None:
    home.write_text("no folder, so that root cannot write below it")
    folder, replaced = choose_kernel_cache()
    assert replaced
    assert folder == home.parent / f"mjtrain-warp-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700  # kernels are code
    assert list(folder.iterdir()) == []
    found = check_kernel_cache(on_cpu=False)
    assert (found.result, "WARP_CACHE_PATH" in found.advice) == ("warning", True)


def test_no_folder_at_all(home: Path) -> None:
    home.write_text("")
    (home.parent / f"mjtrain-warp-{os.getuid()}").write_text("")
    with pytest.raises(RequestError, match="set WARP_CACHE_PATH to a folder that can be written"):
        choose_kernel_cache()
    assert check_kernel_cache(on_cpu=False).result == "failure"
    assert check_kernel_cache(on_cpu=True).result == "warning"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_used(home: Path) -> None:
    home.write_text("")
    folder = home.parent / f"mjtrain-warp-{os.getuid()}"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(RequestError):
        choose_kernel_cache()


def test_a_folder_that_was_asked_for_is_not_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_CACHE_PATH", "/proc/1/kernels")
    with pytest.raises(RequestError, match="WARP_CACHE_PATH=/proc/1/kernels: cannot be written"):
        choose_kernel_cache()
