"""Numbers of the whole job, from sums over ranks."""

from typing import Any

import torch
import torch.distributed as dist

from mjtrain.env.statistics import EpisodeStatistics
from mjtrain.rank import RankContext


class JobMetrics:
    """Adds up what the ranks saw in an iteration: one collective, one host sync."""

    def __init__(self, context: RankContext, statistics: EpisodeStatistics) -> None:
        self._context = context
        self._statistics = statistics
        self._last_episodes: dict[str, Any] = {"mean_reward": None, "mean_episode_length": None}

    def collect(
        self,
        *,
        losses: dict[str, float],
        kl: float | None,
        collect_time_s: float,
        learn_time_s: float,
        num_env_steps: int,
    ) -> dict[str, Any]:
        """Reduce one iteration over ranks. Every rank must call it; all get the same answer.

        Args:
            losses: This rank's mean losses.
            kl: This rank's mean KL divergence, in nats.
            collect_time_s: Time this rank took to collect.
            learn_time_s: Time this rank took to learn, waiting for the others included.
            num_env_steps: Env steps of this rank.

        Returns:
            Means over finished episodes (the last known ones where none finished), losses and times as means over
            ranks, throughput of all ranks together.
        """
        episodes = self._statistics.pop()
        per_rank = [*losses.values(), kl or 0.0, collect_time_s, learn_time_s, float(num_env_steps)]
        sums = torch.cat([episodes, torch.tensor(per_rank, dtype=torch.float64, device=episodes.device)])
        if self._context.is_distributed:
            dist.all_reduce(sums)
        values = sums.tolist()
        *means, total_env_steps = values[len(episodes) :]
        *mean_losses, mean_kl, mean_collect_s, mean_learn_s = (mean / self._context.world_size for mean in means)
        self._last_episodes |= self._statistics.summarise(values[: len(episodes)])
        return {
            "env_steps_per_second": total_env_steps / (mean_collect_s + mean_learn_s),
            "collect_time_s": mean_collect_s,
            "learn_time_s": mean_learn_s,
            **self._last_episodes,
            **{f"loss/{name}": loss for name, loss in zip(losses, mean_losses, strict=True)},
            "kl": None if kl is None else mean_kl,
        }
