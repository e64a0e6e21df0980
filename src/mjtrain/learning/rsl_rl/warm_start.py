"""Behaviour cloning of a controller of the task, before reinforcement learning begins."""

from typing import Any

import torch
from rsl_rl.algorithms import PPO

from mjtrain.config import WarmStartConfig
from mjtrain.env.env import Env
from mjtrain.learning.collectives import Collectives
from mjtrain.learning.rsl_rl.networks import list_groups
from mjtrain.learning.rsl_rl.vec_env import pack
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext

_BATCH_SIZE = 1024
"""Samples of a mini-batch on each rank."""


def imitate_controller(
    algorithm: PPO, env: Env, config: WarmStartConfig, context: RankContext, collectives: Collectives
) -> None:
    """Fit the actor's mean to the actions of a controller; every rank must call it.

    The worlds are stepped by the controller, and afterwards are as before. Gradients are averaged over ranks, so that
    all keep the same actor.

    Raises:
        FloatingPointError: The controller's actions, or what the actor sees, are not finite.
    """
    actor: Any = algorithm.get_policy()
    if actor.is_recurrent:
        raise RequestError(
            f"--agent.algorithm.warm-start.controller {config.controller}: a recurrent actor cannot imitate it; "
            "leave the controller out to begin with random weights"
        )
    heartbeat.beat("rollout", warming_up=True)
    before = env.state_dict()
    seen, wanted = [], []
    read = list_groups(actor)
    groups = [name for name, values in env.observe().items() if values.ndim == 2 or name in read]
    with torch.no_grad():
        for _ in range(config.num_steps):
            actions = env.controller(config.controller)
            seen.append(pack({name: env.observe()[name] for name in groups}).clone())
            wanted.append(actions)
            env.step(actions + config.noise * torch.randn_like(actions))
            heartbeat.beat()
    env.load_state_dict(before)
    env.forget_failures()
    observations: Any = torch.cat(seen)
    targets = torch.cat(wanted)
    del seen, wanted
    if not all(values.isfinite().all() for values in (targets, *observations.values())):
        raise FloatingPointError(f"--env.controllers.{config.controller}: its actions or observations are not finite")
    actor.update_normalization(observations)
    heartbeat.beat("update", warming_up=True)
    optimizer = torch.optim.Adam(actor.parameters(), lr=config.learning_rate)
    for _ in range(config.num_batches):
        batch = torch.randint(len(targets), (min(_BATCH_SIZE, len(targets)),), device=targets.device)
        optimizer.zero_grad()
        (actor(observations[batch]) - targets[batch]).square().mean().backward()
        if context.is_distributed:
            collectives.average_gradients(actor.parameters(), context.world_size)
        optimizer.step()
        heartbeat.beat()
