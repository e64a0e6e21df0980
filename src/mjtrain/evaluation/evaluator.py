"""Measure the policy of a training in separate worlds."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mjtrain.config import TrainConfig
from mjtrain.env.env import Env
from mjtrain.env.undisturbed import undisturbed
from mjtrain.evaluation.episodes import Episode, PolicyPlayer, play_episodes, resolve_run_size
from mjtrain.evaluation.eval_config import BROKEN, UNFINISHED, list_quantities, to_eval_config
from mjtrain.learning.collectives import Collectives
from mjtrain.learning.library import make_policy
from mjtrain.runtime import heartbeat
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.worker import torch_threads
from mjtrain.sim.engines import make_engine

SEED = 3_886_112_493
"""Seed of rank 0's worlds; each further rank has the next one.

It is the same in all runs, so that they can be compared. A training uses it for its worlds with a probability of 2e-10.
"""

WEIGHTS = Path("(of this training)")
"""Stands for the file from which weights come, in messages."""


class Evaluator:
    """Plays whole episodes with the mean action, in a task without noise, pushes and randomization.

    Every evaluation starts from the same state of the same worlds, so the numbers depend on the policy alone, with a
    given number of ranks. What trains does not notice: an evaluation restores random numbers and what terms remember.
    """

    def __init__(self, context: RankContext, config: TrainConfig) -> None:
        """Build this rank's worlds and networks, once; `run.eval_episodes` of the config are split over the ranks."""
        self._context = context
        self._env_config = to_eval_config(config.env)
        self._quantities = list_quantities(config.env, config.agent)
        each, left = divmod(config.run.eval_episodes, context.world_size)
        # The first ranks play one more where they cannot be split evenly.
        *before, share = (each + (rank < left) for rank in range(context.rank + 1))
        self._per_env = 0
        self._player: PolicyPlayer | None = None
        self._start: dict[str, Any] = {}
        if share:
            num_envs, self._per_env = resolve_run_size(share, None)
            with undisturbed(self._env_config, context.device), torch_threads(1):
                first_world = sum(resolve_run_size(episodes, None)[0] for episodes in before)
                engine = make_engine(config.run.engine, self._env_config, num_envs, context.device, context.num_threads)
                env = Env(self._env_config, engine, SEED + context.rank, first_world=first_world)
                policy = make_policy(config.agent, config.learner, env.observe(), env.num_actions)
                self._player = PolicyPlayer(env, policy)
                self._start = env.state_dict()

    def evaluate(self, weights: dict[str, Any]) -> dict[str, Any] | None:
        """Play the episodes; every rank must call it, and gets the same answer.

        Returns:
            Means over the episodes of all ranks by key, as in metrics.jsonl; None for a quantity that no episode has.
            None if a rank was asked to stop meanwhile.
        """
        stopped = False

        def go_on() -> bool:
            nonlocal stopped
            heartbeat.beat()
            stopped = stopped or heartbeat.stop_requested()
            return not stopped

        episodes: list[Episode] = []
        if self._player is not None and self._player.policy is not None:
            # The cores are left to the physics, as while collecting.
            with undisturbed(self._env_config, self._context.device), torch_threads(1), torch.inference_mode():
                self._player.policy.load(weights, WEIGHTS)
                self._player.env.load_state_dict(self._start)
                episodes = play_episodes(self._player, self._per_env, go_on)
        totals = torch.tensor([*self._add_up(episodes), float(stopped)], dtype=torch.float64)
        *values, num_stopped = Collectives(self._context.device).sum(totals.to(self._context.device)).tolist()
        return None if num_stopped else self._summarise(values)

    def _add_up(self, episodes: list[Episode]) -> Iterator[float]:
        """Yield for each quantity its sum over episodes, and how many of them have it."""
        causes = (*self._env_config.terminations, BROKEN, UNFINISHED)
        measured = [episode.quantities(causes) for episode in episodes]
        for name in self._quantities:
            values = [quantities[name] for quantities in measured if name in quantities]
            yield math.fsum(values)
            yield len(values)

    def _summarise(self, totals: list[float]) -> dict[str, Any]:
        sums, counts = totals[::2], totals[1::2]
        means = {
            f"eval/{name}": total / count if count else None
            for name, total, count in zip(self._quantities, sums, counts, strict=True)
        }
        return {"eval/episodes": round(counts[0]), **means}

    def close(self) -> None:
        """Release the worlds."""
        if self._player is not None:
            self._player.close()
