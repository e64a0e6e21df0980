"""The options of the command sweep."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mjtrain.config.limits import AT_LEAST_0, AT_LEAST_1


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Hyper-parameter search."""

    param: tuple[tuple[str, ...], ...] = ()
    """Parameters of the search. The command declares it again, with flags as tyro reads them."""

    space: str | None = None
    """YAML file with more of them, each a line such as agent.algorithm.learning-rate: log 1e-4 1e-2. Left out: none."""

    trials: Annotated[int, AT_LEAST_1] = 20
    """Trials in total. Raise it to extend a finished sweep."""

    metric: str | None = None
    """Metric of metrics.jsonl that is searched for; its last value counts. Default: eval/return, with evaluations; in
    external environments mean_reward."""

    direction: Literal["maximize", "minimize"] | None = None
    """Whether larger or smaller values are better. Default: larger, except for losses, errors and estimates."""

    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """How settings are suggested. tpe: from what earlier trials say. grid: all combinations, of int, choice and
    flag."""

    pruner: Literal["asha", "median", "none"] = "asha"
    """Which trials end early. asha: each pauses after --min-iterations, and only the best quarter continues, from their
    checkpoints, when that is known. median: those below the median of the others, at any iteration after
    --min-iterations."""

    min_iterations: int | None = None
    """Iterations before which no trial is pruned. Default: a quarter of a run's."""

    seeds_per_trial: Annotated[int, AT_LEAST_1] = 1
    """Runs of a trial, with different seeds, one after the other; the value is their mean. Trials are pruned in the
    first one."""

    jobs: Annotated[int | None, AT_LEAST_1] = None
    """Trials side by side. Default: one per GPU; without GPUs, what the cores allow, at most 8."""

    cores_per_trial: Annotated[int | None, AT_LEAST_1] = None
    """CPU cores of a trial, which no other trial uses. Default: an equal part of the usable cores."""

    gpus_per_trial: Annotated[int | None, AT_LEAST_0] = None
    """GPUs of a trial, one rank each; 0: the CPU. Default: 1 if a GPU is visible, else 0."""

    start_timeout_s: float | None = None
    """Seconds from the start of a run to its first iteration after which a trial counts as hanging, and fails. Default:
    1800, or --stall-timeout-s if that is more."""

    stall_timeout_s: float = 1800.0
    """Seconds from one iteration to the next after which a trial counts as hanging, and fails."""

    shared: bool = False
    """Other processes may carry out the same sweep at the same time, on this host and on others that see the same
    --sweep-dir; each is the same command with --shared."""

    wandb: str | None = None
    """Start nothing, but write a file for `wandb sweep` that searches the same; its agents start train. Left out: the
    sweep is carried out here."""

    sweep_dir: str | None = None
    """Folder of the sweep. If it holds the same sweep, that sweep is resumed. Default: sweeps/{task}."""
