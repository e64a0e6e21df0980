"""What makes an update fast leaves it what it was."""

import copy
from dataclasses import replace

import pytest
import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjtrain.api import make_train_config
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.learning.rsl_rl.mini_batches import keep_settings, make_fast, yield_mini_batches
from mjtrain.runtime.rank import RankContext
from support.envs import make_env
from support.vision import make_vision_env


@pytest.mark.parametrize("has_images", [True, False])
def test_mini_batches_are_those_of_rsl_rl(has_images: bool) -> None:
    config = make_train_config("Cartpole-Balance", num_envs=6)
    env = make_env(make_vision_env() if has_images else config.env, num_envs=6)
    runner = Runner(RankContext(), env, replace(config.agent, num_steps_per_env=8))
    next(runner.iterate(1))
    storage = runner.alg.storage
    torch.manual_seed(3)
    theirs = list(RolloutStorage.mini_batch_generator(storage, 5, 3))
    torch.manual_seed(3)
    assert any(value.ndim > 3 for value in storage.observations.values()) == has_images
    assert len(theirs) == 15
    for mine, its in zip(yield_mini_batches(storage, 5, 3), theirs, strict=True):
        for name, value in vars(its).items():
            compare(getattr(mine, name), value)
        mine.advantages = None  # an update may replace a field, or a group
        mine.observations["actor"] = torch.zeros_like(mine.observations["actor"])


def compare(mine: object, its: object) -> None:
    if isinstance(its, TensorDict):
        assert isinstance(mine, TensorDict)
        assert set(mine.keys()) == set(its.keys())
        for name in its.keys():  # noqa: SIM118
            compare(mine[name], its[name])
    elif isinstance(its, tuple):
        assert isinstance(mine, tuple)
        for one, other in zip(mine, its, strict=True):
            compare(one, other)
    elif isinstance(its, torch.Tensor):
        assert isinstance(mine, torch.Tensor)
        assert torch.equal(mine, its)
    else:
        assert mine == its


@pytest.mark.parametrize("saves_fused", [True, False])
def test_an_optimiser_goes_on_fused_or_not_as_the_device_has_it(saves_fused: bool) -> None:
    """A checkpoint of a GPU, or of before, has an optimiser that is not fused."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ELU(), torch.nn.Linear(4, 1)).double()
    samples = torch.randn(7, 3, dtype=torch.float64)

    def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        net(samples).square().mean().backward()
        optimizer.step()

    plain = torch.optim.Adam(network.parameters(), lr=0.01, betas=(0.8, 0.99), eps=1e-6)
    optimizer = make_fast(plain, network) if saves_fused else plain
    for _ in range(3):
        step(network, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    other = copy.deepcopy(network)
    step(network, optimizer)

    plain = torch.optim.Adam(other.parameters(), lr=0.5, betas=(0.8, 0.99), eps=1e-6)
    resumed = plain if saves_fused else make_fast(plain, other)
    keep_settings(state, resumed)
    resumed.load_state_dict(state)
    assert bool(resumed.param_groups[0]["fused"]) is not saves_fused
    assert resumed.param_groups[0]["lr"] == 0.01
    assert [(group["betas"], group["eps"]) for group in optimizer.param_groups] == [((0.8, 0.99), 1e-6)]
    step(other, resumed)
    for mine, its in zip(other.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("whole", [torch.nn.Linear(3, 4), torch.nn.Linear(3, 2, bias=False)], ids=["larger", "fewer"])
def test_moments_of_other_parameters_are_left_out(whole: torch.nn.Module) -> None:
    """A fused step would read beyond the end of shorter ones."""
    half = torch.nn.Linear(3, 2)
    optimizer, other = (make_fast(torch.optim.Adam(net.parameters()), net) for net in (half, whole))
    half(torch.randn(7, 3)).square().mean().backward()
    optimizer.step()
    state = optimizer.state_dict()
    keep_settings(state, other)
    assert state["state"] == {}
