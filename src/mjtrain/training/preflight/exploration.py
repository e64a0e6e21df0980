"""What terms return while worlds move at random, as at the start of a training; at rest they may all fit."""

from collections import defaultdict
from collections.abc import Iterator

import torch

from mjtrain.config import EnvConfig
from mjtrain.env.env import Env
from mjtrain.env.undisturbed import Memory
from mjtrain.runtime.errors import RequestError

NUM_STEPS = 60
"""Env steps: enough for a robot that stands to fall."""

NUM_STEPS_WITH_CAMERAS = 4
"""The same where each of them draws images."""

_HELD_STEPS = 8
"""Env steps for which one of the worlds has the same actions, which move a robot further than new ones do."""

_SHORT_S = 0.2
"""Longest episode, in s, of those that are too short for a robot to do anything."""

_HUGE_REWARD = 1e6
"""Reward times weight that no value function can learn."""


class Extremes:
    """Smallest and largest numbers that each term has returned in any world, by column."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[torch.Tensor]] = defaultdict(list)

    def add(self, name: str, value: torch.Tensor) -> None:
        """Take in what a term returned. Shape (num_envs, ...)."""
        self._values[name].append(value.clone())

    def find_doubts(self, config: EnvConfig) -> Iterator[str]:
        """Yield a line for each observation that never changed, and for each reward that was huge."""
        ranges = {name: torch.cat(values).aminmax(dim=0) for name, values in self._values.items()}
        for group, terms in config.observations.items():
            for name, term in terms.items():
                place = f"observations.{group}.{name}"
                # Commands and levels may be the same on purpose, and a foot may never touch the ground.
                if place not in ranges or {"command", "curriculum"} & set(term.params) or not ranges[place].min.any():
                    continue
                low, high = ranges[place]
                if low.ndim == 1 and bool((low == high).all()):
                    shown = " ".join(f"{number:g}" for number in low.tolist()[:3])
                    yield (
                        f"--env.{place}: was {shown}{' …' if len(low) > 3 else ''} in both worlds and all env steps of "
                        "a trial with random actions, so that a policy learns nothing from it"
                    )
        for name, term in config.rewards.items():
            place = f"rewards.{name}"
            if place in ranges:
                most = abs(term.weight) * max(abs(float(bound)) for bound in ranges[place])
                if most > _HUGE_REWARD:
                    yield f"--env.{place}: was {most:.3g} per second in a trial with random actions; bound it"


class Lengths:
    """How long episodes were, and what ended them."""

    def __init__(self, env: Env) -> None:
        self._begun = torch.zeros(env.num_envs, dtype=torch.long)
        self._step = 0
        self._step_dt = env.step_dt
        self._ended: list[int] = []
        self._causes: set[int] = set()

    def add(self, env: Env) -> None:
        """Take in the env step that was just made."""
        self._step += 1
        done = env.causes.any(dim=1)
        self._ended += (self._step - self._begun)[done].tolist()
        self._causes |= set(env.causes.any(dim=0).nonzero().flatten().tolist())
        self._begun[done] = self._step

    def find_doubts(self, config: EnvConfig) -> Iterator[str]:
        """Yield a line if every episode ended before a robot could do anything."""
        longest = max([*self._ended, *(self._step - self._begun).tolist()]) * self._step_dt
        if len(self._ended) >= 2 * len(self._begun) and longest <= _SHORT_S and config.episode_length_s > 4 * _SHORT_S:
            names = [name for index, name in enumerate(config.terminations) if index in self._causes]
            yield (
                f"--env.terminations.{', '.join(names)}: ended all {len(self._ended)} episodes of a trial with random "
                f"actions within {longest:.2g} s"
            )


def explore(config: EnvConfig, env: Env, problems: dict[str, str], extremes: Extremes) -> list[str]:
    """Step with random actions, until a term shows something that is wrong."""
    generator = torch.Generator().manual_seed(0)
    held, memory, lengths = torch.zeros(env.num_actions), Memory(config), Lengths(env)
    for step in range(NUM_STEPS_WITH_CAMERAS if config.cameras else NUM_STEPS):
        action = 2 * torch.rand(env.num_envs, env.num_actions, generator=generator) - 1
        if step % _HELD_STEPS == 0:
            held = action[0].sign()
        action[0] = held
        try:
            env.step(action)
        except TypeError as error:  # another number of columns than before
            raise RequestError(str(error)) if str(error).startswith("--env.") else error from None
        lengths.add(env)
        if problems:
            return []
        if env.describe_fastest():
            return [f"--env: a world broke in env step {step + 1} of random actions: {env.explain_broken_worlds()}"]
    changed = [
        f"--env: the functions of the task change {name} from env step to env step, which checkpoints do not save; "
        "the refine of a command keeps numbers that are saved"
        for name in memory.find_changed()
    ]
    return [*changed, *lengths.find_doubts(config), *extremes.find_doubts(config)]
