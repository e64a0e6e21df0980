"""Sums over finished episodes, kept on the device."""

import torch


class EpisodeStatistics:
    """Adds up returns, lengths and causes of finished episodes, without a host sync.

    The totals are sums and counts, so totals of several ranks can simply be added. Episodes that began before
    `skip_running` are left out.
    """

    def __init__(
        self, rewards: tuple[str, ...], terminations: tuple[str, ...], num_envs: int, device: torch.device
    ) -> None:
        self._rewards = rewards
        self._terminations = terminations
        # Columns of a row: the return of each reward term, then the length in env steps.
        self._running = torch.zeros(num_envs, len(rewards) + 1, device=device)
        self._ones = torch.ones(num_envs, 1, device=device)
        self._counted = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._totals = torch.zeros(len(rewards) + 1 + len(terminations) + 1, dtype=torch.float64, device=device)

    def update(self, rewards: torch.Tensor, causes: torch.Tensor, done: torch.Tensor) -> None:
        """Take in one env step.

        Args:
            rewards: Reward of every term. Shape (num_envs, num_rewards).
            causes: What every termination term said. Shape (num_envs, num_terminations).
            done: Episodes that end with this step. Boolean, shape (num_envs,).
        """
        self._running += torch.cat([rewards, self._ones], dim=1)
        finished = (done & self._counted).to(self._running.dtype)
        row = torch.cat([self._running, causes.to(self._running.dtype), self._ones], dim=1)
        self._totals += finished @ row
        self._running.masked_fill_(done[:, None], 0.0)
        self._counted.logical_or_(done)

    def skip_running(self) -> None:
        """Leave the episodes that are under way out of the totals."""
        self._counted.zero_()

    def pop(self) -> torch.Tensor:
        """Return the totals since the last call, for `summarise`. Shape (num_totals,), float64."""
        totals = self._totals.clone()
        self._totals.zero_()
        return totals

    def summarise(self, totals: list[float]) -> dict[str, float]:
        """Turn totals, of one rank or added over ranks, into means per finished episode.

        Returns:
            mean_reward (return of an episode), mean_episode_length (env steps), reward/NAME (the term's part of the
            return) and termination/NAME (fraction of episodes in which the term said so); empty where no episode
            finished.
        """
        count = totals[-1]
        if count == 0:
            return {}
        means = [total / count for total in totals]
        num_rewards = len(self._rewards)
        return {
            "mean_reward": sum(means[:num_rewards]),
            "mean_episode_length": means[num_rewards],
            **{f"reward/{name}": mean for name, mean in zip(self._rewards, means, strict=False)},
            **{
                f"termination/{name}": mean
                for name, mean in zip(self._terminations, means[num_rewards + 1 : -1], strict=True)
            },
        }
