"""Gymnasium's registry of environments."""

import gymnasium

from mjtrain.catalog import list_tasks

NAMESPACE = "mjtrain"
"""What ids begin with: mjtrain/Cartpole-Balance."""


def register_tasks() -> None:
    """Register every task under its name; none is imported."""
    for entry in list_tasks():
        gymnasium.register(
            f"{NAMESPACE}/{entry.name}", vector_entry_point="mjtrain.api:make_vec", kwargs={"task": entry.name}
        )
