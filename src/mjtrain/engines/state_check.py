"""Whether a state fits an engine, found out before anything is changed."""

from collections.abc import Mapping
from typing import Any

from mjtrain.engines.layout import Layout


def check_engine_state(
    state: Mapping[str, Any], kind: str, tensors: Mapping[str, Any], layout: Layout, num_envs: int
) -> None:
    """Compare a state with the engine that is to take it; changes nothing.

    Args:
        state: What the `state_dict` of an engine returned.
        kind: Name of this engine.
        tensors: Its own state by name, anything with a shape.
        layout: Its layout.
        num_envs: Its number of worlds.

    Raises:
        ValueError: The state is of another kind of engine, of another model or of another number of worlds.
    """
    if state.get("engine") != kind:
        raise ValueError(f"the state is of engine {state.get('engine')}, not of {kind}")
    theirs = {name: tuple(values.shape) for name, values in state["rows"].items()}
    ours = {name: tuple(values.shape) for name, values in tensors.items()}
    for name, values in state["model"].items():
        theirs[name] = tuple(values.shape)
        if name in layout.nominal:
            ours[name] = (num_envs, *layout.nominal[name].shape)
    if "sensordata" in state:
        theirs["sensordata"] = tuple(state["sensordata"].shape)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise ValueError(
                f"the state is of another model or number of worlds: {name} has shape {theirs.get(name)} in the state "
                f"and {ours.get(name)} here"
            )
