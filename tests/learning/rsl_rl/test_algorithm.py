"""Running means and variances: exact after any number of samples."""

import pytest
import torch
from rsl_rl.modules import EmpiricalNormalization

from mjtrain.learning.collectives import Collectives
from mjtrain.learning.rsl_rl.algorithm import JobNormalization


def test_a_rollout_counts_after_1e10_samples() -> None:
    normaliser = JobNormalization(EmpiricalNormalization(2), Collectives("cpu"))
    normaliser.count.fill_(10**10)
    samples = torch.tensor([[1.0, -3.0]]).expand(1000, 2)
    for _ in range(10):
        normaliser.update(samples)
    rate = 1e4 / (1e10 + 1e4)
    assert normaliser._mean[0].tolist() == pytest.approx([rate, -3 * rate], rel=1e-6)
    variance = [1 + rate * (1 - rate) * value**2 - rate for value in (1.0, 3.0)]
    assert (normaliser._var[0] - 1).tolist() == pytest.approx([value - 1 for value in variance], abs=1e-12)


def test_samples_keep_their_precision_and_weights_of_single_precision_load() -> None:
    original = EmpiricalNormalization(3)
    torch.manual_seed(0)
    original.update(torch.randn(50, 3) * 4 + 1)
    normaliser = JobNormalization(EmpiricalNormalization(3), Collectives("cpu"))
    normaliser.load_state_dict(original.state_dict())
    normaliser.update(torch.randn(50, 3))
    samples = torch.randn(7, 3)
    assert normaliser(samples).dtype == torch.float32
    torch.testing.assert_close(normaliser.inverse(normaliser(samples)), samples)
    back = EmpiricalNormalization(3)  # as play and export have it
    back.load_state_dict(normaliser.state_dict())
    assert back.mean.dtype == torch.float32
    torch.testing.assert_close(back(samples), normaliser(samples))
