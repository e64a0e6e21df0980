"""Terms that a training does without: --without."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mjtrain.config import EnvConfig, TrainConfig
from mjtrain.runtime.errors import RequestError, suggest

_KINDS = ("observations", "rewards", "terminations", "events", "commands", "successes", "curriculum", "controllers")


def leave_out(config: TrainConfig) -> TrainConfig:
    """Return the config without the terms of --without, as if the task had never had them."""
    if not config.run.without:
        return config
    if not isinstance(config.env, EnvConfig):
        raise RequestError(f"--without {' '.join(config.run.without)}: {config.task} has no terms of mjtrain")
    terms = {kind: getattr(config.env, kind) for kind in _KINDS}
    for name in config.run.without:
        terms = _drop(terms, name.removeprefix("env.").split("."), name)
    return replace(config, env=replace(config.env, **terms), run=replace(config.run, without=()))


def _drop(terms: Mapping[str, Any], path: list[str], name: str) -> dict[str, Any]:
    """Return nested terms without one; a word of its path may have - where the config has _."""
    known = {key.replace("-", "_"): key for key in terms}
    first, *rest = (word.replace("-", "_") for word in path)
    if first not in known:
        raise RequestError(f"--without {name}: the task has no {path[0]}{suggest(first, terms)}")
    inner = terms[known[first]]
    if not rest and isinstance(inner, Mapping):
        raise RequestError(f"--without {name}: give one of its terms, such as {name}.{next(iter(inner), 'NAME')}")
    if rest and not isinstance(inner, Mapping):
        raise RequestError(f"--without {name}: {path[0]} is a term; give {name.rpartition('.')[0]}")
    left = {key: value for key, value in terms.items() if key != known[first]}
    return {**terms, known[first]: _drop(inner, rest, name)} if rest else left
