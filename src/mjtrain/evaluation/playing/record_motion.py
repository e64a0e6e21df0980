"""Roll out a policy, and take what the robot does for a motion."""

import math

import numpy as np

from mjtrain.config import EnvConfig
from mjtrain.env.env import Env
from mjtrain.evaluation.playing.player import Player
from mjtrain.motion.edit import center
from mjtrain.motion.motion import Motion
from mjtrain.motion.skeleton import Skeleton
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext


def record_motion(
    context: RankContext, run: TrainedRun, held: tuple[str, tuple[float, ...]] | None, settle_s: float, length_s: float
) -> Motion:
    """Let a policy act in one world, and return its positions after each env step, from the origin on.

    Args:
        held: See `Player`.
    """
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
