import subprocess
import sys

import pytest

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
