"""How much each rank of a run trains, and the memory that it needs for rollouts and images; pure."""

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from mjtrain.config import (
    DEFAULT_LEARNER,
    AgentConfig,
    CameraConfig,
    DaggerConfig,
    DistillationConfig,
    EnvConfig,
    ImitationConfig,
    ModelConfig,
    PpoConfig,
    TrainConfig,
)
from mjtrain.learning.library import find_library
from mjtrain.runtime.errors import RequestError, count
from mjtrain.runtime.machine import format_bytes

if TYPE_CHECKING:
    from mjtrain.training.preflight.dry_step import TaskSize

_OURS = re.compile(r"PPO$|rsl_rl\.|mjtrain\.")
"""Algorithms whose mini-batches are RSL-RL's."""

COMPILE_MODES = ("default", "lite", "max-autotune-no-cudagraphs")
"""Modes of torch.compile that keep no CUDA graphs."""

_NUM_SCALARS = {"ppo": 5, "distillation": 1}
"""Floats of an env step: the reward; for PPO also value, return, advantage and log-probability."""

_RAY_BYTES = 24
"""Of a pixel: direction and origin of its ray, which all worlds share."""

_PIXEL_BYTES = {"rgb": (4, 3), "depth": (4, 4), "segmentation": (8, 1)}
"""Of a pixel in each world, by stream: what the ray caster writes, and the image that is made of it."""

_NUM_ACTIONS = {"ppo": 3, "distillation": 2}
"""The action, and mean and standard deviation of the distribution that it was drawn from, or what the teacher does."""


def resolve_run_size(config: TrainConfig, world_size: int, device: str = "cpu") -> TrainConfig:
    """Return the run with num_envs and max_iterations of one rank, from its totals or the task's defaults, checked.

    The totals stay, for the record.
    """
    run = config.run
    mode = config.agent.torch_compile_mode
    if mode is not None and mode not in COMPILE_MODES:
        why = "keeps CUDA graphs, which PPO cannot use; " if mode in ("reduce-overhead", "max-autotune") else ""
        raise RequestError(f"--agent.torch-compile-mode {mode}: {why}give one of {', '.join(COMPILE_MODES)}, or None")
    num_envs = default_num_envs(config, device) if run.num_envs is None else run.num_envs
    if run.num_envs_total is not None:
        num_envs, rest = divmod(run.num_envs_total, world_size)
        if rest:
            raise RequestError(
                f"--num-envs-total {run.num_envs_total}: cannot be split evenly over {world_size} ranks; "
                f"{name_multiples(run.num_envs_total, world_size)} can"
            )
    _check_update(config.agent, num_envs)
    if config.learner.name == DEFAULT_LEARNER:
        _check_advantages(config.agent, num_envs, world_size)
    config = replace(config, run=replace(run, num_envs=num_envs))
    return replace(config, run=replace(config.run, max_iterations=find_last_iteration(config, world_size)))


def find_last_iteration(config: TrainConfig, world_size: int, iteration: int = 0, env_steps: int = 0) -> int:
    """Return the iteration with which a run ends that has done this much, perhaps with another number of ranks."""
    if config.run.total_env_steps is None:
        return config.run.max_iterations
    left = max(0, config.run.total_env_steps - env_steps)
    return iteration + math.ceil(left / (config.num_envs * config.agent.num_steps_per_env * world_size))


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
        fitting = replace(config, run=replace(config.run, num_envs_total=total))
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
    return replace(config, agent=_replace_unchanged(config.agent, *config.default_agents))


def _replace_unchanged(asked: Any, before: Any, instead: Any) -> Any:
    """Return what was asked for, with what is as before replaced, field by field."""
    if asked == before:
        return instead
    if not dataclasses.is_dataclass(asked) or not type(asked) is type(before) is type(instead):
        return asked
    fields = [field.name for field in dataclasses.fields(asked)]
    changed = {name: _replace_unchanged(*(getattr(one, name) for one in (asked, before, instead))) for name in fields}
    return replace(asked, **changed)  # pyright: ignore[reportArgumentType]


def default_num_envs(config: TrainConfig, device: str) -> int:
    """Return the task's environments per rank for a kind of device; worlds of the native engine are on the CPU."""
    steps_there = device.startswith("cuda") and config.run.engine != "native"
    on_gpu = config.default_num_envs_gpu if steps_there else None
    return config.default_num_envs if on_gpu is None else on_gpu


def name_multiples(count: int, step: int) -> str:
    """Name the multiples of a number that are nearest to a count below and above it."""
    below = count - count % step
    return " or ".join(f"{near:,}" for near in (below, below + step) if near)


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """What one rank needs, in bytes; networks, their activations and the physics come on top."""

    rollout_bytes: int
    """Storage of a rollout: observations, actions and what the algorithm keeps of each env step."""

    buffer_bytes: int = 0
    """Rollouts that DAgger keeps: what the student reads, and what the teacher would do."""

    imitation_bytes: int = 0
    """What the actor sees of a controller that it imitates before the first iteration."""

    image_bytes: int
    """Frames of the cameras in all worlds."""

    history_bytes: int
    """Earlier observations, kept for `history` and `delay`."""

    available_bytes: int | None
    """Free memory of the rank's device, of which ranks that share it have equal parts; None where it is not known."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        kept = self.rollout_bytes + self.buffer_bytes + self.imitation_bytes
        return kept + self.image_bytes + self.history_bytes

    def to_plain(self) -> dict[str, Any]:
        """Return the numbers, and a line that says the same."""
        return {**asdict(self), "total_bytes": self.total_bytes, "summary": self.describe()}

    def describe(self) -> str:
        """Say in a line what a rank needs."""
        needs = {"a rollout": self.rollout_bytes, "the buffer": self.buffer_bytes}
        needs |= {"the warm start": self.imitation_bytes, "images": self.image_bytes}
        needs |= {"history and delay": self.history_bytes}
        parts = [f"{format_bytes(need)} for {what}" for what, need in needs.items() if need]
        line = f"{format_bytes(self.total_bytes)} per rank ({', '.join(parts)})"
        free = self.available_bytes
        return line if free is None else f"{line}, of {format_bytes(free)} that are free"


def find_memory_need(config: TrainConfig, size: "TaskSize", available_bytes: int | None) -> MemoryNeed:
    """Return what a rank needs."""
    num_envs = config.num_envs
    kind = "distillation" if isinstance(config.agent.algorithm, ImitationConfig) else "ppo"
    floats = _NUM_SCALARS[kind] + _NUM_ACTIONS[kind] * size.num_actions
    per_step = sum(size.group_bytes.values()) + 4 * floats + 1  # whether it ended the episode
    per_step += sum(_memory_bytes(network) for network in (config.agent.actor, config.agent.critic))
    return MemoryNeed(
        rollout_bytes=num_envs * config.agent.num_steps_per_env * per_step,
        buffer_bytes=num_envs * config.agent.num_steps_per_env * _buffer_bytes(config.agent, size),
        imitation_bytes=num_envs * _imitation_bytes(config, size),
        image_bytes=num_envs * size.image_bytes,
        history_bytes=num_envs * size.history_bytes,
        available_bytes=available_bytes,
    )


def _buffer_bytes(agent: AgentConfig, size: "TaskSize") -> int:
    """Return the bytes that DAgger's buffer has for one env step of each rollout that is collected."""
    if not isinstance(agent.algorithm, DaggerConfig):
        return 0
    kept = {*agent.obs_groups["actor"], agent.supervised_group} & set(size.group_bytes)
    return agent.algorithm.buffer_rollouts * (sum(size.group_bytes[group] for group in kept) + 4 * size.num_actions)


def find_imitated(config: TrainConfig) -> str:
    """Return the controller that an actor with random weights imitates; empty where it imitates none."""
    algorithm, run = config.agent.algorithm, config.run
    if not isinstance(algorithm, PpoConfig) or config.learner.name != DEFAULT_LEARNER or run.load is not None:
        return ""
    return algorithm.warm_start.controller if run.resume in (None, "auto") else ""


def _imitation_bytes(config: TrainConfig, size: "TaskSize") -> int:
    """Return the bytes of the steps of one environment that the actor imitates: twice, while they are put together."""
    agent = config.agent
    if not find_imitated(config):
        return 0
    assert isinstance(agent.algorithm, PpoConfig)
    read = agent.obs_groups.get("actor", ("actor", "policy"))  # which RSL-RL takes where they are not named
    kept = [name for name, shape in size.shapes.items() if len(shape) == 1 or name in read]
    seen = sum(size.group_bytes[name] for name in kept)
    return 2 * agent.algorithm.warm_start.num_steps * (seen + 4 * size.num_actions)


def _memory_bytes(network: ModelConfig) -> int:
    """Return the bytes of what a recurrent network remembers of one environment, which a rollout keeps of each step."""
    if network.class_name != "RNNModel":
        return 0
    return 4 * network.rnn_num_layers * network.rnn_hidden_dim * (2 if network.rnn_type == "lstm" else 1)


def check_memory(need: MemoryNeed, config: TrainConfig, world_size: int, *, after_failures: bool = False) -> None:
    """Raise a RequestError if a rank needs more memory than there is.

    With `after_failures`, `world_size` is the smallest that failures may leave.
    """
    if need.available_bytes is None or need.total_bytes <= need.available_bytes:
        return
    in_total = config.run.num_envs_total is not None
    flag, given = ("--num-envs-total", config.run.num_envs_total) if in_total else ("--num-envs", config.num_envs)
    fitting = _round_down(config.num_envs * need.available_bytes // need.total_bytes) * (world_size if in_total else 1)
    advice = f"give {flag} {fitting}, or" if fitting else "not even one environment fits; give"
    if after_failures:
        left = "1 rank is" if world_size == 1 else f"{world_size} ranks are"
        raise RequestError(
            f"{flag} {given}: needs {need.describe()}, when {left} left, which --min-ranks and --min-hosts allow; "
            f"{advice} more --min-ranks"
        )
    fewer = "--agent.num-steps-per-env"
    if need.buffer_bytes:
        fewer = "--agent.algorithm.buffer-rollouts"
    elif need.imitation_bytes > need.rollout_bytes:
        fewer = "--agent.algorithm.warm-start.num-steps"
    raise RequestError(f"{flag} {given}: needs {need.describe()}; {advice} fewer {fewer}")


def check_image_sizes(env: EnvConfig, num_envs: int, available_bytes: int) -> None:
    """Raise a RequestError if not even a few worlds have room for their images, before any is rendered.

    It counts frames, and what `history` and `delay` keep of them; both take more than this in the end.
    """
    frames = {name: _frame_bytes(camera, num_envs) for name, camera in env.cameras.items()}
    kept = dict.fromkeys(frames, 0)
    for group in env.observations.values():
        for term in group.values():
            name, stream = term.params.get("camera"), term.params.get("stream")
            if isinstance(name, str) and name in frames:
                streams = (stream,) if isinstance(stream, str) and stream in _PIXEL_BYTES else None
                image = _image_bytes(env.cameras[name], streams)
                kept[name] += num_envs * image * (term.history + term.delay[1])
    needed = {name: frames[name] + kept[name] for name in frames}
    if sum(needed.values()) <= available_bytes:
        return
    largest = max(needed, key=lambda name: needed[name])
    camera = env.cameras[largest]
    raise RequestError(
        f"--env.cameras.{largest}: {camera.width} x {camera.height} pixels, with what history and delay keep of them, "
        f"take more than {format_bytes(needed[largest])} for {num_envs} environments, of "
        f"{format_bytes(available_bytes)} that are free; give a smaller width and height, or a shorter history"
    )


def _frame_bytes(camera: CameraConfig, num_envs: int) -> int:
    """Return the bytes of one frame of all streams, with what comes before it."""
    written = sum(_PIXEL_BYTES[stream][0] for stream in camera.streams)
    pixels = camera.width * camera.height
    return pixels * (_RAY_BYTES + num_envs * written) + num_envs * _image_bytes(camera)


def _image_bytes(camera: CameraConfig, streams: tuple[str, ...] | None = None) -> int:
    """Return the bytes of an image of streams, by default of all, in one world."""
    return camera.width * camera.height * sum(_PIXEL_BYTES[stream][1] for stream in streams or camera.streams)


def _round_down(count: int) -> int:
    """Round down to two digits, such as 1234 to 1200."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return count // unit * unit
