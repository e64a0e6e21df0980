"""Numbers of a training that have become infinite or NaN, and ranks whose networks differ."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from mjtrain.config import ForeignConfig
from mjtrain.env.base import TaskEnv

_ADVICE = "lower --agent.algorithm.learning-rate or --agent.algorithm.max-grad-norm"
_LARGE = 1e6
"""Observations and rewards above this are more likely the cause than the learning rate."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def find_broken_terms(env: TaskEnv, observations: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the reward, observation and command terms that were not finite in a rollout. Asks the device.

    Args:
        env: The environments, before the statistics of the rollout are taken.
        observations: The rollout by observation group. Shape (num_steps, num_envs, size), or
            (num_steps, num_envs, channels, height, width) of images. Groups that nothing read may be missing.
    """
    broken = [_name_term(env, "rewards", name) for name in env.statistics.find_not_finite()]
    broken += [f"--env.commands.{name}" for name in env.config.commands if not env.command(name).isfinite().all()]
    return broken + [name for name, largest in _find_largest(env, observations).items() if not math.isfinite(largest)]


def find_large_terms(env: TaskEnv, observations: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the observation terms that were finite and so large in a rollout that a network cannot learn from them.

    With their largest absolute value, such as "--env.observations.actor.speed (1e+20)". Arguments as of
    `find_broken_terms`. Asks the device.
    """
    largest = _find_largest(env, observations)
    return [f"{name} ({value:.0e})" for name, value in largest.items() if _LARGE < value < math.inf]


def _find_largest(env: TaskEnv, observations: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return the largest absolute value of each observation term in a rollout, NaN where one is."""
    found = {}
    kept = set(observations.keys())
    for group in env.observe():
        if group not in kept or not observations[group].is_floating_point():
            continue
        columns = observations[group].movedim(2, 0).flatten(1).abs().amax(dim=1)
        begin = 0
        for name, width in env.observation_widths(group).items():
            found[_name_term(env, "observations", group, name)] = float(columns[begin : begin + width].amax())
            begin += width
    return found


def _name_term(env: TaskEnv, kind: str, *names: str) -> str:
    """Return the flag of a term; external environments have rewards and observation groups without flags."""
    if isinstance(env.config, ForeignConfig):
        return f"{f'observation group {names[0]}' if kind == 'observations' else 'the reward'} of {env.config.label}"
    return f"--env.{'.'.join((kind, *names))}"


def check_rollout(
    results: Mapping[str, torch.Tensor],
    iteration: int,
    env: TaskEnv,
    observations: Callable[[], Mapping[str, torch.Tensor]],
) -> None:
    """Raise a FloatingPointError unless what came of a rollout is finite. Asks the device for one answer.

    Observations are only asked for to find the terms to blame; they and env are as of `find_broken_terms`.
    """
    finite = torch.stack([result.isfinite().all() for result in results.values()]).tolist()
    if not all(finite):
        what = list(results)[finite.index(False)]
        blamed = _blame(env, observations()) or "look for a reward or an observation without bounds"
        raise FloatingPointError(f"{what} are not finite in iteration {iteration}: {blamed}")


def check_losses(
    losses: Mapping[str, float], iteration: int, env: TaskEnv, observations: Callable[[], Mapping[str, torch.Tensor]]
) -> None:
    """Raise a FloatingPointError unless the losses of an iteration are finite; arguments as of `check_rollout`."""
    for name, loss in losses.items():
        if not math.isfinite(loss):
            seen = observations()
            advice = _blame(env, seen)
            if not advice and (large := find_large_terms(env, seen)):
                advice = f"{', '.join(large)} is too large to learn from: give it a scale or a clip"
            raise FloatingPointError(f"the {name} loss is {loss} in iteration {iteration}: {advice or _ADVICE}")


def _blame(env: TaskEnv, observations: Mapping[str, torch.Tensor]) -> str:
    """Name the terms that were not finite; empty where all were."""
    names = find_broken_terms(env, observations)
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not finite" if names else ""


def check_parameters(parameters: Iterable[tuple[str, torch.Tensor]], iteration: int) -> None:
    """Raise a FloatingPointError unless all parameters are finite after an iteration's update.

    The last mini-batch can break them while all losses are finite. The next rollout would then end in an error of
    torch: on a GPU in a device assert that names nothing. Asks the device for one number.
    """
    named = list(parameters)
    # A sum is finite only if all of its terms are, except for an overflow, which is a fault too.
    finite = torch.stack([parameter.detach().sum() for _, parameter in named]).isfinite()
    if not finite.all():
        name = named[int((~finite).nonzero()[0])][0]
        raise FloatingPointError(f"{name} is not finite after iteration {iteration}: {_ADVICE}")


class RanksDriftedError(RuntimeError):
    """The ranks do not hold the same parameters, normalisers or optimiser state any more."""


def check_drift(state: dict[str, Any], world_size: int, device: str) -> None:
    """Compare a nested state over ranks, bit for bit, by checksums and with one collective.

    Args:
        state: Tensors, numbers, and lists and dictionaries of them; of the same structure on every rank.

    Raises:
        RanksDriftedError: A tensor differs; the message names the first one and the ranks that differ from the most.
    """
    leaves = dict(_walk("", state))
    tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    numbers = {name: float(leaf) for name, leaf in leaves.items() if not isinstance(leaf, torch.Tensor)}
    names = [*tensors, *numbers]
    mine = torch.cat(
        [
            _checksums(list(tensors.values()), device),
            _bits(torch.tensor(list(numbers.values()), dtype=torch.float64)).to(device),
        ]
    )
    gathered = mine.new_empty(world_size * len(names))
    dist.all_gather_into_tensor(gathered, mine)
    rows = gathered.view(world_size, len(names))
    same = (rows == rows[0]).all(dim=0)
    if same.all():
        return
    first = int((~same).nonzero()[0])
    by_rank = rows[:, first].tolist()
    most_common, _ = Counter(by_rank).most_common(1)[0]
    different = [rank for rank, checksum in enumerate(by_rank) if checksum != most_common]
    ranks = "rank " if len(different) == 1 else "ranks "
    against = "rank 0" if world_size == 2 else "the other ranks"
    raise RanksDriftedError(
        f"{names[first]} differs between ranks: {ranks}{', '.join(map(str, different))} against {against} "
        f"({int((~same).sum())} of {len(names)} tensors differ); the ranks do not train the same networks any more"
    )


def _walk(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor | float]]:
    if isinstance(value, torch.Tensor | int | float):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(f"{name}[{index}]", item)


def _checksums(tensors: list[torch.Tensor], device: str) -> torch.Tensor:
    """Sum each tensor's bits as integers, weighted by an odd number per place, modulo 2 ** 64. Shape (num_tensors,)."""
    # One changed element always changes its tensor's sum, because an odd weight has an inverse modulo 2 ** 64.
    longest = max(tensor.numel() for tensor in tensors)
    weights = torch.arange(1, 2 * longest + 1, 2, device=device)
    sums = [(_bits(tensor).to(device) * weights[: tensor.numel()]).sum() for tensor in tensors]
    return torch.stack(sums)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor's elements as int64, without rounding. Shape (numel,)."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(_INTEGERS[flat.element_size()]).to(torch.int64)
