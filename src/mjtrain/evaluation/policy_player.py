"""Environments and the policy that acts in them."""

from typing import Any

import torch

from mjtrain.env.base import TaskEnv
from mjtrain.learner import Policy


class PolicyPlayer:
    """Steps environments with a policy."""

    def __init__(self, env: TaskEnv, policy: Policy | None) -> None:
        """Take both.

        Args:
            env: The environments.
            policy: What acts in them; None where a subclass says by itself what to do.
        """
        self.env: Any = env
        """The environments: an `Env`, or a `ForeignEnv` where someone else wrote them."""
        self.policy = policy
        """The network; None without a trained policy."""

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
