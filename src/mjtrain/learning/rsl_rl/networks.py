"""Networks by the class names that configs use."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.utils import resolve_callable

from mjtrain.learning.rsl_rl.cnn_model import CnnModel
from mjtrain.learning.rsl_rl.distillation import Distillation
from mjtrain.learning.rsl_rl.gaussian import Gaussian

OWN_MODELS: dict[str, Callable[..., Any]] = {"CNNModel": CnnModel}
"""mjtrain replacements for the RSL-RL classes of the same name."""

OWN_DISTRIBUTIONS: dict[str, Callable[..., Any]] = {"GaussianDistribution": Gaussian}
"""Likewise, for distributions of actions."""

_OF_SOME = ("cnn_cfg", "rnn_type", "rnn_hidden_dim", "rnn_num_layers")
"""Options that only some classes take."""


def resolve_model(options: Mapping[str, Any]) -> dict[str, Any]:
    """Find the class of a network and leave out the options that it does not take.

    Returns:
        What RSL-RL's `resolve_class` takes: the class as class_name, and its options.

    Raises:
        ValueError: There is no such class; also ImportError and AttributeError.
    """
    name = options["class_name"]
    make: Any = OWN_MODELS.get(name) or resolve_callable(name)
    taken = _parameters(make)
    kept = {key: value for key, value in options.items() if key not in _OF_SOME or key in taken}
    if kept["distribution_cfg"] is not None:
        named = kept["distribution_cfg"]["class_name"]
        kept["distribution_cfg"] = {**kept["distribution_cfg"], "class_name": OWN_DISTRIBUTIONS.get(named, named)}
    return {**kept, "class_name": make}


def _parameters(make: Any) -> set[str]:
    """Return the names of the parameters of a class, those of the classes it inherits from included."""
    functions = [kind.__init__ for kind in make.__mro__] if inspect.isclass(make) else [make]
    return {name for function in functions for name in inspect.signature(function).parameters}


def list_networks(algorithm: PPO | Distillation) -> dict[str, MLPModel]:
    """Return the networks of an algorithm by name, as they are without a compiler."""
    if isinstance(algorithm, Distillation):
        return {"actor": algorithm._raw_student, "teacher": algorithm._raw_teacher}
    return {"actor": algorithm._raw_actor, "critic": algorithm._raw_critic}
