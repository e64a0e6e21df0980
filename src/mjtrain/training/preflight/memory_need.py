"""Memory of a rank for its rollouts and images, and how many environments fit; pure."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mjtrain.config import (
    DEFAULT_LEARNER,
    AgentConfig,
    CameraConfig,
    DaggerConfig,
    EnvConfig,
    ImitationConfig,
    ModelConfig,
    PpoConfig,
    TrainConfig,
)
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.machine import format_bytes

if TYPE_CHECKING:
    from mjtrain.training.preflight.dry_step import TaskSize

_NUM_SCALARS = {"ppo": 5, "distillation": 1}
"""Floats of an env step: the reward; for PPO also value, return, advantage and log-probability."""

_RAY_BYTES = 24
"""Of a pixel: direction and origin of its ray, which all worlds share."""

_PIXEL_BYTES = {"rgb": (4, 3), "depth": (4, 4), "segmentation": (8, 1)}
"""Of a pixel in each world, by stream: what the ray caster writes, and the image that is made of it."""

_NUM_ACTIONS = {"ppo": 3, "distillation": 2}
"""The action, and mean and standard deviation of the distribution that it was drawn from, or what the teacher does."""


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
        parts = [f"{format_bytes(self.rollout_bytes)} for a rollout"]
        parts += [f"{format_bytes(self.buffer_bytes)} for the buffer"] if self.buffer_bytes else []
        parts += [f"{format_bytes(self.imitation_bytes)} for the warm start"] if self.imitation_bytes else []
        parts += [f"{format_bytes(self.image_bytes)} for images"] if self.image_bytes else []
        parts += [f"{format_bytes(self.history_bytes)} for history and delay"] if self.history_bytes else []
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
