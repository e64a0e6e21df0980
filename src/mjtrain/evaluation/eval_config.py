"""The environment of a run, configured for evaluation: without noise, pushes and randomization."""

from dataclasses import replace
from typing import TYPE_CHECKING

from mjtrain.config import EnvConfig

if TYPE_CHECKING:
    import torch

    from mjtrain.env.env import Env


def to_eval_config(
    env: EnvConfig, *, noise: bool = False, pushes: bool = False, randomization: bool = False
) -> EnvConfig:
    """Remove from an environment what is there to make training robust.

    Starts stay random, because events of mode reset draw them. Delays stay, because the policy was trained with them.
    Curriculum levels are spread over their whole range and do not change. Commands get their `evaluated_params`.
    Pushes are the events of mode interval, and randomization those of mode startup.
    """
    off = {mode for mode, kept in (("interval", pushes), ("startup", randomization)) if not kept}
    return replace(
        env,
        observation_noise=env.observation_noise and noise,
        events={name: term for name, term in env.events.items() if term.mode not in off},
        commands={
            name: replace(term, params={**term.params, **term.evaluated_params}) for name, term in env.commands.items()
        },
        curriculum={
            name: replace(term, func=keep_level, params={}, initial=term.bounds)
            for name, term in env.curriculum.items()
        },
    )


def keep_level(env: "Env", level: "torch.Tensor") -> "torch.Tensor":  # noqa: ARG001
    """Return the level unchanged."""
    return level
