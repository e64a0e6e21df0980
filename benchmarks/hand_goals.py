"""When does a trained hand reach its goals, and where does the cube lie when it reaches none?

    uv run benchmarks/hand_goals.py logs/hand_reorient_cube/RUN [--checkpoint model_1600.pt] [--seed 1000]

Plays one episode in each of many worlds without noise of exploration or observation. Prints goals and lost cubes per
episode, how many episodes reach how many goals, goals in each 10 s of the episode, and goals in the next 2 s by the
distance of the cube from where it should lie.
"""

import argparse
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

from mjtrain import LaunchConfig, RankContext, Run, launch
from mjtrain.api import make_train_config
from mjtrain.learning.library import make_policy
from mjtrain.mdp import objects
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.training.train_rank import make_env
from mjtrain_tasks.hand_reorient import CUBE, PALM

PART_S = 10.0
WINDOW_S = 2.0
GOALS = (1, 2, 3, 5, 10)
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
            _, _, terminated, truncated = env.step(policy(env.observe()))
            reached.append(env.success("goal") & running & ~terminated)
            lost |= running & terminated
            running = running & ~terminated & ~truncated
    return torch.stack(reached).float(), torch.stack(distances), lost, env.step_dt


def report(reached: torch.Tensor, distances: torch.Tensor, lost: torch.Tensor, step_dt: float) -> list[str]:
    """Describe what `play` returned."""
    per_episode = reached.sum(dim=0)
    running, window, part = ~distances.isnan(), round(WINDOW_S / step_dt), round(PART_S / step_dt)
    length = running.sum(dim=0).float().mean() * step_dt
    lines = [
        f"{per_episode.mean():.2f} goals per episode of {length:.1f} s, {100 * lost.float().mean():.1f} % lost",
        "goals reached by a share of the episodes: "
        + ", ".join(f"{least} or more {100 * (per_episode >= least).float().mean():.0f} %" for least in GOALS),
    ]
    for start, (goals, going) in enumerate(zip(reached.split(part), running.split(part), strict=True)):
        share = 100 * going[0].float().mean()
        lines.append(f"from {start * PART_S:g} s on ({share:.0f} %): {goals.sum(dim=0).mean():.2f} goals per episode")
    summed = torch.cat([torch.zeros(1, reached.shape[1]), reached.cumsum(dim=0)])
    following = summed[window:] - summed[:-window]
    near = distances[: len(following)]
    for low, high in pairwise(DISTANCES_MM):
        there = (near >= low / 1000) & (near < high / 1000)
        share = there.sum() / running[: len(near)].sum()
        goals = f"{following[there].mean():.2f}" if there.any() else "-"
        lines.append(f"cube {low} to {high} mm off ({100 * share:.0f} %): {goals} goals in the next {WINDOW_S:g} s")
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
