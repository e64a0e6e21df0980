"""Networks by the class names that configs use, what they read, and the distribution of actions."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules.distribution import GaussianDistribution
from rsl_rl.utils import resolve_callable
from tensordict import TensorDict

from mjtrain.learning.rsl_rl.cnn_model import CnnModel

_LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)

OWN_MODELS: dict[str, Callable[..., Any]] = {"CNNModel": CnnModel}
"""mjtrain replacements for the RSL-RL classes of the same name."""

_OF_SOME = ("cnn_cfg", "rnn_type", "rnn_hidden_dim", "rnn_num_layers")
"""Options that only some classes take."""


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
        with torch.no_grad():  # what torch.normal does, without its question whether the device has a NaN
            return torch.randn_like(self._mean).mul_(self.std).add_(self._mean)

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
        """Logarithm of the density of actions, shape (..., num_actions). Shape (...)."""
        squares = ((outputs - self._mean) / self._std).square().sum(dim=-1)
        return -0.5 * squares - (self._std.log() + _LOG_SQRT_TWO_PI).sum()

    def kl_divergence(self, old_params: tuple[torch.Tensor, ...], new_params: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Kullback-Leibler divergence of a new distribution from an old one, in nats. Shape (...).

        Parameters are means and standard deviations, shape (..., num_actions) each.
        """
        (old_mean, old_std), (new_mean, new_std) = old_params, new_params
        ratio = (old_std / new_std).square()
        return 0.5 * (ratio - ratio.log() - 1.0 + ((old_mean - new_mean) / new_std).square()).sum(dim=-1)


OWN_DISTRIBUTIONS: dict[str, Callable[..., Any]] = {"GaussianDistribution": Gaussian}
"""mjtrain replacements for RSL-RL's distributions of actions of the same name."""


def resolve_model(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what RSL-RL's `resolve_class` takes: the class as class_name, and its options.

    Options that a network or its distribution does not take are left out. A class that does not exist raises a
    ValueError, an ImportError or an AttributeError.
    """
    name = options["class_name"]
    make: Any = OWN_MODELS.get(name) or resolve_callable(name)
    makers = [kind.__init__ for kind in make.__mro__] if inspect.isclass(make) else [make]
    taken = {name for maker in makers for name in inspect.signature(maker).parameters}
    kept = {key: value for key, value in options.items() if key not in _OF_SOME or key in taken}
    if (distribution := kept["distribution_cfg"]) is not None:
        named = distribution["class_name"]
        found = OWN_DISTRIBUTIONS.get(named) or resolve_callable(named)
        takes = inspect.signature(found).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
            distribution = {key: value for key, value in distribution.items() if key in takes}
        kept["distribution_cfg"] = {**distribution, "class_name": found}
    return {**kept, "class_name": make}


def list_groups(network: MLPModel) -> list[str]:
    """Return the observation groups that a network reads."""
    return [*network.obs_groups, *getattr(network, "obs_groups_2d", ())]


def pack(observations: Mapping[str, torch.Tensor]) -> TensorDict:
    """Return observations by group as a TensorDict."""
    first = next(iter(observations.values()))
    return TensorDict(dict(observations), batch_size=[first.shape[0]], device=first.device)  # pyright: ignore[reportArgumentType]
