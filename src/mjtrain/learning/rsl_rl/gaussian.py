"""RSL-RL's Gaussian distribution of actions, with one standard deviation for all samples and not one for each."""

import math

import torch
from rsl_rl.modules.distribution import GaussianDistribution

_LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Gaussian(GaussianDistribution):
    """What `GaussianDistribution` computes.

    RSL-RL repeats the standard deviation, which does not depend on the state, for every sample of a mini-batch, and
    takes its logarithm for each of them three times, by torch.distributions. Here that is done once.
    """

    def update(self, mlp_output: torch.Tensor) -> None:
        """Take the means, shape (..., num_actions)."""
        if self.std_type == "scalar":
            self._std = self.std_param.clamp(*self.std_range)
        else:
            self._std = self.log_std_param.clamp(*self.log_std_range).exp()
        self._mean = mlp_output.to(self._std.dtype)  # from bfloat16, where the losses are computed in it

    def sample(self) -> torch.Tensor:
        """Draw actions. Shape (..., num_actions)."""
        with torch.no_grad():
            return torch.normal(self._mean, self.std)

    @property
    def mean(self) -> torch.Tensor:
        """Means. Shape (..., num_actions)."""
        return self._mean

    @property
    def std(self) -> torch.Tensor:
        """Standard deviations, as a view. Shape (..., num_actions)."""
        return self._std.expand_as(self._mean)

    @property
    def entropy(self) -> torch.Tensor:
        """Entropy in nats, as a view. Shape (...)."""
        return (self._std.log() + (0.5 + _LOG_SQRT_TWO_PI)).sum().expand(self._mean.shape[:-1])

    def log_prob(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logarithm of the density. Shape (...).

        Args:
            outputs: Actions. Shape (..., num_actions).
        """
        squares = ((outputs - self._mean) / self._std).square().sum(dim=-1)
        return -0.5 * squares - (self._std.log() + _LOG_SQRT_TWO_PI).sum()

    def kl_divergence(self, old_params: tuple[torch.Tensor, ...], new_params: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Kullback-Leibler divergence of a new distribution from an old one, in nats. Shape (...).

        Args:
            old_params: Means and standard deviations. Shape (..., num_actions) each.
            new_params: Likewise.
        """
        (old_mean, old_std), (new_mean, new_std) = old_params, new_params
        ratio = (old_std / new_std).square()
        return 0.5 * (ratio - ratio.log() - 1.0 + ((old_mean - new_mean) / new_std).square()).sum(dim=-1)
