"""Which metrics a training writes, and what follows from them: an early end, the best checkpoint; pure."""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mjtrain.config import DEFAULT_LEARNER, EnvConfig, ImitationConfig, RunConfig, TrainConfig
from mjtrain.evaluation.eval_config import list_quantities
from mjtrain.runtime.errors import RequestError, suggest

_ITERATION = (
    "iteration",
    "env_steps_total",
    "env_steps_per_second",
    "collect_time_s",
    "learn_time_s",
    "wait_time_s",
    "mean_reward",
    "mean_episode_length",
    "nan_resets",
    "kl",
    "action_std",
    "world_size",
    "num_envs_total",
    "learning_rate",
)

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}
_SMALLER_IS_BETTER = ("loss/", "eval/error/", "eval/estimate/")


def list_metrics(config: TrainConfig) -> list[str]:
    """Return the keys of metrics.jsonl that hold a number of the whole job, the same on all ranks."""
    env = config.env
    evaluated = ("episodes", *list_quantities(env, config.agent)) if isinstance(env, EnvConfig) else ()
    return [
        *_ITERATION,
        *(f"loss/{name}" for name in _list_losses(config)),
        *(f"reward/{name}" for name in env.rewards),
        *(f"termination/{name}" for name in env.terminations),
        *(f"success/{name}" for name in env.successes),
        *(f"curriculum/{name}" for name in env.curriculum),
        *(f"eval/{name}" for name in evaluated),
    ]


def _list_losses(config: TrainConfig) -> tuple[str, ...]:
    algorithm = config.agent.algorithm
    if isinstance(algorithm, ImitationConfig):
        return ("behavior", "auxiliary") if config.agent.supervised_group else ("behavior",)
    further = {
        "auxiliary": algorithm.auxiliary_cfg.group,
        "symmetry": algorithm.symmetry_cfg.mirrors_samples,
        "rnd": _settings_of_algorithm(config).get("rnd_cfg"),
    }
    return ("value", "surrogate", "entropy", *(name for name, is_there in further.items() if is_there))


def _settings_of_algorithm(config: TrainConfig) -> Mapping[str, Any]:
    """Return what --learner-config has for RSL-RL's algorithm; what is not settings is refused later."""
    settings = config.learner.settings.get("algorithm")
    return settings if isinstance(settings, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class StopCondition:
    """A condition of --stop-when."""

    metric: str
    """Key in metrics.jsonl."""

    comparison: str
    """>=, >, <= or <."""

    bound: float

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.bound:.15g}"

    def is_met(self, metrics: dict[str, Any]) -> bool:
        """Tell whether an iteration meets it; one without a number of this metric does not."""
        value = metrics.get(self.metric)
        return isinstance(value, int | float) and _OPERATORS[self.comparison](value, self.bound)


def parse_stop_condition(text: str) -> StopCondition:
    """Read a condition of --stop-when."""
    found = re.fullmatch(r"\s*([^<>=\s]+)\s*(>=|<=|>|<)\s*([^<>=\s]+)\s*", text)
    try:
        bound = float(found[3]) if found else math.nan
    except ValueError:
        bound = math.nan
    if found is None or math.isnan(bound):
        raise RequestError(f"--stop-when {text}: give a metric, one of >= > <= <, and a number, as in eval/return>=14")
    return StopCondition(metric=found[1], comparison=found[2], bound=bound)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Which of two iterations is better."""

    metric: str
    """Key in metrics.jsonl."""

    smaller_is_better: bool = False

    def is_better(self, value: float | None, best: float | None) -> bool:
        """Tell whether a value is better than the best one so far; None, NaN and infinite values are never better."""
        if value is None or not math.isfinite(value):
            return False
        if best is None:
            return True
        return value < best if self.smaller_is_better else value > best


def find_ranking(run: RunConfig) -> Ranking | None:
    """Return by what the best checkpoint is chosen; None if none is."""
    name = run.best_metric or ("eval/return" if run.eval_interval else None)
    if name is None:
        return None
    metric = name.removeprefix("-").removeprefix("+")
    if name != metric:
        return Ranking(metric=metric, smaller_is_better=name[0] == "-")
    return Ranking(metric=metric, smaller_is_better=is_smaller_better(metric))


def is_smaller_better(metric: str) -> bool:
    """Tell whether smaller values of a metric are better, as far as its name says: losses and errors."""
    return metric.startswith(_SMALLER_IS_BETTER)


def find_rule_problems(config: TrainConfig) -> Iterator[str]:
    """Yield what is wrong with the evaluation, the conditions and the ranking of a request."""
    run = config.run
    for text in run.stop_when:
        try:
            condition = parse_stop_condition(text)
        except RequestError as error:
            yield str(error)
        else:
            yield from find_metric_problems(f"--stop-when {text}", condition.metric, config)
    ranking = find_ranking(run)
    if run.best_metric is not None and ranking is not None:
        yield from find_metric_problems(f"--best-metric {run.best_metric}", ranking.metric, config)


def find_metric_problems(what: str, metric: str, config: TrainConfig) -> Iterator[str]:
    """Yield why a training would not report a metric."""
    known = list_metrics(config)
    class_name = _settings_of_algorithm(config).get("class_name", config.agent.algorithm.class_name)
    has_own_losses = config.learner.name != DEFAULT_LEARNER or not str(class_name).startswith("mjtrain.")
    if metric.startswith("loss/") and has_own_losses:
        return  # another learner, or an algorithm of the user's own, names its losses
    if metric.startswith("log/") and not isinstance(config.env, EnvConfig):
        return  # environments of others say what they log only while they run
    if metric not in known:
        yield f"{what}: unknown metric {metric}{suggest(metric, known, cutoff=0.5)}"
    elif metric.startswith("eval/") and config.run.eval_interval == 0:
        yield f"{what}: needs evaluations; give --eval-interval too, such as --eval-interval 50"
