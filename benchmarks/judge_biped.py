"""How well a robot with two legs walks, over all worlds that have not fallen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from mjtrain.config import EnvConfig
from mjtrain.env.env import Env
from mjtrain.mdp import gait

FEET = ("left", "right")
LEAST_SWING_S = 0.06


def judge_biped(env: Env, policy: Callable[[Any], torch.Tensor]) -> list[float]:
    """Return tracking errors, falls, the gait and the posture.

    Returns:
        Planar error in m/s and turning error in rad/s; falls in %; mean and 10th percentile of the peak heights of
        swings in cm; duty factor of both feet and the difference between them in %, while the command is more than 0.3;
        95th percentile of the torso's tilt in degrees; action rate in rad/s; torque in N m.
    """
    positions, contacts = (tuple(f"{foot}_foot_{kind}" for foot in FEET) for kind in ("position", "contact"))
    standing = torch.ones(env.num_envs, dtype=torch.bool)
    planar, turning, duty, rates, torques, peaks, tilts = ([] for _ in range(7))
    peak, aloft_s = torch.zeros(env.num_envs, 2), torch.zeros(env.num_envs, 2)
    scale = torch.tensor([row["scale"] for row in env.action_table])
    for _ in range(env.max_episode_steps - 1):
        command = env.command("velocity").clone()
        wanted = env.drawn_command("velocity")[:, :2].clone()  # at once, although the robot is given time to get there
        _, _, terminated, _ = env.step(policy(env.observe()))
        standing &= ~terminated
        planar.append((wanted - env.sensor("base_velocity")[:, :2]).norm(dim=1)[standing])
        turning.append((command[:, 2] - env.sensor("base_angular_velocity")[:, 2]).abs()[standing])
        tilts.append(env.sensor("torso_up")[:, 2].clamp(-1, 1).arccos()[standing])
        rates.append(scale * (env.action - env.last_action).abs()[standing])
        torques.append(env.sensor((".*_torque",)).abs()[standing])
        touching = env.touches(contacts)
        walking = (command.norm(dim=1) > 0.3) & standing
        duty.append(touching[walking].float())
        ended = touching & (aloft_s >= LEAST_SWING_S) & walking[:, None]
        peaks.append(peak[ended])
        peak = torch.where(touching, 0.0, torch.maximum(peak, gait.foot_heights(env, sensors=positions)))
        aloft_s = torch.where(touching, 0.0, aloft_s + env.step_dt)
    lifted, (left, right) = torch.cat(peaks), torch.cat(duty).mean(dim=0).tolist()
    return [
        torch.cat(planar).mean().item(),
        torch.cat(turning).mean().item(),
        100 * (~standing).double().mean().item(),
        100 * lifted.mean().item(),
        100 * lifted.sort().values[lifted.numel() // 10].item() if lifted.numel() else 0.0,
        (left + right) / 2,
        100 * abs(left - right) / max((left + right) / 2, 1e-6),
        torch.rad2deg(torch.cat(tilts).sort().values[int(0.95 * sum(map(len, tilts)))]).item(),
        torch.cat(rates).mean().item() / env.step_dt,
        torch.cat(torques).mean().item(),
    ]


def by_full_commands(config: EnvConfig, _: dict[str, Any]) -> EnvConfig:
    """Command what the task promises, whatever the curriculum; steps of 5 ms, and MuJoCo's own limits of the solver.

    Pushes come every 8 to 12 s, and one command of ten is to stand. These are frozen, unlike those of the training.
    """
    options = replace(config.robot.options, iterations=100, ls_iterations=50)
    robot = replace(config.robot, timestep=0.005, options=options)
    curriculum = {
        name: term.replace(func=_keep, params={}, initial=(1.0, 1.0)) for name, term in config.curriculum.items()
    }
    drawn = config.commands["velocity"]
    commands = {"velocity": drawn.replace(params={**drawn.params, "standing_fraction": 0.1})}
    events = config.events | {"push": config.events["push"].replace(interval_s=(8.0, 12.0))}
    return replace(config, robot=robot, decimation=4, curriculum=curriculum, commands=commands, events=events)


def on_lower_levels(config: EnvConfig, last: dict[str, Any]) -> EnvConfig:
    """Spread the worlds evenly over the lower half of the levels of the ground, and keep them there."""
    config = by_full_commands(config, last)
    ground = config.curriculum["terrain"].replace(initial=(0.0, config.terrain.num_levels / 2))
    return replace(config, curriculum=config.curriculum | {"terrain": ground})


def _keep(_: Env, level: torch.Tensor) -> torch.Tensor:
    return level
