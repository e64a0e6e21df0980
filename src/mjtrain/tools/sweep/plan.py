"""A sweep, checked before anything is written or started, with its slots on this machine; or as a file for W&B."""

import os
import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from mjtrain.config import EnvConfig, LaunchConfig, TrainConfig
from mjtrain.config.limits import find_option_problems
from mjtrain.env.catalog import folder_name
from mjtrain.launcher.planning.placement import visible_gpus
from mjtrain.runs.storage.store import hide_query
from mjtrain.runs.teacher import AUTO, name_teacher
from mjtrain.runtime.errors import RequestError, count, refuse
from mjtrain.runtime.machine import available_memory, count_cores, count_gpus, format_bytes
from mjtrain.runtime.rank import check_seed
from mjtrain.tools import name_flags
from mjtrain.tools.sweep.options import SweepOptions
from mjtrain.tools.sweep.space import Parameter, count_grid, list_corners, to_words
from mjtrain.training.metric_rules import find_metric_problems, is_smaller_better
from mjtrain.training.request import TrainRequest, resolve_training

ReadTrain = Callable[[Sequence[str]], tuple[TrainConfig, LaunchConfig]]  # raises a RequestError where flags are wrong
JOURNAL, SUMMARY, PICTURE = "study.jsonl", "sweep.json", "sweep.png"  # in a sweep's folder

DECIDED = {
    "dry-run": "is for train alone",
    "gpu-ids": "is decided by --gpus-per-trial, and CUDA_VISIBLE_DEVICES says which",
    "hostnames": "cannot be given; the trials of a sweep run on this host",
    "log-root": "is decided by --sweep-dir",
    "run-name": "is decided by the sweep",
    "resume": "is decided by the sweep, which resumes its trials itself",
    "checkpoint-url": "cannot be given, as each run needs its own URL",
    "requeue-on-signal": "cannot be given; start the same sweep again to resume it",
}
"""Flags of `train` that a sweep's command cannot give, and why."""

DEFAULTS = {"logger": "none", "keep-checkpoints": "1"}  # flags that all trials get unless the command gives them
EVALUATIONS = 20  # of a run where the metric is one of evaluations and --eval-interval is not given
START_TIMEOUT_S = 1800.0  # for a run's first iteration, or the time that it has for any other if that is more
REDUCTION_FACTOR = 4  # with asha, one of this many trials continues from each rung; iterations between them grow by it
_MOST_ON_A_GRID = 100_000  # combinations; Optuna lists all of them for each suggestion, which takes 0.1 s for so many
MAX_JOBS_ON_CPU = 8  # without GPUs, unless the user chooses: a search learns little from trials begun too early
# What W&B calls samplers, and kinds of parameters.
_WANDB_METHODS = {"tpe": "bayes", "random": "random", "grid": "grid"}
_WANDB_DISTRIBUTIONS = {"log": "log_uniform_values", "uniform": "uniform", "int": "int_uniform"}
_TEACHER_FLAGS = ("teacher", "agent.algorithm.teacher-run")  # the first one counts if both are given
SEED_STEP = 1000  # difference between the seeds of a trial's runs; ranks use those in between


@dataclass(frozen=True, kw_only=True)
class SweepRequest(SweepOptions):
    """What the command asks for."""

    task: str
    parameters: tuple[Parameter, ...]  # of --param and --space
    train_flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where one trial at a time runs; no two slots share a core or a GPU."""

    cores: tuple[int, ...]  # by the kernel's numbers
    gpus: tuple[str, ...]  # entries for CUDA_VISIBLE_DEVICES; empty for the CPU


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A sweep that can be carried out on this machine, with what its options leave open."""

    options: SweepRequest  # a grid has no more trials than combinations
    folder: Path  # may not exist yet
    metric: str
    direction: Literal["maximize", "minimize"]
    slots: tuple[Slot, ...]
    max_iterations: int
    min_iterations: int  # no trial is pruned before
    start_timeout_s: float  # until the first iteration of a run
    stop_grace_s: float
    added_flags: tuple[str, ...]  # flags of `train` for the metric and the folder, alike for all trials
    teacher: str | None = None  # run of the trials that would look for one, which is not below the sweep's folder
    seed: int  # of the first run of each trial, and of the suggestions
    num_reports: int  # how often a run reports the metric

    @property
    def sign(self) -> float:
        """What makes larger values of the metric the better ones, as a factor."""
        return 1.0 if self.direction == "maximize" else -1.0

    @property
    def log_root(self) -> Path:
        """Folder below which the runs live."""
        return self.folder / "runs"

    def identity(self) -> dict[str, Any]:
        """Return what must not change when the sweep is started again, by the flags that say it."""
        options = self.options
        return {
            "task": options.task,
            "--param": [parameter.describe() for parameter in options.parameters],
            "--metric": self.metric,
            "--direction": self.direction,
            "--seeds-per-trial": options.seeds_per_trial,
            "flags of train": list(options.train_flags),
        }

    def train_arguments(self, params: dict[str, Any], seed_index: int, run_name: str) -> list[str]:
        """Return the arguments of `train` for a run of a trial."""
        own = ["--seed", str(self.seed + SEED_STEP * seed_index), "--log-root", str(self.log_root)]
        own += ["--run-name", run_name, "--resume", "auto", *_gpu_flags(self.slots[0])]
        teacher = [] if self.teacher is None or _names_teacher(self.options, params) else ["--teacher", self.teacher]
        return [*self._shared_arguments(params), *self.added_flags, *teacher, *own]

    def best_command(self, params: dict[str, Any]) -> str:
        """Return a command line that trains with the settings of a trial."""
        slot = self.slots[0]
        where = [] if len(slot.gpus) == 1 else _gpu_flags(slot)  # one GPU is the default
        return shlex.join(["train", *self._shared_arguments(params), *where])

    def _shared_arguments(self, params: dict[str, Any]) -> list[str]:
        return [self.options.task, *self.options.train_flags, *to_words(self.options.parameters, params)]


def resolve_sweep(options: SweepRequest, read: ReadTrain) -> SweepPlan:
    """Check a sweep against the task, the flags of `train` and this machine; writes nothing but fetched motions."""
    _check_options(options)
    if options.sampler == "grid":
        if (number := count_grid(options.parameters)) > _MOST_ON_A_GRID:
            raise RequestError(f"--sampler grid: {number:,} combinations; give fewer values, or --sampler random")
        options = replace(options, trials=min(options.trials, number))
    gpus = () if options.gpus_per_trial == 0 else visible_gpus(os.environ, count_gpus())
    slots = resolve_slots(options, _choose_cores(), gpus)
    fixed, device = [options.task, *options.train_flags], _gpu_flags(slots[0])
    read(fixed)  # an error there is not the fault of a parameter
    trials = list_corners(options.parameters)
    corners = [read([*fixed, *to_words(options.parameters, trial), *device]) for trial in trials]
    teacher = _find_teacher(
        [config for trial, (config, _) in zip(trials, corners, strict=True) if not _names_teacher(options, trial)]
    )
    requests = [resolve_training(*corner) for corner in corners[:2]]
    config, launch = requests[0].config, requests[0].launch
    check_seed("--seed", launch.seed, SEED_STEP * options.seeds_per_trial)
    if options.wandb is None:  # whose agents run on other machines
        _check_memory(requests, len(slots))
    metric = options.metric or ("eval/return" if isinstance(config.env, EnvConfig) else "mean_reward")
    added, config = _add_flags(options, config, metric)
    refuse(find_metric_problems(f"--metric {metric}", metric, config))
    given = [config.run.max_iterations for config, _ in corners if config.run.total_env_steps is None]
    max_iterations = max([*given, *(request.config.run.max_iterations for request in requests)])
    return SweepPlan(
        options=options,
        folder=Path(options.sweep_dir or Path("sweeps") / folder_name(options.task)).absolute(),
        metric=metric,
        direction=options.direction or ("minimize" if is_smaller_better(metric) else "maximize"),
        added_flags=tuple(added),
        teacher=teacher,
        slots=slots,
        max_iterations=max_iterations,
        min_iterations=_find_min_iterations(options, max_iterations),
        num_reports=config.run.max_iterations // (config.run.eval_interval if metric.startswith("eval/") else 1),
        seed=launch.seed,
        start_timeout_s=options.start_timeout_s or max(START_TIMEOUT_S, options.stall_timeout_s),
        stop_grace_s=launch.stop_grace_s,
    )


def _names_teacher(options: SweepRequest, params: dict[str, Any]) -> bool:
    """Return whether the settings of a trial name its teacher, which the sweep then does not look for."""
    fixed = name_flags(options.train_flags)
    given = {flag: params[parameter.name] for parameter in options.parameters for flag in parameter.flags}
    counts = next((flag for flag in _TEACHER_FLAGS if flag in given or flag in fixed), None)
    return counts in given and given[counts] != AUTO


def _find_teacher(configs: Sequence[TrainConfig]) -> str | None:
    """Return the run that trials learn from whose settings do not name it; None if they do not look for one."""
    found = {tuple(name_teacher(config, "a sweep")) for config in configs} or {()}
    if len(found) > 1:
        words = " and ".join(sorted(" ".join(flags) or "no teacher" for flags in found))
        raise RequestError(f"--param: trials need {words}, and a sweep finds one for all; start a sweep for each")
    (flags,) = found
    return flags[-1] if flags else None


def resolve_slots(options: SweepRequest, cores: Sequence[int], gpus: Sequence[str]) -> tuple[Slot, ...]:
    """Divide this machine."""
    num_gpus = min(1, len(gpus)) if options.gpus_per_trial is None else options.gpus_per_trial
    jobs, num_cores = options.jobs, options.cores_per_trial
    if num_gpus > len(gpus):
        there = {0: "no GPU is", 1: "1 GPU is"}.get(len(gpus), f"{len(gpus)} GPUs are")
        raise RequestError(f"--gpus-per-trial {num_gpus}: {there} visible here; 0 trains on the CPU")
    if num_cores is not None and num_cores > len(cores):
        raise RequestError(f"--cores-per-trial {num_cores}: {count(len(cores), 'core')} can be used here")
    fitting = len(cores) // (num_cores or 1)
    if num_gpus:
        fitting = min(fitting, len(gpus) // num_gpus)
    if jobs is not None and jobs > fitting:
        have = count(len(cores), "core") + (f" and {count(len(gpus), 'GPU')}" if num_gpus else "")
        raise RequestError(f"--jobs {jobs}: {have} can run {count(fitting, 'trial')} side by side")
    number = min(jobs or (fitting if num_gpus else min(fitting, MAX_JOBS_ON_CPU)), options.trials)
    width = num_cores or len(cores) // number
    places = [(slice(at * width, (at + 1) * width), slice(at * num_gpus, (at + 1) * num_gpus)) for at in range(number)]
    return tuple(Slot(cores=tuple(cores[own]), gpus=tuple(gpus[theirs])) for own, theirs in places)


def _check_options(options: SweepRequest) -> None:
    """Refuse values that no machine could carry out, flags that the sweep decides, and what is given twice."""
    refuse(find_option_problems(options))
    for flag, value in (("--start-timeout-s", options.start_timeout_s), ("--stall-timeout-s", options.stall_timeout_s)):
        if value is not None and not value > 0:  # NaN neither
            raise RequestError(f"{flag} {value:g}: must be more than 0")
    for value in (word.partition("=")[2] if word.startswith("--") else word for word in options.train_flags):
        if (shown := hide_query(value)) != value:
            raise RequestError(
                f"-- {shown}: sweep.json records the flags of trials, and the query of a URL may be a key; give the "
                "path of a file that you have fetched"
            )
    fixed = name_flags(options.train_flags)
    for flag in fixed & DECIDED.keys():
        raise RequestError(f"-- --{flag}: {DECIDED[flag]}")
    for flag in (flag for parameter in options.parameters for flag in parameter.flags):
        if flag in DECIDED or flag == "seed":
            raise RequestError(f"--param {flag}: {DECIDED.get(flag, 'is decided by --seeds-per-trial')}")
        if flag in fixed:
            raise RequestError(f"--param {flag}: is a fixed flag after -- too; leave out one of them")


def _find_min_iterations(options: SweepRequest, max_iterations: int) -> int:
    given, flag = options.min_iterations, f"--min-iterations {options.min_iterations}"
    if given is None:
        return max(1, max_iterations // REDUCTION_FACTOR)
    if options.pruner == "none":
        raise RequestError(f"{flag}: --pruner none prunes no trial at all")
    if not 1 <= given < max_iterations:
        raise RequestError(f"{flag}: must be at least 1 and below the {max_iterations} iterations of a run")
    return given


def _gpu_flags(slot: Slot) -> list[str]:
    return ["--gpu-ids", *(map(str, range(len(slot.gpus))) if slot.gpus else ["None"])]


def _choose_cores() -> list[int]:
    """Choose this process's cores, as many as its quota of CPU time allows, and at random, as other containers may."""
    cores = sorted(os.sched_getaffinity(0))
    return sorted(random.SystemRandom().sample(cores, min(len(cores), count_cores())))


def _check_memory(requests: Sequence[TrainRequest], num_slots: int) -> None:
    """Refuse more trials side by side than there is memory for, as far as a plan knows what a run needs."""
    on_cpu = [run for run in requests if run.plan.device == "cpu"]
    needs = [run.memory.total_bytes * run.plan.world_size for run in on_cpu if run.memory]
    need, free = max(needs, default=0), available_memory()
    if need * num_slots > free:
        raise RequestError(
            f"--jobs {num_slots}: a trial needs {format_bytes(need)}, of {format_bytes(free)} that are free; "
            f"give --jobs {max(1, free // need)}"
        )


def _add_flags(options: SweepRequest, config: TrainConfig, metric: str) -> tuple[list[str], TrainConfig]:
    """Return what the sweep adds to the flags of `train`, and the config with its evaluations."""
    fixed = {*name_flags(options.train_flags), *(flag for parameter in options.parameters for flag in parameter.flags)}
    defaults = {**DEFAULTS, "logger": "wandb"} if options.wandb is not None else DEFAULTS
    if metric.startswith("eval/") and "eval-interval" not in fixed:
        interval = max(1, config.run.max_iterations // EVALUATIONS)
        defaults = {**defaults, "eval-interval": str(interval)}
        config = replace(config, run=replace(config.run, eval_interval=interval))
    return [word for flag, value in defaults.items() if flag not in fixed for word in (f"--{flag}", value)], config


def write_wandb_sweep(plan: SweepPlan, path: Path) -> None:
    """Write a new file for `wandb sweep`, whose agents pass settings as `mjtrain.cli.parsing` reads them."""
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
    searched = {flag for parameter in options.parameters for flag in parameter.flags}
    teacher = [] if plan.teacher is None or searched & {*_TEACHER_FLAGS} else ["--teacher", plan.teacher]
    arguments = [options.task, *options.train_flags, *plan.added_flags, *teacher]
    content: dict[str, Any] = {
        "program": "train",
        "command": ["${env}", "${program}", *arguments, "${args_no_boolean_flags}"],
        "method": _WANDB_METHODS[options.sampler],
        "metric": {"name": plan.metric, "goal": plan.direction},
        "run_cap": options.trials,
        "parameters": {parameter.name: _describe_parameter(parameter) for parameter in options.parameters},
    }
    if options.pruner == "asha":  # W&B counts how often the metric was reported
        first = max(1, plan.num_reports * plan.min_iterations // plan.max_iterations)
        content["early_terminate"] = {"type": "hyperband", "min_iter": first, "eta": REDUCTION_FACTOR}
    return content


def _describe_parameter(parameter: Parameter) -> dict[str, Any]:
    if parameter.kind == "flag":
        return {"values": [False, True]}
    if parameter.choices:
        return {"values": list(parameter.choices)}
    return {"distribution": _WANDB_DISTRIBUTIONS[parameter.kind], "min": parameter.low, "max": parameter.high}
