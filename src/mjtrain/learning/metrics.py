"""Numbers of the whole job, from sums over ranks."""

from typing import Any

import torch

from mjtrain.env.base import TaskEnv
from mjtrain.learning.collectives import Collectives
from mjtrain.runtime import heartbeat
from mjtrain.runtime.rank import RankContext

TIMES = ("collect_time_s", "learn_time_s", "wait_time_s")


class JobMetrics:
    """Adds up what the ranks saw in an iteration: one collective, one host sync.

    With environments that tell something of themselves it is one more, as ranks may have heard of other names.
    """

    def __init__(self, context: RankContext, env: TaskEnv, collectives: Collectives) -> None:
        self._context = context
        self._env = env
        self._statistics = env.statistics
        self._log = env.log
        self._collectives = collectives
        self.last_episodes: dict[str, Any] = {"mean_reward": None, "mean_episode_length": None}
        """Means over episodes of the last iteration in which one finished."""
        self.stop_requested = False
        """Whether any rank had been asked to stop by the last `collect`; the same answer on all."""
        self.pause_requested = False
        """Whether any rank had heard by then that hosts wait to be taken in; the same answer on all."""
        self.has_new_shared = False
        """Whether the environments of any rank have something new to share; the same answer on all."""

    def collect(
        self,
        *,
        means: dict[str, torch.Tensor | float | None],
        collect_time_s: float,
        learn_time_s: float,
        wait_time_s: float,
        num_env_steps: int,
    ) -> dict[str, Any]:
        """Reduce one iteration over ranks. Every rank must call it; all get the same answer.

        Args:
            means: This rank's means over its samples, the same number on all ranks; None is left None.
            learn_time_s: Time from there to the end of the update, without waiting for other ranks.
            wait_time_s: Time this rank waited for the others meanwhile.

        Returns:
            Means over finished episodes (the last known ones where none finished), the means over all ranks, what the
            environments tell of themselves, throughput of all ranks together, and each time as mean, min and max over
            ranks with the rank that was slowest.
        """
        context = self._context
        episodes = self._statistics.pop()
        times = episodes.new_zeros(context.world_size, len(TIMES))
        times[context.rank] = times.new_tensor([collect_time_s, learn_time_s, wait_time_s])
        known = {name: mean for name, mean in means.items() if mean is not None}
        mine = torch.stack([torch.as_tensor(mean, dtype=times.dtype, device=times.device) for mean in known.values()])
        flags = (heartbeat.stop_requested(), heartbeat.current.pause_requested, bool(self._env.new_shared()))
        asked = episodes.new_tensor([float(flag) for flag in flags])
        told = self._pop_log(episodes)
        sums = torch.cat([told, episodes, mine, times.flatten(), asked])
        if context.is_distributed:
            self._collectives.sum(sums)
        *values, num_stops, num_pauses, num_new = sums.tolist()
        self.stop_requested, self.pause_requested, self.has_new_shared = num_stops > 0, num_pauses > 0, num_new > 0
        told_means = {} if self._log is None else self._log.summarise(values[: len(told)])
        values = values[len(told) :]
        # Warnings are of this iteration only, and are not given where there are none.
        kept = {name: mean for name, mean in self.last_episodes.items() if not name.startswith("warning/")}
        self.last_episodes = kept | self._statistics.summarise(values[: len(episodes)])
        job_means = dict.fromkeys(means) | {
            name: total / context.world_size for name, total in zip(known, values[len(episodes) :], strict=False)
        }
        slots = range(len(episodes) + len(known), len(values), len(TIMES))
        by_rank = [values[slot : slot + len(TIMES)] for slot in slots]
        return {**_speed(by_rank, num_env_steps), **self.last_episodes, **told_means, **job_means}

    def _pop_log(self, like: torch.Tensor) -> torch.Tensor:
        """Return the totals of what this rank's environments told, of the same names on all ranks."""
        if self._log is None:
            return like.new_zeros(0)
        self._log.agree_on(self._collectives.union(self._log.new_names(), self._context))
        return self._log.pop()


def _speed(by_rank: list[list[float]], num_env_steps: int) -> dict[str, Any]:
    world_size = len(by_rank)
    busy_s = [collect_s + learn_s for collect_s, learn_s, _ in by_rank]
    iteration_s = sum(map(sum, by_rank)) / world_size
    summary: dict[str, Any] = {"env_steps_per_second": world_size * num_env_steps / iteration_s}
    for name, times in zip(TIMES, zip(*by_rank, strict=True), strict=True):
        summary[name] = sum(times) / world_size
        if world_size > 1:
            stem = name.removesuffix("_s")
            summary |= {f"{stem}_min_s": min(times), f"{stem}_max_s": max(times)}
    if world_size > 1:
        summary |= {"slowest_rank": busy_s.index(max(busy_s)), "busy_time_by_rank_s": busy_s}
    return summary
