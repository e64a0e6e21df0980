"""Cheaper parts of an update: mini-batches put in order once, a fused optimiser step, activations in place."""

from collections.abc import Generator
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from mjtrain.learning.persistence import find_other_moment

Batch = RolloutStorage.Batch

_FUSED = (torch.optim.Adam, torch.optim.AdamW)


def yield_mini_batches(storage: RolloutStorage, num_mini_batches: int, num_epochs: int = 8) -> Generator[Any]:
    """Yield what `RolloutStorage.mini_batch_generator` yields of all epochs, and draw what it draws.

    RSL-RL draws one order of the samples per update and then picks those of every mini-batch, of every field, in every
    epoch again. Here they are brought into that order once, and a mini-batch is a slice. Images, which take a hundred
    times the memory, are picked as RSL-RL does.

    Args:
        storage: Of networks that are not recurrent.
    """
    size = storage.num_envs * storage.num_transitions_per_env // num_mini_batches
    order = torch.randperm(num_mini_batches * size, device=storage.device)
    assert storage.distribution_params is not None
    flat = {name: values.flatten(0, 1) for name, values in storage.observations.items()}
    images = {name: values for name, values in flat.items() if values.ndim > 2}
    observations = {name: values.index_select(0, order) for name, values in flat.items() if values.ndim <= 2}
    fields = (storage.actions, storage.values, storage.advantages, storage.returns, storage.actions_log_prob)
    fields += storage.distribution_params
    ordered = [values.flatten(0, 1).index_select(0, order) for values in fields]
    for begin in [*range(0, num_mini_batches * size, size)] * num_epochs:
        part = slice(begin, begin + size)
        seen = {name: values[part] for name, values in observations.items()}
        seen |= {name: values[order[part]] for name, values in images.items()}
        actions, values, advantages, returns, log_prob, *params = [field[part] for field in ordered]
        yield Batch(
            observations=TensorDict(seen, batch_size=[size], device=storage.device),  # pyright: ignore[reportArgumentType]
            actions=actions,
            values=values,
            advantages=advantages,
            returns=returns,
            old_actions_log_prob=log_prob,
            old_distribution_params=tuple(params),
        )


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
