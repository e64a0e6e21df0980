"""Numbers of a training that are not finite any more."""

import math
from collections.abc import Callable, Iterable, Mapping

import torch

from mjtrain.env.base import TaskEnv

_BOUNDS = "look for a reward or an observation without bounds"
_ADVICE = "lower --agent.algorithm.learning-rate or --agent.algorithm.max-grad-norm"


def find_broken_terms(env: TaskEnv, observations: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the reward, observation and command terms that were not finite in a rollout. Asks the device.

    Args:
        env: The environments, before the statistics of the rollout are taken.
        observations: The rollout by observation group. Shape (num_steps, num_envs, size), or
            (num_steps, num_envs, channels, height, width) of images. Groups that nothing read may be missing.
    """
    broken = [f"--env.rewards.{name}" for name in env.statistics.find_not_finite()]
    broken += [f"--env.commands.{name}" for name in env.config.commands if not env.command(name).isfinite().all()]
    kept = set(observations.keys())
    for group in env.observe():
        if group not in kept or not observations[group].is_floating_point():
            continue
        observed = observations[group]
        finite = observed.movedim(2, 0).flatten(1).isfinite().all(dim=1).tolist()
        begin = 0
        for name, width in env.observation_widths(group).items():
            if not all(finite[begin : begin + width]):
                broken.append(f"--env.observations.{group}.{name}".rstrip("."))
            begin += width
    return broken


def check_rollout(results: Mapping[str, torch.Tensor], iteration: int, find_terms: Callable[[], list[str]]) -> None:
    """Raise a FloatingPointError unless what came of a rollout is finite. Asks the device for one answer.

    Args:
        results: By what they are, in the plural.
        iteration: Number of the iteration, from 1.
        find_terms: Finds the terms to blame; asked only then.
    """
    finite = torch.stack([result.isfinite().all() for result in results.values()]).tolist()
    if not all(finite):
        what = list(results)[finite.index(False)]
        raise FloatingPointError(f"{what} are not finite in iteration {iteration}: {_blame(find_terms)}")


def check_losses(losses: Mapping[str, float], iteration: int, find_terms: Callable[[], list[str]]) -> None:
    """Raise a FloatingPointError unless the losses of an iteration are finite; arguments as of `check_rollout`."""
    for name, loss in losses.items():
        if not math.isfinite(loss):
            advice = _blame(find_terms, otherwise=_ADVICE)
            raise FloatingPointError(f"the {name} loss is {loss} in iteration {iteration}: {advice}")


def _blame(find_terms: Callable[[], list[str]], otherwise: str = _BOUNDS) -> str:
    names = find_terms()
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not finite" if names else otherwise


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
