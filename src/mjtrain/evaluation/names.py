"""Names of what an evaluation measures; imports nothing heavy."""

from collections.abc import Iterable

from mjtrain.config import AgentConfig, AnyEnvConfig

BROKEN = "not_finite"
"""Cause of an episode that ended because its state was not finite."""

UNFINISHED = "unfinished"
"""Cause of an episode that no termination term ended within its time."""


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
    """Return the termination terms that ended an episode; BROKEN if none of them fired."""
    return tuple(name for name, said in zip(terminations, fired, strict=True) if said) or (BROKEN,)
