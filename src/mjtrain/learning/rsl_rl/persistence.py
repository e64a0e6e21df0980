"""What a checkpoint holds of RSL-RL: networks, plain attributes of algorithms, and the memory of recurrent networks."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.extensions import RandomNetworkDistillation
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalDiscountedVariationNormalization

from mjtrain.config.limits import show
from mjtrain.learning.persistence import find_other_shape
from mjtrain.learning.rsl_rl.distillation import Distillation
from mjtrain.learning.rsl_rl.mini_batches import keep_settings
from mjtrain.learning.rsl_rl.ppo import Ppo
from mjtrain.runtime.errors import RequestError


def weights_of(algorithm: PPO | Distillation, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of a checkpoint from which another run starts: all networks that learn.

    What a distillation has taught and what was shared have no critic; then it is the actor alone.
    """
    if "actor_state_dict" not in content and "critic_state_dict" in content:
        return ("critic",)
    alone = isinstance(algorithm, Distillation) or "critic_state_dict" not in content
    return ("actor",) if alone else ("actor", "critic")


def load_networks(
    algorithm: PPO | Distillation, content: dict[str, Any], path: Path, networks: Iterable[str], *, optimizer: bool
) -> None:
    """Load parts of a checkpoint into an algorithm.

    Args:
        content: What a checkpoint holds, on the CPU: parameters are copied to their device, and the optimiser keeps
            its step counters on the CPU, where reading them does not wait for a GPU.
        path: Where it comes from, for messages.

    Raises:
        RequestError: It does not fit; the message names a tensor that differs.
    """
    mine, rnd = algorithm.save(), _rnd_of(algorithm) if optimizer else None
    if rnd is not None and "rnd_state_dict" not in content:
        raise RequestError(
            f"checkpoint {path}: was trained without --learner-config algorithm.rnd_cfg; leave it out, or begin a new "
            "run"
        )
    for part in [*networks, *(["rnd"] if rnd is not None else [])]:
        key = f"{part}_state_dict"
        if key not in content:
            raise RequestError(f"checkpoint {path}: has no {part}; it is not a checkpoint of a training")
        if (other := find_other_shape(mine[key], content[key])) is not None:
            raise RequestError(f"checkpoint {path}: does not fit the networks of this run: {part} {other}")
    if optimizer and "optimizer_state_dict" in content:
        if not isinstance(content["optimizer_state_dict"], dict):
            there = show(content["optimizer_state_dict"])
            raise RequestError(f"checkpoint {path}: is damaged: optimizer_state_dict is {there}, not a dict")
        keep_settings(content["optimizer_state_dict"], algorithm.optimizer)
    parts = dict.fromkeys(networks, True) | {"optimizer": optimizer, "rnd": optimizer}
    try:
        if rnd is not None:  # its step size is fixed, so that of the command
            content["rnd_optimizer_state_dict"]["param_groups"] = rnd.optimizer.state_dict()["param_groups"]
        algorithm.load(content, parts, strict=True)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise  # no fault of the file
    except (RuntimeError, KeyError, ValueError) as error:
        reason = next(iter(str(error).splitlines()[1:]), str(error)).strip()  # torch lists problems below a heading
        raise RequestError(f"checkpoint {path}: does not fit the networks of this run ({reason})") from error


def get_counters(algorithm: PPO | Distillation) -> dict[str, int]:
    """Return counts that the future of all ranks depends on: updates of a distillation or of a critic, steps of an RND.

    The weight of the rewards of random network distillation may follow a schedule of env steps.
    """
    if isinstance(algorithm, Distillation):
        return {"num_updates": algorithm.num_updates}
    rnd, left = _rnd_of(algorithm), algorithm.critic_updates_left if isinstance(algorithm, Ppo) else 0
    counters = {} if rnd is None else {"rnd_env_steps": rnd.update_counter}
    return counters | ({"critic_updates_left": left} if left else {})


def set_counters(algorithm: PPO | Distillation, counters: dict[str, int]) -> None:
    """Restore what `get_counters` returned; what is missing, as in files of earlier versions, starts at zero."""
    if isinstance(algorithm, Distillation):
        algorithm.num_updates = counters.get("num_updates", 0)
    if isinstance(algorithm, Ppo):
        algorithm.critic_updates_left = counters.get("critic_updates_left", 0)
    rnd = _rnd_of(algorithm)
    if rnd is not None:
        rnd.update_counter = counters.get("rnd_env_steps", 0)


def find_discounted_rewards(algorithm: PPO | Distillation) -> Any:
    """Return the object whose `avg` is the discounted sum of each environment's RND rewards.

    The scale of these rewards is estimated from the sums. They have shape (num_envs,), and are None before the first
    step. Without RND, or if it does not normalise its rewards, this returns None.
    """
    normaliser = getattr(_rnd_of(algorithm), "reward_normalizer", None)
    return normaliser.disc_avg if isinstance(normaliser, EmpiricalDiscountedVariationNormalization) else None


def _rnd_of(algorithm: Any) -> RandomNetworkDistillation | None:
    return getattr(algorithm, "rnd", None)


def get_memory(networks: Mapping[str, MLPModel]) -> dict[str, list[torch.Tensor]]:
    """Return the hidden states of networks by name: of a GRU one tensor, of an LSTM two; nothing for other networks.

    Each is of shape (num_layers, num_envs, hidden_dim).
    """
    states = {name: network.get_hidden_state() for name, network in networks.items()}
    return {
        name: list(state) if isinstance(state, tuple) else [state]
        for name, state in states.items()
        if state is not None
    }


def set_memory(networks: Mapping[str, MLPModel], memory: Mapping[str, list[torch.Tensor]], device: str) -> None:
    """Restore what `get_memory` returned, for networks of the same kind and the same number of environments.

    A network that is not in it forgets what it remembers.
    """
    for name, network in networks.items():
        state: Any = tuple(tensor.to(device, copy=True) for tensor in memory.get(name, ()))
        network.reset(hidden_state=state[0] if len(state) == 1 else state or None)
