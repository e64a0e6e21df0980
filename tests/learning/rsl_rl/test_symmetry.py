"""Learning from mirror images of real environments."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig, SymmetryConfig, TrainConfig
from mjtrain.runtime.rank import RankContext
from support.resuming import assert_same, make_runner, train_straight_and_resumed

ALONE = LaunchConfig(gpu_ids=None, num_threads=1)


def symmetric(task: str, num_envs: int, **symmetry: bool | float) -> TrainConfig:
    config = make_train_config(task, num_envs=num_envs)
    algorithm = replace(config.agent.algorithm, symmetry_cfg=SymmetryConfig(**symmetry))  # pyright: ignore
    return replace(config, agent=replace(config.agent, algorithm=algorithm))


def test_a_resumed_training_is_bit_exact(tmp_path: Path) -> None:
    config = symmetric("Quadruped-Velocity-Flat", 8, use_data_augmentation=True, use_mirror_loss=True)
    straight, resumed, *runs = mjtrain.launch(train_straight_and_resumed, config, tmp_path / "model_2.pt", launch=ALONE)
    assert straight == resumed
    assert_same(*runs)
    assert "loss/symmetry" in straight[0]


def _train(context: RankContext, config: TrainConfig) -> tuple[list[float], float]:
    """Return the losses of the symmetry, and how far the policy is from its mirror image."""
    runner = make_runner(context, config)
    losses = [result.metrics["loss/symmetry"] for result in runner.iterate(20)]
    observed = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    actor = runner.networks["actor"]
    with torch.no_grad():
        one, other = (actor({"actor": sign * observed}) for sign in (1, -1))  # pyright: ignore[reportArgumentType]
    return losses, float((one + other).square().mean() / one.square().mean())


@pytest.mark.parametrize("use_data_augmentation", [False, True])
def test_a_mirror_loss_makes_a_policy_symmetric(use_data_augmentation: bool) -> None:
    """A cart that is pushed to the right by what it sees is pushed to the left by the mirror image."""
    mirror = symmetric(
        "Cartpole-Balance",
        64,
        use_mirror_loss=True,
        mirror_loss_coeff=20.0,
        use_data_augmentation=use_data_augmentation,
    )
    losses, apart = mjtrain.launch(_train, mirror, launch=ALONE)
    assert losses[-1] < 0.4 * losses[0]
    assert apart < 0.05


def test_augmentation_alone_measures_the_loss_and_does_not_learn_from_it() -> None:
    losses, _ = mjtrain.launch(
        _train, symmetric("Cartpole-Balance", 64, use_data_augmentation=True, mirror_loss_coeff=1e9), launch=ALONE
    )
    assert all(0 < loss < 1e3 for loss in losses)
