"""Whether all ranks still hold the same networks."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    """Yield every tensor and number with its path."""
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
