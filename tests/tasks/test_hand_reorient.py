"""Hand-Reorient-Cube: what the cube is turned for, when a goal is replaced, and when an episode ends."""

import pytest
import torch

import mjtrain
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.mdp import objects
from mjtrain.sim import rotations
from mjtrain_tasks.hand_reorient import CUBE, TOLERANCE
from mjtrain_tasks.hand_reorient.progress import progress

NUM_ENVS = 16


@pytest.fixture
def env() -> Env:
    return mjtrain.make_env(load_task("Hand-Reorient-Cube"), num_envs=NUM_ENVS, num_threads=2)


def angle(env: Env) -> torch.Tensor:
    return objects.angle(env, command="goal", object=CUBE)


def put_cube(env: Env, position: torch.Tensor | None = None, quaternion: torch.Tensor | None = None) -> None:
    """Move the cube in all worlds, at rest and unseen by the environment."""
    qpos, place = env.state.qpos.clone(), env.engine.layout.qpos[CUBE]
    if position is not None:
        qpos[:, place][:, :3] += position
    if quaternion is not None:
        qpos[:, place][:, 3:] = quaternion
    env.engine.reset(torch.ones(NUM_ENVS, dtype=torch.bool), qpos, torch.zeros_like(env.state.qvel))


def test_progress_adds_up_to_the_angle_that_was_turned(env: Env) -> None:
    start, goal = angle(env), env.command("goal").clone()
    turned, same = torch.zeros(NUM_ENVS), torch.ones(NUM_ENVS, dtype=torch.bool)
    column = list(env.config.rewards).index("progress")
    weight = env.config.rewards["progress"].weight
    for _ in range(10):
        _, _, terminated, truncated = env.step(0.5 * torch.randn(NUM_ENVS, env.num_actions, generator=env.rng))
        turned += env.reward_terms[:, column] / weight
        same &= ~terminated & ~truncated & (env.command("goal") == goal).all(dim=1)
    assert same.sum() > NUM_ENVS // 2
    assert turned[same].tolist() == pytest.approx((start - angle(env))[same].tolist(), abs=1e-3)
    assert turned[same].abs().max() > 0.1


def test_there_is_no_progress_in_the_draw_of_a_goal(env: Env) -> None:
    put_cube(env, torch.tensor([0.0, 0.0, 0.05]), env.command("goal"))  # above the fingers, where nothing turns it
    env.step(torch.zeros(NUM_ENVS, env.num_actions))
    reached = env.success("goal").clone()
    assert reached.all()
    assert (env.success_count("goal")[reached] == 1).all()
    assert angle(env)[reached].mean() > 2 * TOLERANCE  # that of a new goal
    env.step(torch.zeros(NUM_ENVS, env.num_actions))
    speed = progress(env, command="goal", before="before", object=CUBE)
    assert (speed == 0.0).all()  # the orientation before the next env step is the present one


def test_policy_cannot_tell_orientations_in_which_the_cube_looks_the_same(env: Env) -> None:
    put_cube(env)  # at rest
    critic = env.observe()["critic"].clone()  # what the actor sees, without noise, and more
    start, turn = env.state.qpos[:, env.engine.layout.qpos[CUBE]][:, 3:].clone(), torch.tensor([0.5, 0.5, -0.5, 0.5])
    env.command("goal")[:] = rotations.multiply(env.command("goal"), turn.expand(NUM_ENVS, 4))
    put_cube(env, quaternion=rotations.multiply(start, turn.expand(NUM_ENVS, 4)))
    torch.testing.assert_close(env.observe()["critic"], critic, atol=1e-4, rtol=0)


def test_cube_that_left_the_hand_ends_the_episode(env: Env) -> None:
    _, _, terminated, _ = env.step(torch.zeros(NUM_ENVS, env.num_actions))
    assert not terminated.any()
    put_cube(env, position=torch.tensor([0.0, 0.15, 0.0]))
    _, _, terminated, truncated = env.step(torch.zeros(NUM_ENVS, env.num_actions))
    assert terminated.all()
    assert not truncated.any()


def test_episode_ends_eight_seconds_after_the_last_goal(env: Env) -> None:
    still = torch.zeros(NUM_ENVS, env.num_actions)
    steps, wait = round(8.0 / env.step_dt), 20
    alive = torch.ones(NUM_ENVS, dtype=torch.bool)
    with_goal = torch.arange(NUM_ENVS) < NUM_ENVS // 2
    ended_at = torch.full((NUM_ENVS,), -1)
    for step in range(steps + wait + 10):
        if step == wait:  # half of the worlds reach a goal
            qpos = env.state.qpos.clone()
            quaternion = torch.where(
                with_goal[:, None], env.command("goal"), qpos[:, env.engine.layout.qpos[CUBE]][:, 3:]
            )
            put_cube(env, quaternion=quaternion)
        else:
            far = rotations.multiply(
                env.state.qpos[:, env.engine.layout.qpos[CUBE]][:, 3:],
                torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(NUM_ENVS, 4),
            )
            env.command("goal")[:] = far  # out of reach
        _, _, terminated, truncated = env.step(still)
        if step == wait:
            assert (env.success("goal") == with_goal).sum() > 0.8 * NUM_ENVS
            alive &= env.success("goal") == with_goal
        ended_at[alive & truncated & (ended_at < 0)] = step
        alive &= ~terminated & ~truncated
    late, early = (ended_at[side & (ended_at >= 0)] for side in (with_goal, ~with_goal))
    assert len(late) > 2
    assert len(early) > 2
    assert (early == steps - 1).all()
    assert (late == wait + steps).all()


def test_still_hand_keeps_the_cube(env: Env) -> None:
    ended = torch.zeros(NUM_ENVS, dtype=torch.bool)
    for _ in range(100):
        _, _, terminated, _ = env.step(torch.zeros(NUM_ENVS, env.num_actions))
        ended |= terminated
    assert ended.float().mean() < 0.2
