"""When does a trained hand reach its goals, and where does the cube lie when it reaches none?

    uv run benchmarks/hand_goals.py logs/hand_reorient_cube/RUN [--checkpoint model_1600.pt] [--seed 1000]

Plays one episode in each of many worlds without noise of exploration or observation. Prints goals and lost cubes per
episode, goals per 2 s of the episode, goals in the next 2 s by the distance of the cube from where it should lie, and
the share of the cubes held to the end with which no goal was reached in the last 8 s.
"""

import argparse
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

from mjtrain import LaunchConfig, RankContext, Run, launch
from mjtrain.api import make_train_config
from mjtrain.checkpoint import load_checkpoint
from mjtrain.learners import make_policy
from mjtrain.mdp import objects
from mjtrain.training import make_env
from mjtrain_tasks.hand_reorient import CUBE, PALM

WINDOW_S = 2.0
LAST_S = 8.0
DISTANCES_MM = (0, 25, 40, 65, 100)


def play(
    context: RankContext, checkpoint: Path, episodes: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Play one episode per world.

    Returns:
        Whether a goal was reached, and the distance of the cube from its place in m at the start of the env step, NaN
        once the episode has ended: shapes (num_steps, episodes). Whether the cube was lost, shape (episodes,). The
        length of an env step in s.
    """
    config = make_train_config("Hand-Reorient-Cube", num_envs=episodes)
    env = make_env(context, replace(config, env=replace(config.env, observation_noise=False)))
    run = Run(checkpoint.parent)
    policy = make_policy(run.config.agent, run.config.learner, env.observe(), env.num_actions)
    policy.load(load_checkpoint(checkpoint, context.device), checkpoint)
    running = torch.ones(episodes, dtype=torch.bool)
    env.reset(running)
    reached, distances = [], []
    lost = torch.zeros(episodes, dtype=torch.bool)
    with torch.inference_mode():
        for _ in range(env.max_episode_steps):
            distance = objects.position_in(env, object=CUBE, position_sensor=PALM).norm(dim=1)
            distances.append(distance.masked_fill(~running, torch.nan))
            _, _, terminated, _ = env.step(policy(env.observe()))
            reached.append(env.success("goal") & running & ~terminated)
            lost |= running & terminated
            running = running & ~terminated
    return torch.stack(reached).float(), torch.stack(distances), lost, env.step_dt


def report(reached: torch.Tensor, distances: torch.Tensor, lost: torch.Tensor, step_dt: float) -> list[str]:
    """Describe what `play` returned."""
    per_episode = reached.sum(dim=0)
    window, last = round(WINDOW_S / step_dt), round(LAST_S / step_dt)
    lines = [f"{per_episode.mean():.2f} goals per episode, {100 * lost.float().mean():.1f} % lost"]
    parts = [f"{part.sum(dim=0).mean():.2f}" for part in reached.split(window)]
    lines.append(f"goals per {WINDOW_S:g} s of the episode: {' '.join(parts)}")
    summed = torch.cat([torch.zeros(1, reached.shape[1]), reached.cumsum(dim=0)])
    following = summed[window:] - summed[:-window]
    near = distances[: len(following)]
    for low, high in pairwise(DISTANCES_MM):
        there = (near >= low / 1000) & (near < high / 1000)
        share = there.sum() / (~near.isnan()).sum()
        goals = f"{following[there].mean():.2f}" if there.any() else "-"
        lines.append(f"cube {low} to {high} mm off ({100 * share:.0f} %): {goals} goals in the next {WINDOW_S:g} s")
    held = ~lost
    if held.any():
        idle = 100 * (reached[-last:, held].sum(dim=0) == 0).float().mean()
        lines.append(f"of the cubes held to the end, {idle:.0f} % met no goal in the last {LAST_S:g} s")
    return lines


def main() -> None:
    """Play the checkpoint and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1000)
    args = parser.parse_args()
    newest = max(args.run.glob("model_*.pt"), key=lambda path: int(path.stem.removeprefix("model_")), default=None)
    checkpoint = args.run / args.checkpoint if args.checkpoint else newest
    if checkpoint is None or not checkpoint.exists():
        parser.error(f"{args.run} has no checkpoint {args.checkpoint or 'model_*.pt'}")
    played = launch(play, checkpoint, args.episodes, launch=LaunchConfig(gpu_ids=None, seed=args.seed))
    print(f"{checkpoint.name}, {args.episodes} episodes, seed {args.seed}", *report(*played), sep="\n")


if __name__ == "__main__":
    main()
