"""What one environment observes, and how much memory it takes: measured."""

from dataclasses import dataclass

from mjtrain.env.env import Env
from mjtrain.sim.robots.model import list_grounds


@dataclass(frozen=True, kw_only=True)
class TaskSize:
    """What one environment of a task observes, the size of its action, and how many bytes it takes."""

    shapes: dict[str, tuple[int, ...]]
    """Observations by group: (size,), or (channels, height, width) of images."""

    group_bytes: dict[str, int]
    """Observations of one env step, by group."""

    image_bytes: int
    """Frames of its cameras, and what the ray caster writes before it."""

    history_bytes: int
    """Earlier observations, kept for `history` and `delay`."""

    num_actions: int
    """Size of an action."""

    episode_steps: int = 0
    """Longest episode, in env steps."""

    warnings: tuple[str, ...] = ()
    """What is possible and yet probably not meant, a line each."""


def measure_task(env: Env) -> TaskSize:
    """Measure the tensors of environments; what all worlds share does not count."""
    buffers = env.state_dict()["buffers"]

    def per_env(num_bytes: int) -> int:
        return num_bytes // env.num_envs

    def of_part(part: str) -> int:
        return sum(tensor.nbytes for name, tensor in buffers.items() if name.startswith(f"{part}."))

    rendered = env.cameras.renderer.num_bytes if env.config.cameras else 0
    return TaskSize(
        shapes={group: tuple(observed.shape[1:]) for group, observed in env.observe().items()},
        group_bytes={group: per_env(tensor.nbytes) for group, tensor in env.observe().items()},
        image_bytes=per_env(rendered + of_part("cameras")),
        history_bytes=per_env(of_part("observations")),
        num_actions=env.num_actions,
        episode_steps=env.max_episode_steps,
        warnings=_find_own_grounds(env),
    )


def _find_own_grounds(env: Env) -> tuple[str, ...]:
    """Say which grounds of the robot's file are there beside the one that is added."""
    kind = env.config.terrain.kind
    grounds = () if kind == "robot" else list_grounds(env.engine.model)[:-1]
    if not grounds:
        return ()
    return (
        f"--env.terrain.kind {kind}: adds a ground beside that of the robot's file ({', '.join(grounds)}); give "
        "--env.terrain.kind robot, or a file without a ground",
    )
