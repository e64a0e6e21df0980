"""Numbers of a training that are not finite any more."""

import math
from collections.abc import Iterable, Mapping

import torch

_ADVICE = "lower --agent.algorithm.learning-rate or --agent.algorithm.max-grad-norm"


def check_returns(returns: torch.Tensor, iteration: int) -> None:
    """Raise a FloatingPointError unless the returns of the iteration to come, from 1, are finite."""
    if not returns.isfinite().all():
        raise FloatingPointError(
            f"rewards or values are not finite in iteration {iteration}: look for a reward or an observation without "
            "bounds"
        )


def check_losses(losses: Mapping[str, float], iteration: int) -> None:
    """Raise a FloatingPointError unless the losses of an iteration are finite."""
    for name, loss in losses.items():
        if not math.isfinite(loss):
            raise FloatingPointError(f"the {name} loss is {loss} in iteration {iteration}: {_ADVICE}")


def check_parameters(parameters: Iterable[tuple[str, torch.Tensor]], iteration: int) -> None:
    """Raise a FloatingPointError unless all parameters are finite after an iteration's update.

    The last mini-batch can break them while all losses are finite. The next rollout would then end in an error of
    torch: on a GPU in a device assert that names nothing. Asks the device for one number.
    """
    named = list(parameters)
    # A sum is finite only if all of its terms are, except for an overflow, which is no better.
    finite = torch.stack([parameter.detach().sum() for _, parameter in named]).isfinite()
    if not finite.all():
        name = named[int((~finite).nonzero()[0])][0]
        raise FloatingPointError(f"{name} is not finite after iteration {iteration}: {_ADVICE}")
