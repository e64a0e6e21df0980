"""Cheaper parts of an update: mini-batches picked once, a fused optimiser step, activations in place."""

import copy
from collections.abc import Generator
from functools import partial
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from torch import nn

from mjtrain.learning.persistence import find_other_moment

_FUSED = (torch.optim.Adam, torch.optim.AdamW)


def yield_mini_batches(storage: RolloutStorage, num_mini_batches: int, num_epochs: int = 8) -> Generator[Any]:
    """Yield what `RolloutStorage.mini_batch_generator` yields of all epochs, and draw what it draws.

    RSL-RL draws one order of the samples per update, and picks those of every mini-batch again in every epoch. Here
    they are picked once, unless there are images, which take a hundred times the memory.

    Args:
        storage: Of networks that are not recurrent.
    """
    generate = partial(RolloutStorage.mini_batch_generator, storage)
    if any(values.ndim > 3 for values in storage.observations.values()):
        yield from generate(num_mini_batches, num_epochs)
        return
    batches: list[Any] = list(generate(num_mini_batches, 1))
    for picked in batches * num_epochs:
        batch = copy.copy(picked)  # in which an update may replace fields and groups
        batch.observations = picked.observations.copy()
        yield batch


def make_fast(optimizer: torch.optim.Optimizer, *networks: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser as one fused operation on a CPU, and let activations overwrite what they are given.

    The gradient of an ELU that keeps its result instead of its argument needs no exponential function.

    Args:
        optimizer: Of the networks, before its first step.
        *networks: What learns. An ELU or ReLU in it follows a linear layer or a convolution, and nothing else reads
            what that layer returns.
    """
    for module in [module for network in networks for module in network.modules()]:
        if isinstance(module, nn.ELU | nn.ReLU):
            module.inplace = True
    on_cpu = all(weight.device.type == "cpu" for group in optimizer.param_groups for weight in group["params"])
    if type(optimizer) not in _FUSED or not on_cpu:
        return optimizer
    make: Any = type(optimizer)
    groups = [
        {key: value for key, value in group.items() if key not in ("foreach", "fused")}
        for group in optimizer.param_groups
    ]
    return make(groups, fused=True)


def keep_settings(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Let a state continue with the settings of the optimiser that will load it, such as fused; its step size stays.

    The moments of another kind of optimiser are left out, and those of networks whose parameters have other shapes: a
    network that is symmetric by construction has fewer than the same one without ties. The state is changed in place.
    """
    if find_other_moment(optimizer, state) is not None:
        state["state"] = {}
    for theirs, ours in zip(state["param_groups"], optimizer.param_groups, strict=False):
        if theirs.keys() - ours.keys() and ours.keys() - theirs.keys():  # other versions of a kind only add settings
            state["state"] = {}
        kept = {name: theirs[name] for name in ("params", "lr")}
        theirs.clear()
        theirs.update({**ours, **kept})
