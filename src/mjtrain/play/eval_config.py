"""The environment of a training, calmed down for looking at a policy."""

from dataclasses import replace
from typing import TYPE_CHECKING

from mjtrain.config import EnvConfig

if TYPE_CHECKING:
    import torch

    from mjtrain.env.env import Env


def to_eval_config(
    env: EnvConfig, *, noise: bool = False, pushes: bool = False, randomization: bool = False
) -> EnvConfig:
    """Take out of an environment what makes training robust and looking hard.

    Starts stay random, as they are drawn by events of mode reset; delays stay, as the policy was made for them. Levels
    of a curriculum are spread over their whole range and stay where they are.

    Args:
        env: As it was trained.
        noise: Keep the noise of observations.
        pushes: Keep the events of mode interval.
        randomization: Keep the events of mode startup, which make every world's robot a little different.
    """
    off = {mode for mode, kept in (("interval", pushes), ("startup", randomization)) if not kept}
    return replace(
        env,
        observation_noise=env.observation_noise and noise,
        events={name: term for name, term in env.events.items() if term.mode not in off},
        curriculum={
            name: replace(term, func=keep_level, params={}, initial=term.bounds)
            for name, term in env.curriculum.items()
        },
    )


def keep_level(env: "Env", level: "torch.Tensor") -> "torch.Tensor":  # noqa: ARG001
    """Leave a curriculum where it is."""
    return level
