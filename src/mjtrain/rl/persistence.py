"""How the networks of a checkpoint get back into the algorithm."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rsl_rl.algorithms import PPO

from mjtrain.errors import RequestError
from mjtrain.rl.distillation import Distillation
from mjtrain.rl.fast_steps import keep_fused


def weights_of(algorithm: PPO | Distillation, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of a checkpoint from which another run starts: all networks that learn.

    What a distillation has taught has no critic; then it is the actor alone.
    """
    alone = isinstance(algorithm, Distillation) or "teacher_state_dict" in content
    return ("actor",) if alone else ("actor", "critic")


def load_networks(
    algorithm: PPO | Distillation, content: dict[str, Any], path: Path, networks: Iterable[str], *, optimizer: bool
) -> None:
    """Load parts of a checkpoint into an algorithm.

    Args:
        algorithm: Takes them.
        content: What a checkpoint holds, on the CPU: parameters are copied to their device, and the optimiser keeps
            its step counters on the CPU, where reading them does not wait for a GPU.
        path: Where it comes from, for messages.
        networks: Names of the networks to load.
        optimizer: Whether to load the optimiser too.

    Raises:
        RequestError: It does not fit; the message names the first tensor that differs.
    """
    mine = algorithm.save()
    for part in networks:
        key = f"{part}_state_dict"
        if key not in content:
            raise RequestError(f"checkpoint {path}: has no {part}; it is no checkpoint of a training")
        theirs = {name: tuple(value.shape) for name, value in content[key].items()}
        ours = {name: tuple(value.shape) for name, value in mine[key].items()}
        for name in [*ours, *theirs]:
            if theirs.get(name) != ours.get(name):
                raise RequestError(
                    f"checkpoint {path}: does not fit the networks of this run: {part} {name} has shape "
                    f"{theirs.get(name)} in the checkpoint and {ours.get(name)} here"
                )
    if optimizer and "optimizer_state_dict" in content:
        keep_fused(content["optimizer_state_dict"], algorithm.optimizer)
    parts = dict.fromkeys(networks, True) | {"optimizer": optimizer, "rnd": optimizer}
    try:
        algorithm.load(content, parts, strict=True)
    except (RuntimeError, KeyError, ValueError) as error:
        raise RequestError(f"checkpoint {path}: does not fit the networks of this run ({error})") from error
