"""How much each rank of a run trains; pure."""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

from mjtrain.config import DEFAULT_LEARNER, AgentConfig, DaggerConfig, DistillationConfig, PpoConfig, TrainConfig
from mjtrain.learning.library import find_library
from mjtrain.runtime.errors import RequestError, count

_OURS = re.compile(r"PPO$|rsl_rl\.|mjtrain\.")
"""Algorithms whose mini-batches are RSL-RL's."""

COMPILE_MODES = ("default", "lite", "max-autotune-no-cudagraphs")
"""Modes of torch.compile that keep no CUDA graphs."""


def resolve_run_size(config: TrainConfig, world_size: int, device: str = "cpu") -> TrainConfig:
    """Return the run with num_envs and max_iterations of one rank, from its totals or the task's defaults, checked.

    The totals stay, for the record.
    """
    run = config.run
    mode = config.agent.torch_compile_mode
    if mode is not None and mode not in COMPILE_MODES:
        why = "keeps CUDA graphs, which PPO cannot use; " if mode in ("reduce-overhead", "max-autotune") else ""
        raise RequestError(f"--agent.torch-compile-mode {mode}: {why}give one of {', '.join(COMPILE_MODES)}, or None")
    max_iterations = run.max_iterations
    num_envs = default_num_envs(config, device) if run.num_envs is None else run.num_envs
    if run.num_envs_total is not None:
        num_envs, rest = divmod(run.num_envs_total, world_size)
        if rest:
            raise RequestError(
                f"--num-envs-total {run.num_envs_total}: cannot be split evenly over {world_size} ranks; "
                f"{name_multiples(run.num_envs_total, world_size)} can"
            )
    samples = num_envs * config.agent.num_steps_per_env
    _check_update(config.agent, num_envs)
    if config.learner.name == DEFAULT_LEARNER:
        _check_advantages(config.agent, num_envs, world_size)
    if run.total_env_steps is not None:
        max_iterations = math.ceil(run.total_env_steps / (samples * world_size))
    return dataclasses.replace(config, run=dataclasses.replace(run, num_envs=num_envs, max_iterations=max_iterations))


def fit_to_ranks(config: TrainConfig, world_size: int, device: str = "cpu") -> tuple[TrainConfig, list[str]]:
    """Return the same run for a job that may have fewer ranks by now than when its size was resolved.

    Returns:
        The run, with --num-envs-total split over these ranks and --total-env-steps counted with them; and a line if
        the environments cannot be split evenly, also into mini-batches, or its learner cannot learn from that number,
        so that there are fewer from now on.
    """
    asked, batches = config.run.num_envs_total, count_env_batches(config.agent)
    if asked is None:
        return resolve_run_size(config, world_size, device), []
    library, step, problems = find_library(config.learner.name), world_size * batches, []
    for total in range(asked - asked % step, -1, -step):
        fitting = dataclasses.replace(config, run=dataclasses.replace(config.run, num_envs_total=total))
        try:
            fitting = resolve_run_size(fitting, world_size, device)
            library.check(fitting, world_size, device)
        except RequestError as error:
            problems.append(error)
            continue
        parts = f"{world_size} ranks{f' with {batches} mini-batches' if batches > 1 else ''}"
        how = f"over {parts} with --learner {config.learner.name}" if problems else f"evenly over {parts}"
        line = f"--num-envs-total {asked}: cannot be split {how}; continuing with {total}"
        return fitting, [line] if total < asked else []
    raise problems[0]


def find_uneven_batches(config: TrainConfig, world_size: int) -> Iterator[str]:
    """Yield the numbers of environments that recurrent networks can learn from, if it is not such a number."""
    total, batches = config.run.num_envs_total, count_env_batches(config.agent)
    if config.num_envs % batches:
        flag, step = (f"--num-envs {config.num_envs}", batches)
        if total is not None:
            flag, step = f"--num-envs-total {total}", world_size * batches
        yield (
            f"{flag}: a mini-batch of an RNNModel has whole environments, and there are {batches} mini-batches "
            f"(--agent.algorithm.num-mini-batches); give {name_multiples(total or config.num_envs, step)}"
        )


def count_env_batches(agent: AgentConfig) -> int:
    """Return how many mini-batches share the environments of a rank, which they do with recurrent networks; else 1.

    RSL-RL learns nothing from environments that are left over.
    """
    algorithm, is_recurrent = agent.algorithm, "RNNModel" in (agent.actor.class_name, agent.critic.class_name)
    if not is_recurrent or not isinstance(algorithm, PpoConfig) or not _OURS.match(algorithm.class_name):
        return 1
    return algorithm.num_mini_batches


def _check_update(agent: AgentConfig, num_envs: int) -> None:
    algorithm, num_steps = agent.algorithm, agent.num_steps_per_env
    if isinstance(algorithm, PpoConfig | DaggerConfig) and num_envs * num_steps < algorithm.num_mini_batches:
        raise RequestError(
            f"--agent.algorithm.num-mini-batches {algorithm.num_mini_batches}: a rollout of "
            f"{count(num_envs, 'env')} x {count(num_steps, 'step')} has only {count(num_envs * num_steps, 'sample')}"
        )
    if isinstance(algorithm, DistillationConfig):
        steps = num_steps * algorithm.num_learning_epochs
        if steps % algorithm.gradient_length:
            raise RequestError(
                f"--agent.algorithm.gradient-length {algorithm.gradient_length}: must divide {steps}, the env steps "
                "of an update (--agent.num-steps-per-env times --agent.algorithm.num-learning-epochs)"
            )


def _check_advantages(agent: AgentConfig, num_envs: int, world_size: int) -> None:
    """Refuse to normalise the advantage of one sample alone, which makes it NaN."""
    algorithm, samples = agent.algorithm, num_envs * agent.num_steps_per_env
    if not isinstance(algorithm, PpoConfig) or not _OURS.match(algorithm.class_name):
        return
    if samples * world_size < 2:
        raise RequestError(
            f"--agent.num-steps-per-env {agent.num_steps_per_env}: a rollout of 1 env has one sample, whose advantage "
            "cannot be normalised; give more steps or environments"
        )
    if algorithm.normalize_advantage_per_mini_batch and samples // algorithm.num_mini_batches * world_size < 2:
        raise RequestError(
            "--agent.algorithm.normalize-advantage-per-mini-batch: a mini-batch has one sample, whose advantage cannot "
            f"be normalised; give at most {count(samples // 2, 'mini-batch', 'mini-batches')} "
            "(--agent.algorithm.num-mini-batches)"
        )


def choose_agent(config: TrainConfig, device: str) -> TrainConfig:
    """Return the same run with the task's agent for a kind of device.

    What was changed in the task's agent for a CPU stays; the other settings become those of the task's agent for a GPU,
    if it has one and the device is one.
    """
    if config.default_agents is None or not device.startswith("cuda"):
        return config
    return dataclasses.replace(config, agent=_replace_unchanged(config.agent, *config.default_agents))


def _replace_unchanged(asked: Any, before: Any, instead: Any) -> Any:
    """Return what was asked for, with what is as before replaced, field by field."""
    if asked == before:
        return instead
    if not dataclasses.is_dataclass(asked) or not type(asked) is type(before) is type(instead):
        return asked
    fields = [field.name for field in dataclasses.fields(asked)]
    changed = {name: _replace_unchanged(*(getattr(one, name) for one in (asked, before, instead))) for name in fields}
    return dataclasses.replace(asked, **changed)  # pyright: ignore[reportArgumentType]


def default_num_envs(config: TrainConfig, device: str) -> int:
    """Return the task's environments per rank for a kind of device; worlds of the native engine are on the CPU."""
    steps_there = device.startswith("cuda") and config.run.engine != "native"
    on_gpu = config.default_num_envs_gpu if steps_there else None
    return config.default_num_envs if on_gpu is None else on_gpu


def name_multiples(count: int, step: int) -> str:
    """Name the multiples of a number that are nearest to a count below and above it."""
    below = count - count % step
    return " or ".join(f"{near:,}" for near in (below, below + step) if near)
