"""Environments and the policy that acts in them, with what the policy estimates about the worlds."""

from typing import Any, Self

import torch

from mjtrain.config import ObservationTerm
from mjtrain.env.base import TaskEnv
from mjtrain.env.env import Env
from mjtrain.learning.learner import Policy


class PolicyPlayer:
    """Steps environments with a policy; as a context manager, it closes them at the end."""

    def __init__(self, env: TaskEnv, policy: Policy | None) -> None:
        self.env: Any = env
        """The environments: an `Env`, or a `ForeignEnv` where someone else wrote them."""
        self.policy = policy
        """The network that acts in them; None without a trained policy, where a subclass says by itself what to do."""

    @property
    def estimated_group(self) -> str | None:
        """Observation group that the policy tells from images; None if there is none."""
        return None if self.policy is None else self.policy.estimated_group

    def act(self) -> torch.Tensor:
        """Return the actions of the policy for the current observations. Shape (num_envs, num_actions)."""
        assert self.policy is not None
        return self.policy(self.env.observe())

    def step(self) -> torch.Tensor:
        """Do one env step with the policy; return the worlds whose episode ended. Boolean, shape (num_envs,)."""
        _, _, terminated, truncated = self.env.step(self.act())
        done = terminated | truncated
        self.forget(done)
        return done

    def forget(self, worlds: torch.Tensor) -> None:
        """Reset the memory of a recurrent policy in the masked worlds. Boolean, shape (num_envs,)."""
        if self.policy is not None:
            self.policy.reset(worlds)

    def close(self) -> None:
        """Release the environment."""
        self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Estimates:
    """Splits the estimate of an observation group into its terms, and compares it with the group itself."""

    def __init__(self, env: Env, policy: Policy) -> None:
        assert policy.estimated_group is not None
        self._policy = policy
        self._group = policy.estimated_group
        self.terms: dict[str, ObservationTerm] = env.config.observations[self._group]
        """Terms of the group, by name in their order."""
        self._widths = list(env.observation_widths(self._group).values())

    def read(self) -> dict[str, torch.Tensor]:
        """Return what the policy's last observations tell of each term, unscaled. Shape (num_envs, size) each."""
        return self._split(self._policy.estimate())

    def errors(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the errors of the estimates, see `ObservationTerm.estimate_error`. Shape (num_envs, num_terms)."""
        true = self._split(observations[self._group])
        return torch.stack(
            [_compare(self.terms[name], estimated, true[name]) for name, estimated in self.read().items()], dim=1
        )

    def _split(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        columns = values.split(self._widths, dim=1)
        return {name: part / term.scale for (name, term), part in zip(self.terms.items(), columns, strict=True)}


def _compare(term: ObservationTerm, estimated: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    return (estimated - true).norm(dim=1) if term.estimate_error is None else term.estimate_error(estimated, true)
