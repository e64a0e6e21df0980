"""How good a policy is at a task, over one episode in each of many worlds, without exploration noise."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from judge_biped import by_full_commands, judge_biped, on_lower_levels

from mjtrain.config import EnvConfig
from mjtrain.env.env import Env
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.mdp import gait, reach, tracking

Policy = Callable[[Any], torch.Tensor]
LEGS = ("FR", "FL", "RR", "RL")
LEAST_SWING_S = 0.06


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure of a judgement."""

    name: str
    """Heading of its column, with the unit."""

    least: float | None = None
    """Bar: at least so much."""

    most: float | None = None
    """Bar: less than so much."""

    def met(self, value: float) -> bool:
        """Whether the bar is met; without one, always."""
        return (self.least is None or value >= self.least) and (self.most is None or value < self.most)

    def heading(self) -> str:
        """Name and bar."""
        bars = [f"at least {self.least:g}"] if self.least is not None else []
        bars += [f"below {self.most:g}"] if self.most is not None else []
        return f"{self.name} ({', '.join(bars)})" if bars else self.name


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a task promises."""

    seeds: tuple[int, ...]
    within_s: float
    threshold: str
    reached: Callable[[dict[str, Any], int], bool]
    measures: tuple[Measure, ...]
    judge: Callable[[Env, Policy], list[float]]
    curve: str
    adapt: Callable[[EnvConfig, dict[str, Any]], EnvConfig] | None = None
    """Environment to judge in, from that of the training and its last metrics. None: as it is."""

    condition: Callable[[dict[str, Any]], bool] | None = None
    """What the training's metrics must show before a checkpoint of a speedrun is judged. None: nothing."""


def judge_length(env: Env, policy: Policy) -> list[float]:
    """Return the mean length of an episode, as a fraction of the longest possible."""
    alive = torch.ones(env.num_envs, dtype=torch.bool)
    lengths = torch.zeros(env.num_envs)
    for _ in range(env.max_episode_steps):
        _, _, terminated, _ = env.step(policy(env.observe()))
        lengths += alive
        alive &= ~terminated
    return [lengths.mean().item() / env.max_episode_steps]


def judge_upright(env: Env, policy: Policy) -> list[float]:
    """Return the mean cosine of the pole's angle over the last second."""
    last_second = round(1.0 / env.step_dt)
    cosines = []
    for step in range(env.max_episode_steps - 1):  # the very last env step already shows the next episode
        env.step(policy(env.observe()))
        if step >= env.max_episode_steps - 1 - last_second:
            cosines.append(env.qpos("hinge")[:, 0].cos().mean().item())
    return [sum(cosines) / len(cosines)]


def judge_reach(env: Env, policy: Policy) -> list[float]:
    """Return mean distance and angle from the commanded poses over the last half second before each new one."""
    position = {"command": "pose", "position_sensor": "tool_position"}
    orientation = {"command": "pose", "orientation_sensor": "tool_orientation"}
    half_second, held = round(0.5 / env.step_dt), round(3.0 / env.step_dt)
    distances, angles = [], []
    for step in range(1, env.max_episode_steps):
        env.step(policy(env.observe()))
        if step % held >= held - half_second:
            distances.append(reach.position_error(env, **position).norm(dim=1).mean().item())
            angles.append(reach.orientation_error(env, **orientation).norm(dim=1).mean().item())
    return [sum(distances) / len(distances), sum(angles) / len(angles)]


def judge_lift(env: Env, policy: Policy) -> list[float]:
    """Return the share of episodes that end with the cube within 2 cm of its place in %, and the distance in cm."""
    lost = torch.zeros(env.num_envs, dtype=torch.bool)
    for _ in range(env.max_episode_steps - 1):  # the very last env step already shows the next episode
        _, _, terminated, _ = env.step(policy(env.observe()))
        lost |= terminated
    distance = (env.qpos("cube")[:, :3] - env.command("place")).norm(dim=1)
    return [100 * ((distance <= 0.02) & ~lost).double().mean().item(), 100 * distance[~lost].mean().item()]


def judge_reorient(env: Env, policy: Policy) -> list[float]:
    """Return goals per episode, the share of lost cubes in %, and the length of an episode in s."""
    running, lost = torch.ones(env.num_envs, dtype=torch.bool), torch.zeros(env.num_envs, dtype=torch.bool)
    goals, length_s = torch.zeros(env.num_envs), torch.zeros(env.num_envs)
    for _ in range(env.max_episode_steps - 1):
        goal = env.command("goal").clone()
        _, _, terminated, truncated = env.step(policy(env.observe()))
        lost |= running & terminated
        running &= ~(terminated | truncated)
        goals += (env.command("goal") != goal).any(dim=1) & running
        length_s += env.step_dt * running
    return [goals.mean().item(), 100 * lost.double().mean().item(), length_s.mean().item()]


def judge_walk(env: Env, policy: Policy) -> list[float]:
    """Return tracking errors, falls and the gait of a quadruped, over all worlds that have not fallen."""
    positions, contacts = ([f"{leg}_foot_{kind}" for leg in LEGS] for kind in ("position", "contact"))
    standing = torch.ones(env.num_envs, dtype=torch.bool)
    planar, turning, duty, rates, torques, peaks = ([] for _ in range(6))
    peak = torch.zeros(env.num_envs, 4)
    aloft_s = torch.zeros(env.num_envs, 4)
    action_scale = torch.tensor([row["scale"] for row in env.action_table])
    for _ in range(env.max_episode_steps - 1):
        command = env.command("velocity").clone()
        wanted = env.drawn_command("velocity")[:, :2].clone()  # at once, although the robot is given time to get there
        _, _, terminated, _ = env.step(policy(env.observe()))
        standing &= ~terminated
        planar.append((wanted - env.sensor("base_velocity")[:, :2]).norm(dim=1)[standing])
        turning.append((command[:, 2] - env.sensor("base_angular_velocity")[:, 2]).abs()[standing])
        rates.append(action_scale * (env.action - env.last_action).abs()[standing])
        torques.append(env.sensor((".*_torque",)).abs()[standing])
        touching = env.sensor(contacts) > 1.0
        walking = (command.norm(dim=1) > 0.3) & standing
        duty.append(touching[walking].float())
        heights = gait.foot_heights(env, sensors=tuple(positions), radius_m=0.02)
        ended = touching & (aloft_s >= LEAST_SWING_S) & walking[:, None]
        peaks.append(peak[ended])
        peak = torch.where(touching, 0.0, torch.maximum(peak, heights))
        aloft_s = torch.where(touching, 0.0, aloft_s + env.step_dt)
    lifted = torch.cat(peaks)
    return [
        torch.cat(planar).mean().item(),
        torch.cat(turning).mean().item(),
        100 * (~standing).double().mean().item(),
        100 * lifted.mean().item(),
        100 * lifted.sort().values[lifted.numel() // 10].item(),
        torch.cat(duty).mean().item(),
        torch.cat(rates).mean().item() / env.step_dt,
        torch.cat(torques).mean().item(),
    ]


def judge_tracking(env: Env, policy: Policy) -> list[float]:
    """Return how many episodes come to the end of the clip in %, and mjlab's errors over all states that steps led to.

    A state is compared with the frame that was one ahead before the step. That which ends an episode does not count.
    """
    errors = (tracking.mpkpe, tracking.r_mpkpe, tracking.joint_vel_error)
    running, failed = torch.ones(env.num_envs, dtype=torch.bool), torch.zeros(env.num_envs, dtype=torch.bool)
    found: list[list[torch.Tensor]] = [[] for _ in errors]
    while running.any():
        frames = env.command("motion")[:, 0].clone()
        _, _, terminated, truncated = env.step(policy(env.observe()))
        failed |= running & terminated
        running &= ~(terminated | truncated)
        assert (env.command("motion")[running, 0] == frames[running] + 1).all()
        for values, error in zip(found, errors, strict=True):
            values.append(error(env, command="motion")[running])
    means = [torch.cat(values).mean().item() for values in found]
    return [100 * (~failed).double().mean().item(), 100 * means[0], 100 * means[1], means[2]]


def from_the_start(config: EnvConfig, _: dict[str, Any]) -> EnvConfig:
    """Begin every episode in the first frame, with the task's noise of starts, and without pushes."""
    return to_eval_config(config)


def in_fine_steps(config: EnvConfig, _: dict[str, Any]) -> EnvConfig:
    """Step the physics by 5 ms, whatever the training's step was: the judge's physics stays what it is."""
    return replace(config, robot=replace(config.robot, timestep=0.005), decimation=4)


def on_all_levels(config: EnvConfig, last: dict[str, Any]) -> EnvConfig:
    """Spread the worlds evenly over all levels of the ground, and keep them there; in fine steps."""
    config = in_fine_steps(config, last)
    all_levels = (0.0, float(config.terrain.num_levels))  # terms round a level down
    term = replace(config.curriculum["terrain"], func=keep_level, params={}, initial=all_levels, bounds=all_levels)
    return replace(config, curriculum={"terrain": term})


def keep_level(_: Env, level: torch.Tensor) -> torch.Tensor:
    """Leave a curriculum where it is."""
    return level


GAIT = (
    Measure(name="foot clearance, mean, cm", least=3.0),
    Measure(name="10th percentile, cm"),
    Measure(name="duty factor"),
    Measure(name="action rate, rad/s"),
    Measure(name="torque, N m"),
)


def is_above_half(metrics: dict[str, Any]) -> bool:
    """Whether the worlds are above half of the levels, from 0 to 9, in the mean."""
    return metrics["curriculum/terrain"] > 4.5


ROUGH = Goal(
    seeds=(0,),
    within_s=2400,
    threshold="mean level above half",
    reached=lambda metrics, _: is_above_half(metrics),
    measures=(
        Measure(name="planar velocity error, m/s"),
        Measure(name="turning rate error, rad/s"),
        Measure(name="falls, %", most=10.0),
        *GAIT,
    ),
    judge=judge_walk,
    curve="curriculum/terrain",
    adapt=on_all_levels,
    condition=is_above_half,
)

BIPED = (
    Measure(name="planar velocity error, m/s", most=0.25),
    Measure(name="turning rate error, rad/s", most=0.3),
    Measure(name="falls, %", most=2.0),
    *GAIT[:2],
    Measure(name="duty factor", least=0.5, most=0.75),
    Measure(name="left and right differ by, %", most=5.0),
    Measure(name="tilt of the torso, 95th percentile, degrees", most=15.0),
    *GAIT[3:],
)

GOALS = {
    "Cartpole-Balance": Goal(
        seeds=(0, 1, 2, 3, 4),
        within_s=60,
        threshold="98 % of the longest episode",
        reached=lambda metrics, longest: (metrics["mean_episode_length"] or 0) >= 0.98 * longest,
        measures=(Measure(name="episode length / longest", least=0.98),),
        judge=judge_length,
        curve="mean_episode_length",
    ),
    "Cartpole-Swingup": Goal(
        seeds=(0, 1, 2),
        within_s=300,
        threshold="a return above 9 of 12",
        reached=lambda metrics, _: (metrics["mean_reward"] or 0) > 9,
        measures=(Measure(name="cos(pole), last second", least=0.9),),
        judge=judge_upright,
        curve="mean_reward",
    ),
    "Arm-Reach": Goal(
        seeds=(0, 1, 2),
        within_s=300,
        threshold="half of the return for exactness",
        reached=lambda metrics, longest: metrics.get("reward/exact", 0) > 0.5 * 2.0 * longest * 0.02,
        measures=(Measure(name="tool position error, m", most=0.03), Measure(name="orientation error, rad")),
        judge=judge_reach,
        curve="mean_reward",
    ),
    "Arm-Lift-Cube": Goal(
        seeds=(1, 2, 3),
        within_s=1800,
        threshold="80 % of the episodes end in success",
        reached=lambda metrics, _: metrics.get("success/placed", 0) >= 0.8,
        measures=(Measure(name="within 2 cm at the end, %", least=80.0), Measure(name="distance at the end, cm")),
        judge=judge_lift,
        curve="success/placed",
    ),
    "Hand-Reorient-Cube": Goal(
        seeds=(1,),
        within_s=7200,
        threshold="2 goals per episode",
        reached=lambda metrics, _: metrics.get("success/goal", 0) >= 2.0,
        measures=(
            Measure(name="goals per episode", least=2.0),
            Measure(name="lost cubes, %"),
            Measure(name="length of an episode, s"),
        ),
        judge=judge_reorient,
        curve="success/goal",
    ),
    "Quadruped-Velocity-Flat": Goal(
        seeds=(0, 1, 2),
        within_s=600,
        threshold="80 % of the return for tracking",
        reached=lambda metrics, longest: (
            metrics.get("reward/track_planar", 0) + metrics.get("reward/track_turn", 0) > 0.8 * 6.0 * longest * 0.02
        ),
        measures=(
            Measure(name="planar velocity error, m/s", most=0.2),
            Measure(name="turning rate error, rad/s", most=0.25),
            Measure(name="falls, %", most=2.0),
            *GAIT,
        ),
        judge=judge_walk,
        curve="mean_reward",
        adapt=in_fine_steps,
    ),
    "Quadruped-Velocity-Rough": ROUGH,
    "Quadruped-Track": Goal(
        seeds=(1, 2),
        within_s=360,
        threshold="95 % of the episodes end with the clip",
        reached=lambda metrics, _: metrics.get("success/completed", 0) >= 0.95,
        measures=(
            Measure(name="success, %", least=95.0),
            Measure(name="mpkpe, cm", most=3.0),
            Measure(name="r_mpkpe, cm"),
            Measure(name="joint velocity error, rad/s"),
        ),
        judge=judge_tracking,
        curve="success/completed",
        adapt=from_the_start,
    ),
    "Humanoid-Track": Goal(
        seeds=(1, 2),
        within_s=1800,
        threshold="80 % of the episodes end with the clip",
        reached=lambda metrics, _: metrics.get("success/completed", 0) >= 0.8,
        measures=(
            Measure(name="success, %", least=80.0),
            Measure(name="mpkpe, cm"),
            Measure(name="r_mpkpe, cm"),
            Measure(name="joint velocity error, rad/s"),
        ),
        judge=judge_tracking,
        curve="success/completed",
        adapt=from_the_start,
        condition=lambda row: row.get("success/completed", 0) >= 0.5,  # judging lasts as long as ten iterations
    ),
    "Humanoid-Velocity-Flat": Goal(
        seeds=(1, 2, 3),
        within_s=1800,
        threshold="70 % of the return for tracking",
        reached=lambda metrics, longest: (
            metrics.get("reward/track_planar", 0) + metrics.get("reward/track_turn", 0) > 0.7 * 4.5 * longest * 0.02
        ),
        measures=BIPED,
        judge=judge_biped,
        curve="mean_reward",
        adapt=by_full_commands,
    ),
    "Humanoid-Velocity-Rough": Goal(
        seeds=(1, 2),
        within_s=3600,
        threshold="mean level above half",
        reached=lambda metrics, _: is_above_half(metrics),
        measures=BIPED,
        judge=judge_biped,
        curve="curriculum/terrain",
        adapt=on_lower_levels,
    ),
}
