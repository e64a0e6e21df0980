"""Flags as an agent of a W&B sweep passes them: one word for each setting."""

import os
from collections.abc import Mapping, Sequence


def expand_agent_flags(args: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Split what an agent of a W&B sweep has joined: several flags with one value, and several values of a flag.

    `--agent.actor.hidden-dims,agent.critic.hidden-dims=64 64` becomes two flags with two values each. The agent makes
    such words of the configuration that `sweep --wandb` writes.

    Args:
        environ: Environment variables; without WANDB_SWEEP_ID no agent has started this process, and all stays.
    """
    if "WANDB_SWEEP_ID" not in environ:
        return list(args)
    expanded = []
    for arg in args:
        names, equals, value = arg.partition("=")
        if not arg.startswith("--") or ("," not in names and " " not in value):
            expanded.append(arg)
            continue
        for name in names.removeprefix("--").split(","):
            expanded += [f"--{name}", *(value.split() if equals else ())]
    return expanded
