"""Summary statistics over many episodes."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mjtrain.config import AnyEnvConfig, EnvConfig
from mjtrain.evaluation.episodes import Episode
from mjtrain.evaluation.names import BROKEN, UNFINISHED


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Statistics of one quantity over episodes."""

    mean: float
    std: float
    """Standard deviation over episodes, of the sample; 0 for one episode."""

    min: float
    max: float
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class SuccessSpread(Spread):
    """Statistics of what a success term measured."""

    measure: str
    """As in `SuccessTerm`: end and ever are 0 or 1 in an episode, count is a number."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Statistics of the episodes of a policy."""

    episodes: int
    reward: Spread
    """Return of an episode."""

    length: Spread
    """Length of an episode, in env steps."""

    reward_terms: dict[str, Spread]
    """Part of each reward term in the return."""

    terminations: dict[str, int]
    """Number of episodes with each cause of termination; an episode can have several."""

    successes: dict[str, SuccessSpread] = field(default_factory=dict)
    """What each success term measured."""

    errors: dict[str, Spread] = field(default_factory=dict)
    """Each error of each command, as "command/error", over the episodes that have it."""

    estimates: dict[str, Spread] = field(default_factory=dict)
    """Errors of what the policy estimates from images, by observation term, see `ObservationTerm.estimate_error`."""

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for JSON; for each cause the number of episodes and the fraction."""
        causes = {
            name: {"episodes": count, "fraction": count / self.episodes} for name, count in self.terminations.items()
        }
        return {**asdict(self), "terminations": causes}


def summarise(episodes: Sequence[Episode], config: AnyEnvConfig, estimated_group: str | None = None) -> Summary:
    """Summarise episodes."""
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
    observed = {}
    if estimated_group is not None and isinstance(config, EnvConfig):
        observed = config.observations[estimated_group]
    return Summary(
        episodes=len(episodes),
        reward=_spread(episode.reward for episode in episodes),
        length=_spread(episode.length for episode in episodes),
        reward_terms={name: _spread(episode.reward_terms[name] for episode in episodes) for name in config.rewards},
        terminations={name: count for name, count in causes.items() if count or name not in (BROKEN, UNFINISHED)},
        successes={
            name: SuccessSpread(
                **asdict(_spread(episode.successes[name] for episode in episodes)), measure=term.measure
            )
            for name, term in config.successes.items()
        },
        errors=errors,
        estimates={
            name: _spread((episode.estimates[name] for episode in episodes), term.unit)
            for name, term in observed.items()
        },
    )


def _spread(values: Iterable[float], unit: str = "") -> Spread:
    values = [float(value) for value in values]
    return Spread(
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else 0.0,
        min=min(values),
        max=max(values),
        unit=unit,
    )
