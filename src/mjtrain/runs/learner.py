"""The learner of a run: what was asked for, and what a run recorded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mjtrain.config import DEFAULT_LEARNER, AgentConfig, LearnerConfig, TrainConfig, from_plain
from mjtrain.config.type_check import find_type_problems
from mjtrain.runs.plain_yaml import read_given_yaml
from mjtrain.runs.run_dir import read_params
from mjtrain.runs.search import find_run_to_resume
from mjtrain.runs.storage.store import is_url
from mjtrain.runtime.errors import RequestError


def read_learner(run_dir: Path) -> LearnerConfig:
    """Read the learner that a run recorded; the default where it names none."""
    try:
        return from_plain(LearnerConfig, {**read_params(run_dir, "learner")})
    except ValueError as error:
        raise RequestError(f"{run_dir / 'params' / 'learner.yaml'}: {error}") from error


def parse_agent(content: dict[str, Any]) -> AgentConfig:
    """Return the agent of params/agent.yaml; raises a ValueError if a field is unknown or of another type."""
    agent = from_plain(AgentConfig, content)
    if problems := find_type_problems(AgentConfig, agent, "agent", limits=False):
        raise ValueError("; ".join(problems))
    return agent


def resolve_learner(config: TrainConfig) -> TrainConfig:
    """Fill in the learner of a training: the one that was asked for, or that of the run that is resumed."""
    run = config.run
    name = run.learner or _find_resumed(config) or DEFAULT_LEARNER
    settings = {} if run.learner_config is None else _read_settings(run.learner_config)
    return replace(config, run=replace(run, learner=name), learner=LearnerConfig(name=name, settings=settings))


def _find_resumed(config: TrainConfig) -> str | None:
    """Return the learner of the run on this machine that --resume names; None if it names none."""
    resume = config.run.resume
    if resume is None or resume == "auto" or is_url(resume):
        return None
    try:
        run_dir, _, _ = find_run_to_resume(config)
    except RequestError:  # said later, by what opens the run
        return None
    return read_learner(run_dir).name


def check_same_learner(config: TrainConfig, run_dir: Path) -> None:
    """Raise a RequestError if the run that would be resumed was trained with another learner."""
    theirs = read_learner(run_dir).name
    if theirs != config.learner.name:
        raise RequestError(
            f"--learner {config.learner.name}: {run_dir} was trained with {theirs}, and is resumed with that only"
        )


def _read_settings(file: str) -> dict[str, Any]:
    flag = f"--learner-config {file}"
    content = read_given_yaml(Path(file), flag)
    if content is not None and not isinstance(content, dict):
        raise RequestError(f"{flag}: holds {content!r}; give settings as name: value")
    for name in content or {}:
        if not isinstance(name, str):
            raise RequestError(f"{flag}: has the name {name!r}, which is not text")
    return content or {}
