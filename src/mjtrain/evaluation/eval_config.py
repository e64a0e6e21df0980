"""The environment of a run, configured for evaluation, and names of what is measured; imports nothing heavy."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from mjtrain.config import AgentConfig, AnyEnvConfig, CurriculumTerm, EnvConfig

if TYPE_CHECKING:
    import torch

    from mjtrain.env.env import Env

BROKEN = "not_finite"
"""Cause of an episode that ended because its state was not finite."""

UNFINISHED = "unfinished"
"""Cause of an episode that no termination term ended within its time."""


def to_eval_config(
    env: EnvConfig, *, noise: bool = False, pushes: bool = False, randomization: bool = False
) -> EnvConfig:
    """Remove from an environment what makes training robust, such as pushes.

    Starts stay random, because events of mode reset draw them. Delays stay, because the policy was trained with them.
    Curriculum levels are spread over their whole range and do not change. On a side without a bound, the range ends at
    that of the initial levels. Commands get their `evaluated_params`.
    Patches of ground round a level down, so levels are drawn up to the one above the highest, for the highest to occur.
    Pushes are the events of mode interval, and randomization those of mode startup.
    """
    from mjtrain.mdp.events import spawn_on_patch

    whole = {term.params.get("curriculum") for term in env.events.values() if term.func is spawn_on_patch}

    def spread(name: str, term: CurriculumTerm) -> CurriculumTerm:
        pairs = zip(term.bounds, term.initial, strict=True)
        low, high = (bound if math.isfinite(bound) else initial for bound, initial in pairs)
        levels = (low, high // 1 + 1) if name in whole else (low, high)
        pairs = zip(term.bounds, levels, strict=True)
        bounds = tuple(level if math.isfinite(bound) else bound for bound, level in pairs)  # for other initial levels
        return replace(term, func=keep_level, params={}, initial=levels, bounds=bounds)

    off = {mode for mode, kept in (("interval", pushes), ("startup", randomization)) if not kept}
    return replace(
        env,
        observation_noise=env.observation_noise and noise,
        events={name: term for name, term in env.events.items() if term.mode not in off},
        commands={
            name: replace(term, params={**term.params, **term.evaluated_params}) for name, term in env.commands.items()
        },
        curriculum={name: spread(name, term) for name, term in env.curriculum.items()},
    )


def keep_level(env: "Env", level: "torch.Tensor") -> "torch.Tensor":  # noqa: ARG001
    """Return the level unchanged."""
    return level


def list_quantities(env: AnyEnvConfig, agent: AgentConfig) -> tuple[str, ...]:
    """Return the names of what an episode is measured by, as in the table of `play`."""
    supervised = agent.supervised_group
    return (
        "return",
        "length",
        *(f"reward/{name}" for name in env.rewards),
        *(f"error/{command}/{error}" for command, term in env.commands.items() for error in term.errors),
        *(f"estimate/{name}" for name in env.observations.get(supervised, {})),
        *(f"success/{name}" for name in env.successes),
        *(f"termination/{name}" for name in (*env.terminations, BROKEN, UNFINISHED)),
    )


def name_causes(terminations: Iterable[str], fired: Iterable[bool]) -> tuple[str, ...]:
    """Return the termination terms that ended an episode; BROKEN if no term fired."""
    return tuple(name for name, said in zip(terminations, fired, strict=True) if said) or (BROKEN,)
