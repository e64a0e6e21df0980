"""Summary statistics over many episodes."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from mjtrain.config import AnyEnvConfig
from mjtrain.evaluation.episodes import Episode
from mjtrain.evaluation.names import BROKEN, UNFINISHED


def summarise(episodes: Sequence[Episode], config: AnyEnvConfig, estimated_group: str | None = None) -> dict[str, Any]:
    """Summarise episodes.

    Returns:
        Plain values for JSON. Statistics are those of `_spread`.

        - episodes: How many there are.
        - reward, length: Statistics of the return, and of the length in env steps.
        - reward_terms: Statistics of the part of each reward term in the return.
        - terminations: Number and fraction of episodes with each cause; an episode can have several.
        - successes: Statistics of each success term. Its `measure` is as in `SuccessTerm`: end and ever are 0 or 1 in
          an episode, count is a number.
        - errors: Statistics of each error of each command, as "command/error", over the episodes that have it.
        - estimates: Statistics of errors of what the policy estimates from images, by observation term, see
          `ObservationTerm.estimate_error`.
    """
    causes = dict.fromkeys((*config.terminations, BROKEN, UNFINISHED), 0)
    for episode in episodes:
        for cause in episode.causes:
            causes[cause] += 1
    errors = {}
    for command, term in config.commands.items():
        for error, measure in term.errors.items():
            name = f"{command}/{error}"
            values = [episode.errors[name] for episode in episodes if name in episode.errors]
            if values:
                errors[name] = _spread(values, measure.unit)
    observed = config.observations.get(estimated_group or "", {})
    return {
        "episodes": len(episodes),
        "reward": _spread(episode.reward for episode in episodes),
        "length": _spread(episode.length for episode in episodes),
        "reward_terms": {name: _spread(episode.reward_terms[name] for episode in episodes) for name in config.rewards},
        "terminations": {
            name: {"episodes": count, "fraction": count / len(episodes)}
            for name, count in causes.items()
            if count or name not in (BROKEN, UNFINISHED)
        },
        "successes": {
            name: {**_spread(episode.successes[name] for episode in episodes), "measure": term.measure}
            for name, term in config.successes.items()
        },
        "errors": errors,
        "estimates": {
            name: _spread((episode.estimates[name] for episode in episodes), term.unit)
            for name, term in observed.items()
        },
    }


def _spread(values: Iterable[float], unit: str = "") -> dict[str, Any]:
    """Return mean, standard deviation (0 for one value), extremes and unit; NaN if a value is not finite."""
    values = [float(value) for value in values]
    if not all(map(math.isfinite, values)):  # which `statistics` cannot add up
        return {**dict.fromkeys(("mean", "std", "min", "max"), math.nan), "unit": unit}
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "min": min(values),
        "max": max(values),
        "unit": unit,
    }
