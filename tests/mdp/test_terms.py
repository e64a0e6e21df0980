"""Terms one by one: what they compute, when they act, and what remembers across steps."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import (
    ActionTerm,
    ActuatorConfig,
    CommandTerm,
    CurriculumTerm,
    EnvConfig,
    EventTerm,
    ObservationTerm,
    RewardTerm,
    from_plain,
    to_plain,
)
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.env.mirror import find_mirror_problems
from mjtrain.mdp import events, gait, observations, reach, rewards, targets, terminations, velocity
from mjtrain.mdp.observations import ctrl_rel
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations
from mjtrain.sim.robots.measured import find_feet
from mjtrain.sim.robots.start import make_start
from support.envs import NUM_ENVS, actions_for, make_env

QUADRUPED = load_task("Quadruped-Velocity-Flat").env
CARTPOLE = load_task("Cartpole-Swingup").env
LEGS = ("FR", "FL", "RR", "RL")


def observing(**terms: ObservationTerm) -> EnvConfig:
    return replace(CARTPOLE, observations={"actor": terms})


def step_counter(env: Env) -> torch.Tensor:
    return env.episode_step[:, None].float()


# Observations


def test_noise_is_bounded_redrawn_and_off_at_play() -> None:
    term = ObservationTerm(func=step_counter, noise=0.25, scale=2.0)
    env = make_env(observing(count=term), num_envs=500)
    first = env.observe()["actor"].clone()
    assert torch.equal(env.observe()["actor"], first)  # looking twice does not draw twice
    assert first.abs().max() <= 0.5
    assert first.min() < -0.45
    assert first.max() > 0.45
    env.step(torch.zeros(500, 1))
    second = env.observe()["actor"] - 2.0
    assert not torch.equal(first, second)
    quiet = make_env(replace(observing(count=term), observation_noise=False))
    assert (quiet.observe()["actor"] == 0).all()


def test_history_shows_the_last_steps_oldest_first() -> None:
    env = make_env(replace(observing(count=ObservationTerm(func=step_counter, history=3)), episode_length_s=0.1))
    seen = [env.observe()["actor"][0].tolist()]
    for _ in range(6):
        env.step(torch.zeros(NUM_ENVS, 1))
        seen.append(env.observe()["actor"][0].tolist())
    assert seen == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 0], [0, 0, 1]]


def test_a_delayed_reading_arrives_late_by_a_lag_of_the_episode() -> None:
    env = make_env(observing(count=ObservationTerm(func=step_counter, delay=(1, 3))), num_envs=200)
    for _ in range(10):
        env.step(torch.zeros(200, 1))
    lags = 10 - env.observe()["actor"][:, 0]
    assert set(lags.tolist()) == {1.0, 2.0, 3.0}
    env.step(torch.zeros(200, 1))
    assert torch.equal(11 - env.observe()["actor"][:, 0], lags)
    mask = torch.arange(200) < 100
    env.reset(mask)
    assert (env.observe()["actor"][mask] == 0).all()
    assert torch.equal(11 - env.observe()["actor"][~mask, 0], lags[~mask])


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (ObservationTerm(func=step_counter, history=0), r"--env.observations.actor.count.history 0"),
        (ObservationTerm(func=step_counter, delay=(2, 1)), r"--env.observations.actor.count.delay 2 1"),
    ],
)
def test_a_memory_that_cannot_be_is_the_users_error(term: ObservationTerm, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_env(observing(count=term))


def test_groups_that_share_a_function_ask_it_once() -> None:
    calls = []

    def counted(env: Env) -> torch.Tensor:
        calls.append(1)
        return step_counter(env)

    term = ObservationTerm(func=counted)
    env = make_env(replace(CARTPOLE, observations={"actor": {"a": term}, "critic": {"b": replace(term, scale=2.0)}}))
    calls.clear()
    env.step(torch.zeros(NUM_ENVS, 1))
    assert len(calls) == 1
    assert torch.equal(env.observe()["critic"], 2 * env.observe()["actor"])


def test_observations_of_the_quadruped() -> None:
    env = make_env(QUADRUPED)
    home = env.engine.layout.default_qpos[7:]
    assert torch.allclose(
        observations.joint_pos_rel(env, joints=(".*_(hip|thigh|calf)",)),
        env.qpos((".*_hip", ".*_thigh", ".*_calf")) - home,
    )
    assert torch.equal(env.qpos((".*_hip", ".*_thigh", ".*_calf")), env.state.qpos[:, 7:])
    assert torch.equal(
        observations.sensors(env, sensors=("RL_foot_contact", "FR_foot_contact")),
        torch.cat([env.sensor("RL_foot_contact"), env.sensor("FR_foot_contact")], dim=1),
    )
    up = env.sensor("up")
    assert torch.allclose(up, torch.tensor([0.0, 0.0, 1.0]).expand_as(up), atol=1e-5)


# Actions


def test_actions_carry_noise_that_can_be_turned_off() -> None:
    push = replace(CARTPOLE.actions["push"], scale=0.5, noise=0.1)
    noisy, quiet = (
        make_env(replace(CARTPOLE, actions={"push": push}, observation_noise=on), num_envs=500) for on in (True, False)
    )
    for env in (noisy, quiet):
        env.step(torch.full((500, 1), 3.0))  # clipped to 1
    assert torch.equal(quiet.state.ctrl, torch.full((500, 1), 0.5))
    missed = noisy.state.ctrl - 0.5
    assert missed.abs().max() <= 0.1
    assert missed.std() == pytest.approx(0.1 / 3**0.5, rel=0.1)
    assert torch.equal(noisy.action, torch.full((500, 1), 3.0)), "the policy is told what it asked for"


def test_a_delayed_action_takes_effect_late() -> None:
    push = replace(CARTPOLE.actions["push"], delay=(2, 2))
    env = make_env(replace(CARTPOLE, actions={"push": push}))
    for value in (0.1, 0.2, 0.3, 0.4):
        env.step(torch.full((NUM_ENVS, 1), value))
    assert torch.allclose(env.state.ctrl, torch.full((NUM_ENVS, 1), 0.2))
    assert torch.allclose(env.action, torch.full((NUM_ENVS, 1), 0.4))
    env.reset(torch.ones(NUM_ENVS, dtype=torch.bool))
    env.step(torch.full((NUM_ENVS, 1), 0.9))
    assert (env.state.ctrl == 0).all()
    with pytest.raises(RequestError, match=r"--env.actions.push.delay -1 0"):
        make_env(replace(CARTPOLE, actions={"push": replace(push, delay=(-1, 0))}))


def test_joint_targets_are_relative_to_home() -> None:
    env = make_env(QUADRUPED)
    action = actions_for(env, 1)[0]
    env.step(action)
    assert torch.allclose(env.state.ctrl, env.engine.layout.default_ctrl + 0.3 * action)


def test_relative_actions_add_up_within_the_range_of_the_actuator() -> None:
    legs = replace(QUADRUPED.actions["legs"], relative=True, scale=0.5, delay=(0, 0))
    env = make_env(replace(QUADRUPED, actions={"legs": legs}))
    home = env.engine.layout.default_ctrl
    low, high = env.engine.layout.ctrl_range.T
    expected = home.repeat(NUM_ENVS, 1)
    for action in actions_for(env, 12):
        _, _, terminated, truncated = env.step(action)
        expected = (expected + 0.5 * action.clamp(-1, 1)).clamp(low, high)
        ended = terminated | truncated
        assert torch.allclose(env.state.ctrl[~ended], expected[~ended], atol=1e-6)
        expected = torch.where(ended[:, None], home, expected)
        assert torch.allclose(ctrl_rel(env), expected - home, atol=1e-6)
    assert ((expected == low) | (expected == high)).any()
    worlds = torch.arange(NUM_ENVS) < 2
    env.reset(worlds)
    assert (ctrl_rel(env)[worlds] == 0).all()
    assert torch.allclose(ctrl_rel(env)[~worlds], (expected - home)[~worlds], atol=1e-6)


def test_relative_actions_stay_in_range_beside_a_term_with_a_base() -> None:
    legs = QUADRUPED.actions["legs"]
    hip = replace(legs, actuators=("FR_hip",), relative=True, scale=1.0)
    thigh = replace(legs, actuators=("FR_thigh",), from_home=False, base=lambda env: torch.zeros(env.num_envs, 1))
    env = make_env(replace(QUADRUPED, actions={"hip": hip, "thigh": thigh}))
    for _ in range(10):
        env.step(torch.ones(NUM_ENVS, 2))
    low, high = env.engine.layout.ctrl_range.T
    assert ((low - 1e-6 <= env.state.ctrl) & (env.state.ctrl <= high + 1e-6)).all()


def test_relative_actions_do_not_add_up_their_noise() -> None:
    push = replace(CARTPOLE.actions["push"], relative=True, scale=0.1, noise=0.05)
    env = make_env(replace(CARTPOLE, actions={"push": push}), num_envs=200)
    for count in range(1, 6):
        env.step(torch.ones(200, 1))
        assert (env.state.ctrl - 0.1 * count).abs().max() <= 0.05 + 1e-6
    assert torch.allclose(ctrl_rel(env), torch.full((200, 1), 0.5))


def test_each_actuator_may_have_a_scale_of_its_own() -> None:
    scales = {".*_(hip|thigh)": 0.3, "F._calf": 0.5, "R._calf": 0.6}
    config = replace(QUADRUPED, actions={"legs": replace(QUADRUPED.actions["legs"], scale=scales, delay=(0, 0))})
    env = make_env(config)
    expected = {"hip": (0.3, 0.3), "thigh": (0.3, 0.3), "calf": (0.5, 0.6)}
    rows = {row["actuator"]: row["scale"] for row in env.action_table}
    assert rows == {f"{leg}_{part}": expected[part][leg[0] == "R"] for leg in LEGS for part in expected}
    action = actions_for(env, 1)[0]
    env.step(action)
    scale = torch.tensor([row["scale"] for row in env.action_table])
    assert torch.allclose(env.state.ctrl, env.engine.layout.default_ctrl + scale * action)
    assert from_plain(EnvConfig, to_plain(config)).actions["legs"].scale == scales
    problems = find_mirror_problems(env, ("actor",))
    assert problems == []
    uneven = {"FL_.*": 0.2, "(FR|R.)_.*": 0.3}
    legs = replace(QUADRUPED.actions["legs"], scale=uneven)
    problems = find_mirror_problems(make_env(replace(QUADRUPED, actions={"legs": legs})), ("actor",))
    assert any("FL_hip" in problem and "scale" in problem for problem in problems)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ({".*_hip": 0.3, ".*_thigh": 0.3, ".*_knee": 0.3}, r"scale: '.*_knee' matches no actuator"),
        ({".*": 0.3, ".*_calf": 0.5}, r"scale: actuator FR_calf is matched by '\.\*' and by"),
        ({".*_hip": 0.3}, r"scale: no expression matches FR_thigh, "),
        ({".*": 0.0}, r"scale\.\.\* 0: must be other than 0"),
        ({".*": "0.3"}, r"scale\.\.\*: is the string"),
        ({"(": 0.3}, r"scale: '\(' is not a valid regular expression"),
        (0.0, "scale 0: must be other than 0"),
    ],
)
def test_a_scale_that_does_not_fit_the_actuators_is_the_users_error(scale: Any, message: str) -> None:
    legs = replace(QUADRUPED.actions["legs"], scale=scale)
    with pytest.raises(RequestError, match=rf"^--env\.actions\.legs\.{message}"):
        make_env(replace(QUADRUPED, actions={"legs": legs}))


# Commands


def test_commands_are_drawn_anew_when_their_time_is_over() -> None:
    term = replace(QUADRUPED.commands["velocity"], resampling_s=(0.1, 0.2), refine=None, refine_params={})
    env = make_env(replace(QUADRUPED, commands={"velocity": term}), num_envs=100)
    held = torch.zeros(100)
    lengths = []
    previous = env.command("velocity").clone()
    for step in range(60):
        env.step(torch.zeros(100, 12))
        changed = (env.command("velocity") != previous).any(dim=1)
        held += 1
        if step > 10:
            lengths += held[changed].tolist()
        held[changed] = 0
        previous = env.command("velocity").clone()
    assert set(lengths) == {5.0, 6.0, 7.0, 8.0, 9.0, 10.0}


def test_velocity_commands_keep_to_their_bounds() -> None:
    env = make_env(QUADRUPED, num_envs=4000)
    drawn = velocity.velocity_command(env, speed=1.5, turn=0.7, standing_fraction=0.25, heading_fraction=0.5)
    speed = drawn[:, :2].norm(dim=1)
    stands = (drawn[:, :3] == 0).all(dim=1)
    assert 0.22 < stands.float().mean() < 0.28
    assert 1.45 < speed.max() <= 1.5
    assert 0.65 < drawn[:, 2].abs().max() <= 0.7
    assert 0.45 < drawn[~stands, 4].mean() < 0.55
    assert (drawn[stands, 4] == 0).all()
    quadrants = (drawn[:, 0] > 0).int() * 2 + (drawn[:, 1] > 0).int()
    assert torch.bincount(quadrants[~stands]).min() > 600


def test_velocity_commands_may_be_slower_to_the_sides() -> None:
    env = make_env(QUADRUPED, num_envs=500)
    drawn = velocity.velocity_command(env, speed=1.0, turn=0.0, standing_fraction=0.0, sideways=0.4)
    ellipse = (drawn[:, 0].square() + (drawn[:, 1] / 0.4).square()).sqrt()
    assert ellipse.max() == pytest.approx(1.0, abs=0.01)
    assert drawn[:, 1].abs().max() == pytest.approx(0.4, abs=0.02)


def test_a_heading_is_held_and_speed_changes_gently() -> None:
    env = make_env(QUADRUPED)
    params = {"joint": "base", "gain": 0.5, "turn": 0.6, "acceleration": 2.0, "turn_acceleration": 5.0}
    drawn = torch.zeros(NUM_ENVS, 5)
    drawn[:, :2] = torch.tensor([0.6, -0.8])
    heading = torch.tensor([0.2, -0.2, 2.0, -2.0, 0.0, 3.1])
    drawn[:, 3] = rotations.wrap(rotations.yaw(env.qpos("base")[:, 3:7]) + heading)
    drawn[:, 4] = 1.0
    command = velocity.approach(env, drawn, None, **params)
    assert (command == 0).all()
    for step in range(1, 40):
        command = velocity.approach(env, drawn, command, **params)
        expected = min(1.0, step * 2.0 * 0.02) * torch.tensor([0.6, -0.8]).expand(NUM_ENVS, 2)
        assert torch.allclose(command[:, :2], expected, atol=1e-5)
        assert command[:, 2].abs().max() <= min(0.6, step * 5.0 * 0.02) + 1e-6
    assert torch.allclose(command[:, 2], torch.tensor([0.1, -0.1, 0.6, -0.6, 0.0, 0.6]), atol=1e-5)
    drawn[:, 4] = 0.0
    drawn[:, 2] = 0.55
    assert torch.allclose(velocity.approach(env, drawn, command, **params)[2, 2], torch.tensor(0.55))


def test_a_curriculum_widens_the_commands() -> None:
    def config(level: float) -> EnvConfig:
        term = QUADRUPED.commands["velocity"]
        ranges = CurriculumTerm(func=lambda env, level: level, initial=(level, level))
        command = replace(term, params={**term.params, "standing_fraction": 0.0, "curriculum": "range"})
        return replace(QUADRUPED, commands={"velocity": command}, curriculum={"range": ranges})

    narrow, wide = (make_env(config(level), num_envs=500).drawn_command("velocity") for level in (0.0, 1.0))
    assert narrow[:, :2].norm(dim=1).max() <= 0.3 + 1e-6
    assert wide[:, :2].norm(dim=1).max() > 0.9


# Curricula


def test_levels_follow_tracking_and_only_at_the_end_of_episodes() -> None:
    tracking = {"reward": "alive", "full": 1.0, "share": 0.8, "step": 0.1}
    at_the_end = {"reward": "last", "full": 0.2, "share": 0.8, "step": 0.1}
    config = replace(
        CARTPOLE,
        episode_length_s=0.1,
        rewards={
            "alive": RewardTerm(func=rewards.is_alive, weight=1.0),
            "last": RewardTerm(func=lambda env: (env.episode_step == 5).float(), weight=1.0),
        },
        curriculum={
            name: CurriculumTerm(func=velocity.command_level, params=params, initial=(0.5, 0.5))
            for name, params in (("range", tracking), ("last", at_the_end))
        },
    )
    env = make_env(config)
    for _ in range(4):
        env.step(torch.zeros(NUM_ENVS, 1))
    assert torch.allclose(env.level("range"), torch.full((NUM_ENVS,), 0.5))
    env.step(torch.zeros(NUM_ENVS, 1))
    for name in ("range", "last"):  # the last env step of an episode counts
        assert torch.allclose(env.level(name), torch.full((NUM_ENVS,), 0.6))
    for _ in range(40):
        env.step(torch.zeros(NUM_ENVS, 1))
    assert (env.level("range") == 1.0).all()  # the upper bound
    summary = env.statistics.summarise(env.statistics.pop().tolist())
    assert math.isclose(summary["curriculum/range"], 1.0)


@pytest.mark.parametrize(("step", "above"), [({}, 5.0), ({"step": 2.0}, 6.0)])
def test_terrain_levels_rise_with_distance_and_fall_without(step: dict[str, float], above: float) -> None:
    config = replace(
        QUADRUPED,
        curriculum={
            "terrain": CurriculumTerm(
                func=velocity.terrain_level,
                params={"joint": "base", "command": "velocity", "far_m": 3.0, **step},
                initial=(4.0, 4.0),
                bounds=(0.0, 9.0),
            )
        },
        terminations={},
    )
    env = make_env(config, seed=3)
    for _ in range(50):
        env.step(torch.zeros(NUM_ENVS, 12))
    env.start_qpos[0, :2] = env.qpos("base")[0, :2] + 4.0
    env.start_qpos[1:, :2] = env.qpos("base")[1:, :2]
    env._commands.values["velocity"][:] = torch.tensor([1.0, 0.0, 0.0])
    env._commands.values["velocity"][5] = 0.0
    env._curriculum.update(env, torch.tensor([True, True, True, True, False, True]))
    assert env.level("terrain").tolist() == [above, 3.0, 3.0, 3.0, 4.0, 4.0]


# Events


def test_pushes_come_from_time_to_time_and_spare_the_others() -> None:
    push = EventTerm(
        func=events.push_by_setting_velocity,
        mode="interval",
        interval_s=(0.1, 0.3),
        params={"joint": "base", "linear": 0.5, "angular": 0.2},
    )
    config = replace(QUADRUPED, events={"push": push})
    env = make_env(config, num_envs=50)
    still = make_env(replace(config, events={}), num_envs=50)
    pushed = torch.zeros(50, dtype=torch.bool)
    for _ in range(16):
        pushed |= env._events._left["push"] <= 1
        env.step(torch.zeros(50, 12))
        still.step(torch.zeros(50, 12))
        same = (env.state.qpos == still.state.qpos).all(dim=1)
        assert torch.equal(same, ~pushed)
    assert pushed.all()


def test_a_push_changes_the_velocity_by_no_more_than_asked() -> None:
    env = make_env(QUADRUPED, num_envs=300)
    worlds = Worlds(
        mask=torch.ones(300, dtype=torch.bool), qpos=env.state.qpos.clone(), qvel=torch.zeros_like(env.state.qvel)
    )
    events.push_by_setting_velocity(env, worlds, joint="base", linear=0.5, angular=0.2)
    assert 0.45 < worlds.qvel[:, :2].abs().max() <= 0.5
    assert (worlds.qvel[:, 2] == 0).all()
    assert 0.18 < worlds.qvel[:, 3:6].abs().max() <= 0.2
    assert (worlds.qvel[:, 6:] == 0).all()


def test_a_velocity_that_was_set_is_where_the_next_step_begins() -> None:
    for engine in ("native", "warp"):
        env = make_env(replace(QUADRUPED, events={}), engine=engine)
        mask = torch.arange(NUM_ENVS) < 2
        qvel = torch.zeros_like(env.state.qvel)
        qvel[:, 0] = 1.0
        before = env.state.qpos.clone()
        env.engine.set_qvel(mask, qvel)
        assert torch.equal(env.state.qpos, before)
        env.engine.step(env.engine.layout.default_ctrl.repeat(NUM_ENVS, 1), 1)
        moved = env.qpos("base")[:, 0] - before[:, 0]
        assert (moved[mask] > 0.004).all()
        assert (moved[~mask].abs() < 0.001).all()


def test_random_poses_keep_to_their_bounds() -> None:
    env = make_env(QUADRUPED, num_envs=500)
    offset = env.qpos("base")[:, :2]
    assert 0.45 < offset.abs().max() <= 0.5
    yaw = rotations.yaw(env.qpos("base")[:, 3:7])
    assert yaw.max() > 3.0
    assert yaw.min() < -3.0
    assert torch.allclose(env.qpos("base")[:, 3:7].norm(dim=1), torch.ones(500))
    factor = env.qpos((".*_thigh",)) / 0.9
    assert 0.85 - 1e-5 <= factor.min() < 0.87
    assert 1.13 < factor.max() <= 1.15 + 1e-5
    height = env.qpos("base")[:, 2] - 0.285
    assert 0.04 - 1e-5 <= height.min() < 0.042
    assert 0.058 < height.max() <= 0.06 + 1e-5


# Rewards and terminations of the quadruped


def test_tracking_is_one_without_error_and_1_over_e_at_the_tolerance() -> None:
    env = make_env(QUADRUPED)
    velocity_now, turning_now = env.sensor("base_velocity"), env.sensor("base_angular_velocity")
    env._commands.values["velocity"][:] = torch.cat([velocity_now[:, :2], turning_now[:, 2:]], dim=1)
    planar = {"command": "velocity", "sensor": "base_velocity", "tolerance": 0.4}
    turn = {"command": "velocity", "sensor": "base_angular_velocity", "tolerance": 0.5}
    assert torch.allclose(velocity.track_lin_vel_xy(env, **planar), torch.ones(NUM_ENVS))
    assert torch.allclose(velocity.track_ang_vel_z(env, **turn), torch.ones(NUM_ENVS))
    env._commands.values["velocity"][:, 1] += 0.4
    env._commands.values["velocity"][:, 2] -= 0.5
    assert torch.allclose(velocity.track_lin_vel_xy(env, **planar), torch.full((NUM_ENVS,), math.exp(-1)))
    assert torch.allclose(velocity.track_ang_vel_z(env, **turn), torch.full((NUM_ENVS,), math.exp(-1)))


def test_the_clock_swings_diagonal_legs_together_and_stops_for_standing() -> None:
    env = make_env(QUADRUPED)
    step = {"frequency_hz": 2.0, "offsets": (0.0, 0.5, 0.5, 0.0), "duty": 0.6, "command": "velocity"}
    env._commands.values["velocity"][:] = torch.tensor([0.5, 0.0, 0.0])
    env._commands.values["velocity"][0] = 0.0
    swings = []
    for count in range(25):
        env.episode_step.fill_(count)
        swings.append(gait.swing(env, **step))
    swings = torch.stack(swings)
    assert (swings[:, 0] == 0).all()
    assert torch.equal(swings[:, 1, 0], swings[:, 1, 3])
    assert torch.equal(swings[:, 1, 1], swings[:, 1, 2])
    assert 0.35 < (swings[:, 1] > 0).float().mean() < 0.45
    assert not ((swings[:, 1, 0] > 0) & (swings[:, 1, 1] > 0)).any()
    clock = gait.clock(env, frequency_hz=2.0, command="velocity")
    assert (clock[0] == 0).all()
    assert torch.allclose(clock[1:].norm(dim=1), torch.ones(NUM_ENVS - 1))


def test_a_robot_that_is_pushed_while_it_stands_steps_until_it_has_stopped() -> None:
    env = make_env(QUADRUPED)
    env._commands.values["velocity"][:] = 0.0
    motion = env.state.qvel.clone()
    motion[:, :3] = 0.0
    motion[0, 1], motion[1, 0], motion[2, 2] = 0.5, 0.1, 0.5  # pushed sideways, hardly at all, and upwards
    env.engine.reset(torch.ones(NUM_ENVS, dtype=torch.bool), env.state.qpos.clone(), motion)
    env.episode_step.fill_(20)  # 0.8 of a stride: two legs should swing
    step: dict[str, Any] = {"frequency_hz": 2.0, "command": "velocity", "velocity_sensor": "base_velocity"}
    legs: dict[str, Any] = {"offsets": (0.0, 0.5, 0.5, 0.0), "duty": 0.6}
    assert (gait.clock(env, **step) != 0).any(dim=1).tolist()[:3] == [True, False, False]
    assert (gait.clock(env, **step, stopped_below=0.05) != 0).any(dim=1).tolist()[:3] == [True, True, False]
    assert (gait.swing(env, **step, **legs) > 0).sum(dim=1).tolist()[:3] == [2, 0, 0]
    del step["velocity_sensor"]
    assert (gait.clock(env, **step) == 0).all()


def test_feet_that_stand_when_they_should_keep_step() -> None:
    env = make_env(QUADRUPED)
    for _ in range(30):
        env.step(torch.zeros(NUM_ENVS, 12))
    step: dict[str, Any] = {"frequency_hz": 2.0, "offsets": (0.0, 0.5, 0.5, 0.0), "duty": 0.6, "command": "velocity"}
    contacts = tuple(f"{leg}_foot_contact" for leg in LEGS)
    positions = tuple(f"{leg}_foot_position" for leg in LEGS)
    env._commands.values["velocity"][:] = 0.0
    assert (gait.feet_gait(env, contact_sensors=contacts, **step) == 1).all()
    env._commands.values["velocity"][:] = 0.5
    env.episode_step.fill_(20)  # 0.8 of a stride: two legs should swing, and all stand
    assert (gait.feet_gait(env, contact_sensors=contacts, **step) == 0.5).all()
    heights = gait.foot_heights(env, sensors=positions, radius_m=0.02)
    assert heights.abs().max() < 0.005
    lift = {"position_sensors": positions, "radius_m": 0.02, "height_m": 0.08, "tolerance_m": 0.08}
    expected = math.exp(-2 * (math.sin(math.pi * 0.5) ** 2) ** 2)
    assert torch.allclose(gait.feet_clearance(env, **lift, **step), torch.full((NUM_ENVS,), expected), atol=0.1)


def test_weight_on_feet_that_should_swing_counts_up_to_a_limit() -> None:
    env = make_env(QUADRUPED)
    for _ in range(30):
        env.step(torch.zeros(NUM_ENVS, 12))
    step: dict[str, Any] = {"frequency_hz": 2.0, "offsets": (0.0, 0.5, 0.5, 0.0), "duty": 0.6, "command": "velocity"}
    contacts = tuple(f"{leg}_foot_contact" for leg in LEGS)
    env._commands.values["velocity"][:] = 0.5
    env.episode_step.fill_(20)  # FR and RL should swing, and stand
    forces = env.sensor(contacts)
    load = gait.swing_load(env, contact_sensors=contacts, load_n=1000.0, **step)
    assert torch.allclose(load, (forces[:, 0] + forces[:, 3]) / 1000)
    assert load.min() > 0.03
    assert (gait.swing_load(env, contact_sensors=contacts, load_n=5.0, **step) == 2).all()
    env._commands.values["velocity"][:] = 0.0
    assert (gait.swing_load(env, contact_sensors=contacts, load_n=5.0, **step) == 0).all()


def test_legs_bend_while_their_feet_swing() -> None:
    env = make_env(QUADRUPED)
    step: dict[str, Any] = {"frequency_hz": 2.0, "offsets": (0.0, 0.5, 0.5, 0.0), "duty": 0.6, "command": "velocity"}
    bend: dict[str, Any] = {"joints": (".*_(thigh|calf)",), "amplitudes": (0.3, -0.6), "tolerance": 0.5}
    env._commands.values["velocity"][:] = 0.5
    env.episode_step.fill_(20)  # 0.8 of a stride: FR and RL are in mid-swing
    pose = env.engine.layout.default_qpos.repeat(NUM_ENVS, 1)
    everywhere, still = torch.ones(NUM_ENVS, dtype=torch.bool), torch.zeros_like(env.state.qvel)
    env.engine.reset(everywhere, pose, still)
    unbent = math.exp(-2 * (0.3**2 + 0.6**2) / 0.5**2)
    assert torch.allclose(gait.swing_posture(env, **bend, **step), torch.full((NUM_ENVS,), unbent), atol=1e-5)
    pose[:, [8, 17]] += 0.3
    pose[:, [9, 18]] -= 0.6
    env.engine.reset(everywhere, pose, still)
    assert torch.allclose(gait.swing_posture(env, **bend, **step), torch.ones(NUM_ENVS), atol=1e-5)
    with pytest.raises(RequestError, match="joints are 12, and offsets are for 4 feet"):
        gait.swing_posture(env, **bend | {"joints": (".*_(hip|thigh|calf)",)}, **step)


def test_the_stepping_controller_walks_and_turns_as_commanded() -> None:
    env = make_env(replace(QUADRUPED, observation_noise=False, events={}), num_envs=32)
    commands, velocities, turning = [], [], []
    for step in range(120):
        _, _, terminated, _ = env.step(env.controller("trot"))
        assert not terminated.any()
        if step >= 50:
            commands.append(env.command("velocity").clone())
            velocities.append(env.sensor("base_velocity")[:, :2].clone())
            turning.append(env.sensor("base_angular_velocity")[:, 2:].clone())
    wanted, found = torch.cat(commands), torch.cat([torch.cat(velocities), torch.cat(turning)], dim=1)
    along, left, turn = (wanted * found).sum(dim=0) / wanted.square().sum(dim=0)
    assert along > 0.3
    assert left > 0.3
    assert 0.5 < turn < 2.0


def test_a_control_moves_the_foot_that_it_should() -> None:
    env = make_env(QUADRUPED)
    model, names = env.engine.model, [row["actuator"] for row in env.action_table]
    default, per_displacement = find_feet(model, [f"{leg}_foot_position" for leg in LEGS], names)
    data = make_start(model)
    for foot in range(4):
        moved = np.zeros((4, 3))
        moved[foot] = 0.004, -0.003, 0.005
        mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
        data.qpos[7:] += moved.reshape(-1) @ per_displacement
        mujoco.mj_forward(model, data)
        places = np.array([data.sensor(f"{leg}_foot_position").data for leg in LEGS]) - data.xpos[1]
        np.testing.assert_allclose(places - default, moved, atol=3e-4)


def test_position_actuators_may_be_motors_that_get_weaker_with_their_speed() -> None:
    motors = ActuatorConfig(kp=30.0, kv=1.0, stall_torque=40.0, no_load_speed=20.0)
    weaker = replace(
        QUADRUPED, robot=replace(QUADRUPED.robot, actuators={"legs": motors}), observation_noise=False, events={}
    )
    env = make_env(weaker, num_envs=1)
    plain = make_env(
        replace(weaker, robot=replace(weaker.robot, actuators={"legs": ActuatorConfig(kp=30.0)})), num_envs=1
    )
    for each in (env, plain):
        each.episode_step.fill_(20)
        each._commands.values["velocity"][:] = 0.5
    assert torch.allclose(env.controller("trot"), plain.controller("trot"))
    push = replace(motors, type="velocity", kp=0.0)
    env = make_env(replace(weaker, robot=replace(weaker.robot, actuators={"legs": push})), num_envs=1)
    with pytest.raises(RequestError, match="actuator FR_hip: does not set the position of a hinge or a slide"):
        env.controller("trot")


def test_a_controller_without_position_actuators_is_refused() -> None:
    with pytest.raises(RequestError, match="does not set the position of a hinge or a slide"):
        find_feet(make_env(CARTPOLE).engine.model, [], ["push"])
    with pytest.raises(RequestError, match="is not a framepos sensor of a part of the robot"):
        find_feet(make_env(QUADRUPED).engine.model, ["up"], ["FR_hip"])


def test_a_fallen_robot_is_noticed() -> None:
    config = replace(QUADRUPED, events={}, terminations={})
    env = make_env(config)
    qpos = env.state.qpos.clone()
    qpos[0, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0])  # on its back
    qpos[1, 3:7] = rotations.from_euler(torch.tensor(1.5), torch.tensor(0.0), torch.tensor(0.3))
    qpos[2, 7:] = torch.tensor([0.0, 2.9, -2.7] * 4)  # legs folded: it will lie on its trunk
    env.engine.reset(torch.ones(NUM_ENVS, dtype=torch.bool), qpos, torch.zeros_like(env.state.qvel))
    tilted = terminations.bad_orientation(env, sensor="up", limit=1.2)
    assert tilted.tolist() == [True, True, False, False, False, False]
    env.engine.step(env.engine.layout.default_ctrl.repeat(NUM_ENVS, 1) * torch.tensor([1.0] * 12), 4)
    for _ in range(40):
        folded = env.engine.layout.default_ctrl.repeat(NUM_ENVS, 1)
        folded[2] = torch.tensor([0.0, 2.9, -2.7] * 4)
        env.engine.step(folded, 4)
    touching = terminations.illegal_contact(env, sensors=("trunk_contact",))
    assert touching[2]
    assert not touching[3:].any()
    low = terminations.root_height_below_minimum(env, joint="base", height_m=0.15)
    assert low[2:].tolist() == [True, False, False, False]


def test_penalties_of_the_quadruped() -> None:
    env = make_env(QUADRUPED)
    env.step(actions_for(env, 1)[0])
    assert torch.allclose(rewards.joint_speed(env, joints=(".*_calf",)), env.qvel((".*_calf",)).square().sum(dim=1))
    torques = env.sensor((".*_torque",))
    assert torques.shape == (NUM_ENVS, 12)
    assert torch.allclose(rewards.sensors_squared(env, sensors=(".*_torque",)), torques.square().sum(dim=1))
    hips = env.qpos((".*_hip",)) - torch.tensor([-0.1, 0.1, -0.1, 0.1])
    assert torch.allclose(rewards.joint_deviation(env, joints=(".*_hip",)), hips.square().sum(dim=1), atol=1e-6)
    assert torch.equal(velocity.lin_vel_z(env, sensor="base_velocity"), env.sensor("base_velocity")[:, 2] ** 2)


# The arm


def test_pose_errors_vanish_at_the_pose() -> None:
    env = make_env(load_task("Arm-Reach").env)
    pose = torch.cat([env.sensor("tool_position"), env.sensor("tool_orientation")], dim=1)
    env._commands.values["pose"][:] = pose
    position = {"command": "pose", "position_sensor": "tool_position"}
    orientation = {"command": "pose", "orientation_sensor": "tool_orientation"}
    assert reach.position_error(env, **position).abs().max() < 1e-6
    assert reach.orientation_error(env, **orientation).abs().max() < 1e-3
    turn = rotations.from_yaw(torch.full((NUM_ENVS,), 0.5))
    env._commands.values["pose"][:, 3:] = -rotations.multiply(turn, pose[:, 3:])  # the same turn with the other sign
    assert torch.allclose(
        reach.orientation_error(env, **orientation), torch.tensor([0.0, 0.0, 0.5]).expand(NUM_ENVS, 3), atol=1e-3
    )
    env._commands.values["pose"][:, 0] += 0.1
    near = reach.near_position(env, tolerance_m=0.1, **position)
    assert torch.allclose(near, torch.full((NUM_ENVS,), 1 - math.tanh(1.0)), atol=1e-5)


def test_inverse_kinematics_brings_the_tool_to_the_pose() -> None:
    config = load_task("Arm-Reach").env
    env = make_env(replace(config, observation_noise=False), num_envs=64)
    for _ in range(70):  # a command lasts for 150 steps
        env.step(env.controller("inverse_kinematics"))
    where = {"command": "pose", "position_sensor": "tool_position"}
    far = reach.distance(env, **where) > 0.01
    assert far.float().mean() < 0.1  # an arm can meet a limit of its joints on the way
    turned = reach.angle(env, command="pose", orientation_sensor="tool_orientation")
    assert turned[~far].max() < 0.02


FLOATING_ARM = """
<mujoco>
  <worldbody>
    <body name="base" pos="0 0 1" gravcomp="1">
      <freejoint name="base"/>
      <geom size="0.1"/>
      <body name="upper" pos="0.1 0 0" gravcomp="1">
        <joint name="pan" axis="0 0 1"/>
        <joint name="lift" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03"/>
        <body name="lower" pos="0.3 0 0" euler="30 0 0" gravcomp="1">
          <joint name="slide" type="slide" axis="1 0 0"/>
          <joint name="roll" axis="1 0 0" pos="0 0.02 0"/>
          <geom type="capsule" fromto="0 0 0 0.2 0 0" size="0.03"/>
          <site name="tool" pos="0.2 0.01 0.05" euler="0 40 10"/>
          <body name="finger" pos="0.2 0 0" gravcomp="1">
            <joint name="finger" type="slide" axis="0 1 0"/>
            <geom size="0.02"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="finger" joint="finger" kp="50"/>
    <position name="pan" joint="pan" kp="50" gear="2"/>
    <position name="lift" joint="lift" kp="50"/>
    <position name="slide" joint="slide" kp="50" gear="-3"/>
    <position name="roll" joint="roll" kp="50"/>
  </actuator>
  <sensor>
    <framepos name="tool_position" objtype="site" objname="tool"/>
    <framequat name="tool_orientation" objtype="site" objname="tool"/>
    <framequat name="upper_orientation" objtype="body" objname="upper"/>
    <framequat name="relative" objtype="site" objname="tool" reftype="body" refname="base"/>
  </sensor>
</mujoco>
"""
TOOL: dict[str, Any] = {"position_sensor": "tool_position", "orientation_sensor": "tool_orientation"}


def floating_arm(folder: Path) -> Env:
    """An arm on a floating base, with gears, a slide, and a finger that does not move the tool."""
    (folder / "arm.xml").write_text(FLOATING_ARM)
    box: dict[str, Any] = dict.fromkeys(("x", "y", "z", "roll", "pitch", "yaw"), (0.3, 0.9))
    config = EnvConfig(
        robot=str(folder / "arm.xml"),
        decimation=1,
        episode_length_s=10.0,
        actions={"joints": ActionTerm(actuators=("roll", "pan", "finger", "lift", "slide"), scale=0.5, offset=0.2)},
        commands={"pose": CommandTerm(func=reach.pose_command, params=box)},
        observations={"actor": {"position": ObservationTerm(func=observations.joint_pos, params={"joint": "pan"})}},
        rewards={"effort": RewardTerm(func=rewards.action_energy, weight=-1.0)},
        terminations={},
    )
    return make_env(config, num_envs=4)


def test_a_step_of_inverse_kinematics_is_damped_least_squares(tmp_path: Path) -> None:
    env = floating_arm(tmp_path)
    random = torch.Generator().manual_seed(3)
    for _ in range(20):
        env.step(torch.randn(4, 5, generator=random))
    names = [row["actuator"] for row in env.action_table]
    actions = reach.inverse_kinematics(env, command="pose", damping=0.3, **TOOL)
    model = env.engine.model
    data = mujoco.MjData(model)
    joints = [model.joint(name) for name in names]
    gears = np.array([model.actuator(name).gear[0] for name in names])
    for world in range(4):
        data.qpos[:] = env.state.qpos[world]
        mujoco.mj_forward(model, data)
        full = np.zeros((6, model.nv))
        mujoco.mj_jacSite(model, data, full[:3], full[3:], 0)
        jacobian = full[:, [int(joint.dofadr[0]) for joint in joints]]
        pose = env.command("pose")[world].double().numpy()
        turn, back, left = np.zeros(3), np.zeros(4), np.zeros(4)
        mujoco.mju_negQuat(back, data.sensor("tool_orientation").data)
        mujoco.mju_mulQuat(left, pose[3:], back)
        mujoco.mju_quat2Vel(turn, left, 1)
        error = np.concatenate([pose[:3] - data.site("tool").xpos, turn])
        step = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + 0.09 * np.eye(6), error)
        wanted = gears * (data.qpos[[int(joint.qposadr[0]) for joint in joints]] + step)
        np.testing.assert_allclose(0.5 * actions[world] + 0.2, wanted, atol=1e-4)


def test_inverse_kinematics_refuses_sensors_that_do_not_fit(tmp_path: Path) -> None:
    env = floating_arm(tmp_path)
    for sensor, words in (
        ("upper_orientation", "is not on the same body"),
        ("relative", "relative to a part of the robot"),
    ):
        asked: dict[str, Any] = TOOL | {"orientation_sensor": sensor}
        with pytest.raises(RequestError, match=words):
            reach.inverse_kinematics(env, command="pose", **asked)
    asked = TOOL | {"position_sensor": "upper_orientation"}
    with pytest.raises(RequestError, match="is not a framepos sensor"):
        reach.inverse_kinematics(env, command="pose", **asked)


def test_drawn_poses_lie_in_the_box() -> None:
    env = make_env(load_task("Arm-Reach").env, num_envs=500)
    pose = env.command("pose")
    low, high = torch.tensor([0.3, -0.25, 0.2]), torch.tensor([0.6, 0.35, 0.55])
    assert (pose[:, :3] >= low - 1e-6).all()
    assert (pose[:, :3] <= high + 1e-6).all()
    assert torch.allclose(pose[:, 3:].norm(dim=1), torch.ones(500), atol=1e-5)


@pytest.mark.parametrize("bad", [CommandTerm(func=velocity.velocity_command, params={"speed": 1.0, "turn": 1.0})])
def test_a_command_without_refinement_is_what_was_drawn(bad: CommandTerm) -> None:
    env = make_env(replace(CARTPOLE, commands={"raw": bad}))
    assert env.command("raw").shape == (NUM_ENVS, 5)


def test_a_velocity_command_without_refinement_moves_by_its_velocity_alone() -> None:
    """Its draw has a heading, which is not a velocity."""
    drawn = CommandTerm(func=velocity.velocity_command, params={"speed": 1.0, "turn": 1.0, "standing_fraction": 0.5})
    env = make_env(replace(CARTPOLE, commands={"raw": drawn}), num_envs=64)
    stands = (env.command("raw")[:, :3] == 0).all(dim=1)
    assert 10 < stands.sum() < 54
    assert torch.equal(velocity.moving(env, "raw"), ~stands)
    assert torch.equal(gait.clock(env, frequency_hz=1.0, command="raw").any(dim=1), ~stands)


def test_a_command_without_a_velocity_is_named() -> None:
    place = CommandTerm(func=targets.planar_command, params={"radius": (0.1, 0.2)})
    env = make_env(replace(QUADRUPED, commands={"place": place, **QUADRUPED.commands}))
    sensed: dict[str, Any] = {"command": "place", "sensor": "base_velocity"}
    calls = (
        lambda: velocity.moving(env, "place"),
        lambda: velocity.track_lin_vel_xy(env, tolerance=1.0, **sensed),
        lambda: velocity.track_ang_vel_z(env, tolerance=1.0, **sensed),
        lambda: velocity.lin_vel_xy_error(env, **sensed),
        lambda: velocity.ang_vel_z_error(env, **sensed),
        lambda: velocity.terrain_level(env, torch.zeros(NUM_ENVS), joint="base", command="place", far_m=1.0),
    )
    for call in calls:
        with pytest.raises(RequestError, match="command place has 2 columns; one with a velocity begins with 3"):
            call()
    env.is_recorded = True
    assert velocity.track_lin_vel_xy(env, tolerance=1.0, **sensed).shape == (NUM_ENVS,)
