"""skrl's PPO, so that N ranks optimise what one rank with N times the environments would."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from skrl.agents.jax.ppo import PPO, ppo

from mjtrain.learning import Collectives, RankContext, normalise
from mjtrain_learners.skrl_on_jax.arrays import to_jax, to_torch


class JobPpo(PPO):
    """PPO whose advantages, gradients and divergences are those of all ranks' samples; with one rank it is skrl's.

    skrl's update takes each of its steps by a function of its module. They are replaced by ones that sum over ranks
    what skrl's return. So whatever follows from it, such as the learning rate and the end of the epochs, is the same on
    all ranks. skrl itself would sum by JAX's own process group; docs/learners.md says why that is not used.
    """

    def __init__(self, context: RankContext, collectives: Collectives, **kwargs: Any) -> None:
        """Take everything that skrl's takes, the rank, and what adds up over ranks."""
        super().__init__(**kwargs)
        self.divergences: list[float] = []
        """KL divergences of the mini-batches, in nats, until somebody clears them."""
        self._collectives = collectives
        self._world_size = context.world_size

    def update(self, *, timestep: int, timesteps: int) -> None:
        """Learn from a rollout; see skrl."""
        steps = {"_update_policy": self._update_policy}
        if self._world_size > 1:
            steps |= {"_update_value": self._update_value, "_compute_gae": self._compute_gae}
        with _replaced(steps):
            super().update(timestep=timestep, timesteps=timesteps)

    def _update_policy(self, original: Callable[..., Any], *args: Any) -> Any:
        """Return gradients and divergence over all ranks, and the losses and standard deviation of this one."""
        gradient, policy_loss, entropy_loss, divergence, std = original(*args)
        if self._world_size > 1:
            gradient, divergence = self._average((gradient, divergence))
        self.divergences.append(divergence.item())
        return gradient, policy_loss, entropy_loss, divergence, std

    def _update_value(self, original: Callable[..., Any], *args: Any) -> Any:
        """Return gradients over all ranks, and the loss of this one."""
        gradient, loss = original(*args)
        return self._average(gradient), loss

    def _compute_gae(self, original: Callable[..., Any], *, values: jax.Array, **kwargs: Any) -> Any:
        """Return returns, and advantages normalised over all ranks."""
        returns, _ = original(values=values, **kwargs)
        return returns, to_jax(normalise(to_torch(returns - values), self._collectives))

    def _average(self, tree: Any) -> Any:
        """Average nested arrays over ranks, in one collective; every rank gets the same bits."""
        flat, unflatten = ravel_pytree(tree)
        return unflatten(jnp.divide(to_jax(self._collectives.sum(to_torch(flat))), self._world_size))


@contextmanager
def _replaced(steps: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Give the steps of skrl's update to functions that take skrl's own as their first argument."""
    originals = {name: getattr(ppo, name) for name in steps}

    def bind(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: steps[name](originals[name], *args, **kwargs)

    for name in steps:
        setattr(ppo, name, bind(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(ppo, name, original)
