"""The same search as the configuration of a W&B sweep, whose agents then start `train`."""

from pathlib import Path
from typing import Any

import yaml

from mjtrain.runtime.errors import RequestError
from mjtrain.tools.sweep.plan import REDUCTION_FACTOR, SweepPlan
from mjtrain.tools.sweep.space import Parameter

METHODS = {"tpe": "bayes", "random": "random", "grid": "grid"}  # what W&B calls samplers
DISTRIBUTIONS = {"log": "log_uniform_values", "uniform": "uniform", "int": "int_uniform"}  # and kinds of parameters


def write_wandb_sweep(plan: SweepPlan, path: Path) -> None:
    """Write a new file for `wandb sweep`, whose agents pass settings as `mjtrain.cli.env_flags` reads them."""
    content = _describe_sweep(plan)
    try:
        with path.open("x") as file:
            yaml.safe_dump(content, file, sort_keys=False, width=120)
    except FileExistsError as error:
        raise RequestError(f"--wandb {path}: already exists; remove it or choose another name") from error
    except OSError as error:
        raise RequestError(f"--wandb {path}: cannot be written ({error.strerror})") from error


def _describe_sweep(plan: SweepPlan) -> dict[str, Any]:
    options = plan.options
    if options.seeds_per_trial > 1:
        raise RequestError(f"--seeds-per-trial {options.seeds_per_trial}: a run of W&B's agent has one seed")
    if options.pruner == "median":
        raise RequestError("--pruner median: W&B has asha (its hyperband) and none")
    arguments = [options.task, *options.train_flags, *plan.added_flags]
    content: dict[str, Any] = {
        "program": "train",
        "command": ["${env}", "${program}", *arguments, "${args_no_boolean_flags}"],
        "method": METHODS[options.sampler],
        "metric": {"name": plan.metric, "goal": plan.direction},
        "run_cap": options.trials,
        "parameters": {parameter.name: _describe(parameter) for parameter in options.space},
    }
    if options.pruner == "asha":  # W&B counts how often the metric was reported
        first = max(1, plan.num_reports * plan.min_iterations // plan.max_iterations)
        content["early_terminate"] = {"type": "hyperband", "min_iter": first, "eta": REDUCTION_FACTOR}
    return content


def _describe(parameter: Parameter) -> dict[str, Any]:
    if parameter.kind == "flag":
        return {"values": [False, True]}
    if parameter.choices:
        return {"values": list(parameter.choices)}
    return {"distribution": DISTRIBUTIONS[parameter.kind], "min": parameter.low, "max": parameter.high}
