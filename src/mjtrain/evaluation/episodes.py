"""Play a policy in its worlds, and measure it over whole episodes, on every rank of a job."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from mjtrain.config import AnyEnvConfig, ObservationTerm
from mjtrain.env.base import TaskEnv
from mjtrain.env.env import Env
from mjtrain.evaluation.eval_config import BROKEN, UNFINISHED, name_causes
from mjtrain.evaluation.followed import FailuresByBin
from mjtrain.learning.learner import Policy


class PolicyPlayer:
    """Steps environments with a policy; as a context manager, it closes them at the end."""

    def __init__(self, env: TaskEnv, policy: Policy | None) -> None:
        self.env: Any = env
        """The environments: an `Env`, or a `ForeignEnv` for external ones."""
        self.policy = policy
        """The network that acts in them; None without a trained policy, where a subclass says by itself what to do."""

    @property
    def estimated_group(self) -> str | None:
        """Observation group that the policy tells from images; None if there is none."""
        return None if self.policy is None else self.policy.estimated_group

    def act(self) -> torch.Tensor:
        """Return the actions of the policy for the current observations. Shape (num_envs, num_actions)."""
        assert self.policy is not None
        return self.policy(self.env.observe())

    def step(self) -> torch.Tensor:
        """Do one env step with the policy; return the worlds whose episode ended. Boolean, shape (num_envs,)."""
        _, _, terminated, truncated = self.env.step(self.act())
        done = terminated | truncated
        self.forget(done)
        return done

    def forget(self, worlds: torch.Tensor) -> None:
        """Reset the memory of a recurrent policy in the masked worlds. Boolean, shape (num_envs,)."""
        if self.policy is not None:
            self.policy.reset(worlds)

    def close(self) -> None:
        """Release the environment."""
        self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Estimates:
    """Splits the estimate of an observation group into its terms, and compares it with the group itself."""

    def __init__(self, env: Env, policy: Policy) -> None:
        assert policy.estimated_group is not None
        self._policy = policy
        self._group = policy.estimated_group
        self.terms: dict[str, ObservationTerm] = env.config.observations[self._group]
        """Terms of the group, by name in their order."""
        self._widths = list(env.observation_widths(self._group).values())

    def read(self) -> dict[str, torch.Tensor]:
        """Return what the policy's last observations tell of each term, unscaled. Shape (num_envs, size) each."""
        return self._split(self._policy.estimate())

    def errors(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the errors of the estimates, see `ObservationTerm.estimate_error`. Shape (num_envs, num_terms)."""
        true = self._split(observations[self._group])
        return torch.stack(
            [_compare(self.terms[name], estimated, true[name]) for name, estimated in self.read().items()], dim=1
        )

    def _split(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        columns = values.split(self._widths, dim=1)
        return {name: part / term.scale for (name, term), part in zip(self.terms.items(), columns, strict=True)}


def _compare(term: ObservationTerm, estimated: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    return (estimated - true).norm(dim=1) if term.estimate_error is None else term.estimate_error(estimated, true)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One episode."""

    reward: float
    """Return: the sum of all rewards."""

    length: int
    reward_terms: dict[str, float]
    """Part of each reward term in the return."""

    causes: tuple[str, ...]
    """Termination terms that fired, and BROKEN or UNFINISHED."""

    successes: dict[str, float]
    """What each success term measured, see `SuccessTerm.measure`."""

    errors: dict[str, float]
    """Mean of each command error over the env steps that count, as "command/error". Errors without such a step are
    missing."""

    estimates: dict[str, float]
    """Mean error of what the policy estimates, by observation term; empty if it estimates nothing."""

    def quantities(self, causes: Iterable[str]) -> dict[str, float]:
        """Return all of it as numbers by name, see `eval_config.list_quantities`."""
        return {
            "return": self.reward,
            "length": float(self.length),
            **{f"reward/{name}": value for name, value in self.reward_terms.items()},
            **{f"error/{name}": value for name, value in self.errors.items()},
            **{f"estimate/{name}": value for name, value in self.estimates.items()},
            **{f"success/{name}": value for name, value in self.successes.items()},
            **{f"termination/{name}": float(name in self.causes) for name in causes},
        }


def resolve_run_size(episodes: int, num_envs: int | None) -> tuple[int, int]:
    """Decide how many environments there are and how many episodes each of them plays.

    The number per environment is fixed. Taking the first N episodes that end would favour short ones, such as falls.
    By default there is an environment per episode, at most 256.
    """
    if num_envs is None:
        num_envs = min(episodes, 256)
    return num_envs, math.ceil(episodes / num_envs)


def play_episodes(
    player: PolicyPlayer, per_env: int, go_on: Callable[[], bool] = lambda: True, by_bin: FailuresByBin | None = None
) -> list[Episode]:
    """Play per_env whole episodes in every world, each from a new start.

    A world that has played its episodes continues unmeasured until all worlds have. An episode that nothing has ended
    within `max_episode_steps` counts as it is, as UNFINISHED, and the next one begins. Foreign worlds cannot be reset
    alone. There it continues until the time of all episodes is over.

    Args:
        go_on: Asked before each env step; where it says no, only episodes that have ended are returned.
        by_bin: Counts where the episodes fail.
    """
    env = player.env
    everywhere = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    env.reset(everywhere)
    player.forget(everywhere)
    meter = _Meter(player)
    left = torch.full((env.num_envs,), per_env, dtype=torch.long, device=env.device)
    found: list[Episode] = []
    for _ in range(per_env * env.max_episode_steps):
        if not go_on():
            return found
        meter.before_step()
        if by_bin is not None:
            by_bin.before_step(left > 0)
        done = player.step()
        meter.after_step()
        measured = left > 0
        cut = measured & ~done & (env.episode_step >= env.max_episode_steps) & isinstance(env, Env)
        over = measured & (done | cut)
        if by_bin is not None:
            by_bin.after_step(over)
        if over.any():
            found += meter.read(over & done)
            left -= over.long()
            if cut.any():
                found += meter.read(cut, unfinished=True)
                env.reset(cut)
                player.forget(cut)
        meter.clear(done | cut)
        if not left.any():
            return found
    return found + meter.read(left > 0, unfinished=True)


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


class _Meter:
    """Accumulates rewards, length and errors of the running episode of every world."""

    def __init__(self, player: PolicyPlayer) -> None:
        self._env = env = player.env
        commands = env.config.commands
        self._errors = [(command, error) for command, term in commands.items() for error in term.errors]
        self._settling = [
            round(commands[command].errors[error].settling_s / env.step_dt) for command, error in self._errors
        ]
        self._since = {command: torch.zeros(env.num_envs, device=env.device) for command in commands}
        self._drawn: dict[str, torch.Tensor] = {}
        self._rewards = torch.zeros(env.num_envs, len(env.config.rewards), dtype=torch.float64, device=env.device)
        self._length = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
        self._error_sum = torch.zeros(env.num_envs, len(self._errors), dtype=torch.float64, device=env.device)
        self._error_count = torch.zeros_like(self._error_sum)
        self._estimates = Estimates(player.env, player.policy) if player.policy and player.estimated_group else None
        self._estimated = () if self._estimates is None else tuple(self._estimates.terms)
        self._estimate_sum = torch.zeros(env.num_envs, len(self._estimated), dtype=torch.float64, device=env.device)
        self._observed: dict[str, torch.Tensor] = {}

    def before_step(self) -> None:
        """Measure errors where the policy sees them: before it acts, when state and command belong together."""
        env = self._env
        self._observed = env.observe()
        self._drawn = {command: env.drawn_command(command).clone() for command in self._since}
        for column, ((command, error), settling) in enumerate(zip(self._errors, self._settling, strict=True)):
            counts = self._since[command] >= settling
            self._error_sum[:, column] += env.command_error(command, error).double().masked_fill(~counts, 0.0)
            self._error_count[:, column] += counts

    def after_step(self) -> None:
        """Add the rewards of this step, and how well the policy saw what it acted on."""
        if self._estimates is not None:
            self._estimate_sum += self._estimates.errors(self._observed)
        self._rewards += self._env.reward_terms
        self._length += 1
        for command, since in self._since.items():
            redrawn = (self._env.drawn_command(command) != self._drawn[command]).any(dim=1)
            since.copy_(torch.where(redrawn, 0, since + 1))

    def read(self, worlds: torch.Tensor, *, unfinished: bool = False) -> list[Episode]:
        """Return the masked worlds' episodes that have steps. They end with this one, unless they are unfinished."""
        config, worlds = self._env.config, worlds & (self._length > 0)
        errors = self._error_sum / self._error_count  # NaN where no step counted
        estimates = self._estimate_sum / self._length[:, None]
        columns = (self._rewards, self._length, self._env.causes, self._env.successes, errors, estimates)
        episodes = []
        for rewards, length, causes, successes, means, missed in zip(
            *(column[worlds].tolist() for column in columns), strict=True
        ):
            episodes.append(
                Episode(
                    reward=sum(rewards),
                    length=length,
                    reward_terms=dict(zip(config.rewards, rewards, strict=True)),
                    causes=(UNFINISHED,) if unfinished else name_causes(config.terminations, causes),
                    successes=dict(zip(config.successes, successes, strict=True)),
                    errors={
                        f"{command}/{error}": mean
                        for (command, error), mean in zip(self._errors, means, strict=True)
                        if not math.isnan(mean)
                    },
                    estimates=dict(zip(self._estimated, missed, strict=True)),
                )
            )
        return episodes

    def clear(self, worlds: torch.Tensor) -> None:
        for sums in (self._rewards, self._length, self._error_sum, self._error_count, self._estimate_sum):
            sums.masked_fill_(worlds[:, None] if sums.ndim > 1 else worlds, 0)
        for since in self._since.values():
            since.masked_fill_(worlds, 0.0)
