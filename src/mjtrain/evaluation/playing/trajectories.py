"""Record what a policy does: whole episodes, step by step, or a motion."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from mjtrain.config import EnvConfig
from mjtrain.env.env import Env
from mjtrain.evaluation.eval_config import UNFINISHED, name_causes
from mjtrain.evaluation.playing.player import Player
from mjtrain.motion.edit import center
from mjtrain.motion.motion import Motion
from mjtrain.motion.skeleton import Skeleton
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext

STATE = ("qpos", "qvel", "act")
"""Fields of the state that are recorded before each action."""


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One episode. Row t is env step t: what held before the action, the action, and what the step returned."""

    world: int
    """Index of its world."""

    arrays: dict[str, np.ndarray]
    """By name: observations/GROUP, commands/NAME, actions, rewards, reward_terms, terminated, truncated, time and the
    state qpos, qvel and act. Shape (steps, ...) each."""

    last: dict[str, np.ndarray]
    """Observations after the last step by group, before the next episode began. Empty without observations."""

    causes: tuple[str, ...]
    """Why it ended: terminations that fired, BROKEN, or UNFINISHED where the recording ended first."""

    @property
    def num_steps(self) -> int:
        """Length in env steps."""
        return len(self.arrays["rewards"])


def record_episodes(
    player: Player, per_env: int, *, max_steps: int | None = None, observations: bool = True
) -> Iterator[Trajectory]:
    """Play per_env episodes in every world, each from a new start, and yield each one when it has ended.

    Args:
        per_env: Episodes of each world. The same number for all, so that short ones do not crowd out long ones.
        max_steps: Ends every recording after this many env steps, as UNFINISHED.
        observations: Whether to record them, which includes camera images.
    """
    env: Env = player.env
    everywhere = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    env.keeps_final_observations = observations
    env.reset(everywhere)
    player.forget(everywhere)
    longest = min(max_steps or env.max_episode_steps, env.max_episode_steps)
    rows: list[dict[str, np.ndarray]] = []
    begins, left = np.zeros(env.num_envs, dtype=int), np.full(env.num_envs, per_env)
    dropped = 0
    while left.any():
        rows.append(_step(player, observations))
        now = dropped + len(rows)
        done = rows[-1]["terminated"] | rows[-1]["truncated"]
        stopped = (now - begins >= longest) & ~done
        for world in np.flatnonzero((done | stopped) & (left > 0)):
            own = rows[begins[world] - dropped :]
            after = (env.observe() if stopped[world] else env.final_observations) if observations else None
            yield Trajectory(
                world=int(world),
                arrays={name: np.stack([row[name][world] for row in own]) for name in own[0]},
                last={group: _copy(values[world]) for group, values in (after or {}).items()},
                causes=(UNFINISHED,)
                if stopped[world]
                else name_causes(env.config.terminations, env.causes[world].tolist()),
            )
            left[world] -= 1
        cut = torch.from_numpy(stopped & (left > 0)).to(env.device)
        if cut.any():
            env.reset(cut)
            player.forget(cut)
        begins[done | stopped] = now
        first = int(begins[left > 0].min(initial=now))
        del rows[: first - dropped]
        dropped = first


def _step(player: Player, observations: bool) -> dict[str, np.ndarray]:
    """Do one env step in all worlds; return a row of `Trajectory.arrays` for each."""
    env: Env = player.env
    seen = env.observe()
    row = {name: _copy(getattr(env.state, name)) for name in STATE}
    row["time"] = _copy(env.episode_step) * env.step_dt
    row |= {f"commands/{name}": _copy(env.command(name)) for name in env.config.commands}
    if observations:
        row |= {f"observations/{group}": _copy(values) for group, values in seen.items()}
    actions = player.act()
    row["actions"] = _copy(actions)
    _, rewards, terminated, truncated = env.step(actions)
    player.forget(terminated | truncated)
    row |= {"rewards": _copy(rewards), "reward_terms": _copy(env.reward_terms)}
    return row | {"terminated": _copy(terminated), "truncated": _copy(truncated)}


def _copy(values: torch.Tensor) -> np.ndarray:
    return values.cpu().numpy().copy()


def record_motion(
    context: RankContext, run: TrainedRun, held: tuple[str, tuple[float, ...]] | None, settle_s: float, length_s: float
) -> Motion:
    """Let a policy act in one world, and return its positions after each env step, from the origin on."""
    if not isinstance(run.env, EnvConfig):
        _ = run.own_env  # says that there is nothing to record
    for flag, value, least in (("--settle-s", settle_s, 0.0), ("--length-s", length_s, 0.04)):
        if not (math.isfinite(value) and value >= least):
            raise RequestError(f"{flag} {value:g}: must be at least {least:g}")
    with Player(context, run, num_envs=1, held=held) as player:
        env = player.env
        assert isinstance(env, Env)
        skeleton = Skeleton(env.engine.model, env.config.robot)
        steps, settling = round(length_s / env.step_dt) + 1, round(settle_s / env.step_dt)
        if settling + steps > env.max_episode_steps:
            raise RequestError(
                f"--settle-s {settle_s:g} --length-s {length_s:g}: an episode lasts "
                f"{env.max_episode_steps * env.step_dt:g} s"
            )
        frames = []
        for step in range(settling + steps):
            if player.step().any():
                fails = bool(env.terminated[0])
                advice = "fails: give another --seed" if fails else "has a time limit: shorten --settle-s or --length-s"
                raise RequestError(f"the episode ends after {(step + 1) * env.step_dt:.2f} s, because it {advice}")
            if step >= settling:
                frames.append(env.state.qpos[0].double().cpu().numpy().copy())
        return center(skeleton.from_qpos(np.stack(frames), 1 / env.step_dt))
