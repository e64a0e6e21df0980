"""Sums over finished episodes, kept on the device, and the numbers that external environments log."""

from collections.abc import Iterable, Mapping
from itertools import islice

import torch

from mjtrain.runtime.errors import RequestError


class EpisodeStatistics:
    """Sums returns, lengths, causes and successes of finished episodes, without waiting for the device.

    The totals are sums and counts, so totals of several ranks can simply be added. Episodes that began before
    `skip_running` are left out.
    """

    def __init__(
        self,
        rewards: tuple[str, ...],
        terminations: tuple[str, ...],
        num_envs: int,
        device: torch.device,
        *,
        levels: dict[str, torch.Tensor] | None = None,
        successes: tuple[str, ...] = (),
        missed: Mapping[str, torch.Tensor] | None = None,
        warned: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Start at zero.

        Args:
            levels: Levels of the curriculum terms, live. Shape (num_envs,) each.
            missed: Worlds for which a buffer of the engine had no room, live, by the buffer; see `Buffer.missed`.
            warned: Worlds in which the engine warned, live, by the warning; see `Engine.warnings`.
        """
        self._rewards = rewards
        self._terminations = terminations
        self._levels = levels or {}
        self._successes = successes
        self._missed = missed or {}
        self._warned = warned or {}
        # Columns of a row: the return of each reward term, then the length in env steps.
        self._running = torch.zeros(num_envs, len(rewards) + 1, device=device)
        self._ones = torch.ones(num_envs, 1, device=device)
        self._counted = torch.ones(num_envs, dtype=torch.bool, device=device)
        num_totals = len(rewards) + 1 + len(terminations) + len(successes) + 1
        self._totals = torch.zeros(num_totals, dtype=torch.float64, device=device)
        self._broken = torch.zeros((), dtype=torch.float64, device=device)

    def add(
        self,
        rewards: torch.Tensor,
        causes: torch.Tensor,
        done: torch.Tensor,
        broken: torch.Tensor | None = None,
        successes: torch.Tensor | None = None,
    ) -> None:
        """Take in one env step. Call `drop_running` where it ends episodes, before the next.

        Args:
            rewards: Reward of every term. Shape (num_envs, num_rewards).
            causes: Result of every termination term. Shape (num_envs, num_terminations).
            done: Episodes that end with this step. Boolean, shape (num_envs,).
            broken: Those of them that end because their state is not finite. Boolean, shape (num_envs,).
            successes: What each success term measures of the episode so far. Shape (num_envs, num_successes).
        """
        if broken is not None:
            self._broken += broken.sum()
        self._running += torch.cat([rewards, self._ones], dim=1)
        finished = (done & self._counted).to(self._running.dtype)
        measured = [] if successes is None else [successes]
        row = torch.cat([self._running, causes.to(self._running.dtype), *measured, self._ones], dim=1)
        self._totals += finished @ row

    def skip_running(self) -> None:
        """Leave the running episodes out of the totals."""
        self._counted.zero_()

    def drop_running(self, mask: torch.Tensor) -> None:
        """Forget the running episodes of the masked worlds, which begin new ones. Boolean, shape (num_envs,)."""
        self._running.masked_fill_(mask[:, None], 0.0)
        self._counted.logical_or_(mask)

    def episode_return(self, reward: str) -> torch.Tensor:
        """Return of a reward term in the running episode so far. Shape (num_envs,)."""
        if reward not in self._rewards:
            raise RequestError(f"unknown reward term {reward}; available: {', '.join(self._rewards) or 'none'}")
        return self._running[:, self._rewards.index(reward)]

    def episode_steps(self) -> torch.Tensor:
        """Env steps of the running episode so far, without those skipped by `Env.stagger`. Shape (num_envs,)."""
        return self._running[:, -1]

    def find_not_finite(self) -> list[str]:
        """Return the reward terms that were not finite since the last `pop`, in worlds that were. Asks the device."""
        # A total is a sum of products with 0 or 1, and 0 times what is not finite is not finite.
        totals = self._totals[: len(self._rewards)] + self._running[:, :-1].sum(dim=0)
        return [name for name, finite in zip(self._rewards, totals.isfinite().tolist(), strict=True) if not finite]

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return {"running": self._running, "counted": self._counted, "totals": self._totals, "broken": self._broken}

    def pop(self) -> torch.Tensor:
        """Return the totals since the last call, for `summarise`. Shape (num_totals,), float64."""
        levels = [level.sum(dtype=torch.float64) for level in self._levels.values()]
        missed = [(worlds != 0).sum(dtype=torch.float64) for worlds in self._missed.values()]
        warned = [worlds.sum(dtype=torch.float64).to(self._broken.device) for worlds in self._warned.values()]
        worlds = torch.full_like(self._broken, self._running.shape[0])
        totals = torch.cat([self._totals, torch.stack([*levels, *missed, *warned, worlds, self._broken])])
        for noted in (*self._missed.values(), *self._warned.values()):
            noted.zero_()
        self._totals.zero_()
        self._broken.zero_()
        return totals

    def summarise(self, totals: list[float]) -> dict[str, float]:
        """Turn totals, of one rank or added over ranks, into means per finished episode.

        Returns:
            nan_resets, worlds that broke; overflow/NAME, worlds for which the engine's buffer of that name had no room;
            warning/NAME, worlds in which MuJoCo gave that warning, if there are any;
            curriculum/NAME, mean level over all worlds; and if an episode finished,
            mean_reward (return of an episode), mean_episode_length (env steps), reward/NAME (the term's part of the
            return), termination/NAME (fraction of episodes in which the term was true) and success/NAME (the mean of
            what the term measured).
        """
        rest = iter(totals)
        episodes, levels, missed, warned, (worlds, broken) = (list(islice(rest, size)) for size in self._sizes())
        means = {
            "nan_resets": round(broken),
            **{f"overflow/{name}": round(count) for name, count in zip(self._missed, missed, strict=True)},
            **{f"warning/{name}": round(count) for name, count in zip(self._warned, warned, strict=True) if count},
            **{f"curriculum/{name}": level / worlds for name, level in zip(self._levels, levels, strict=True)},
        }
        return means | self._summarise_episodes(episodes)

    def keys(self) -> set[str]:
        """Return every key that `summarise` can give."""
        return set(self.summarise([1.0] * sum(self._sizes())))

    def _sizes(self) -> tuple[int, ...]:
        return len(self._totals), len(self._levels), len(self._missed), len(self._warned), 2

    def _summarise_episodes(self, totals: list[float]) -> dict[str, float]:
        count = totals[-1]
        if count == 0:
            return {}
        means = [total / count for total in totals]
        num_rewards = len(self._rewards)
        causes, successes = means[num_rewards + 1 :][: len(self._terminations)], means[-1 - len(self._successes) : -1]
        return {
            "mean_reward": sum(means[:num_rewards]),
            "mean_episode_length": means[num_rewards],
            **{f"reward/{name}": mean for name, mean in zip(self._rewards, means, strict=False)},
            **{f"termination/{name}": mean for name, mean in zip(self._terminations, causes, strict=True)},
            **{f"success/{name}": mean for name, mean in zip(self._successes, successes, strict=True)},
        }


class EnvLog:
    """Adds up by name what was told in each env step, without waiting for the device.

    Which names there are shows only while the environments are stepped, and ranks may see other ones: `agree_on` tells
    which totals `pop` returns, in which order.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._names: tuple[str, ...] = ()
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, told: Mapping[str, torch.Tensor]) -> None:
        """Take in what was told in an env step: numbers by name, of any shape, each of which counts."""
        for name, values in told.items():
            total = values.double().sum()
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] = self._counts.get(name, 0) + values.numel()

    def new_names(self) -> list[str]:
        """Return the names that were told and not agreed on yet."""
        return [name for name in self._sums if name not in self._names]

    def agree_on(self, names: Iterable[str]) -> None:
        """Add to the names of the totals; all ranks must add the same."""
        self._names = (*self._names, *names)

    def pop(self) -> torch.Tensor:
        """Return sum and count of each name that was agreed on, and forget all. Shape (2 * num_names,), float64."""
        zero = torch.zeros((), dtype=torch.float64)
        sums = [self._sums.get(name, zero).to(self._device) for name in self._names]
        counts = torch.tensor([self._counts.get(name, 0) for name in self._names], dtype=torch.float64)
        self._sums, self._counts = {}, {}
        return torch.cat([torch.stack(sums), counts.to(self._device)]) if sums else counts.to(self._device)

    def summarise(self, totals: list[float]) -> dict[str, float]:
        """Turn totals, of one rank or added over ranks, into means: log/NAME for each name that was told."""
        sums, counts = totals[: len(self._names)], totals[len(self._names) :]
        return {
            f"log/{name}": total / count for name, total, count in zip(self._names, sums, counts, strict=True) if count
        }
