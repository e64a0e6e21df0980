"""Terms made by the helpers: checked by a type checker, complete with defaults, and the same data as by hand."""

# pyright: reportUnnecessaryTypeIgnoreComment=error
# (Where pyright no longer finds a mistake below, the comment that allows it becomes an error.)

from pathlib import Path

import yaml

from mjtrain import mdp
from mjtrain.config import (
    CommandTerm,
    ErrorTerm,
    EventTerm,
    ObservationTerm,
    RewardTerm,
    SuccessTerm,
    TerminationTerm,
    to_plain,
)
from mjtrain.config.plain import with_default_params
from mjtrain.mdp import events, gait, objects, observations, randomization, rewards, terminations, velocity
from mjtrain.runs.run_dir import list_changes, save_params

FEET = ("foot_contact",)


def test_a_helper_makes_the_term_that_one_could_write_by_hand() -> None:
    assert mdp.observation(observations.joint_pos, joint="hinge").replace(noise=0.1) == ObservationTerm(
        func=observations.joint_pos, params={"joint": "hinge"}, noise=0.1
    )
    assert mdp.reward(rewards.joint_speed, -0.1, joints=(".*",)) == RewardTerm(
        func=rewards.joint_speed, weight=-0.1, params={"joints": (".*",)}
    )
    assert mdp.truncation(terminations.time_out) == TerminationTerm(func=terminations.time_out, truncates=True)
    assert mdp.termination(terminations.bad_orientation, sensor="up", limit=1.0) == TerminationTerm(
        func=terminations.bad_orientation, params={"sensor": "up", "limit": 1.0}
    )
    assert mdp.success(objects.reached, command="goal", object="cube", tolerance=0.4).replace(
        hold_s=0.5
    ) == SuccessTerm(
        func=objects.reached,
        params={
            "command": "goal",
            "object": "cube",
            "tolerance": 0.4,
            "curriculum": "",
            "widest": 1.0,
        },
        hold_s=0.5,
    )
    push = {"joint": "base", "linear": 0.5, "angular": 0.3, "vertical": 0.0}
    assert mdp.interval_event(
        events.push_by_setting_velocity, (8.0, 12.0), joint="base", linear=0.5, angular=0.3
    ) == EventTerm(func=events.push_by_setting_velocity, params=push, mode="interval", interval_s=(8.0, 12.0))
    assert mdp.startup_event(randomization.gravity, offset=(0.0, 1.0)) == EventTerm(
        func=randomization.gravity, params={"offset": (0.0, 1.0)}, mode="startup"
    )
    error = mdp.error(velocity.lin_vel_xy_error, "m/s", command="velocity", sensor="speed")
    assert error == ErrorTerm(
        func=velocity.lin_vel_xy_error, unit="m/s", params={"command": "velocity", "sensor": "speed"}
    )
    level = mdp.curriculum(velocity.terrain_level, joint="base", command="velocity", far_m=3.0)
    assert level.params == {"joint": "base", "command": "velocity", "far_m": 3.0, "step": 1.0}


def test_defaults_that_a_task_leaves_out_are_parameters() -> None:
    fallen = mdp.termination(terminations.illegal_contact, sensors=FEET)
    assert fallen.params == {"sensors": FEET, "threshold": 0.0, "in_any_substep": False}
    drawn = mdp.command(velocity.velocity_command, turn=0.5, speed=1.0)
    assert list(drawn.params) == [
        "speed",
        "turn",
        "standing_fraction",
        "heading_fraction",
        "curriculum",
        "least",
        "sideways",
    ]
    assert drawn.params["least"] == 0.3
    start = mdp.reset_event(events.reset_joints_by_offset, joint="hinge", position=(0.0, 1.0))
    assert start.params["velocity"] == (0.0, 0.0)


def test_a_refined_command_keeps_its_draw() -> None:
    drawn = mdp.command(velocity.velocity_command, speed=1.0, turn=1.0).replace(resampling_s=(1.0, 2.0))
    refined = mdp.refined(
        drawn, velocity.approach, joint="base", gain=1.0, turn=1.0, acceleration=2.0, turn_acceleration=4.0
    )
    assert isinstance(refined, CommandTerm)
    assert refined.refine is velocity.approach
    assert refined.refine_params["acceleration"] == 2.0
    assert refined.replace(refine=None, refine_params={}) == drawn


def test_a_type_checker_finds_what_does_not_fit() -> None:
    """The comments are the test: see the top of the file."""
    slip = mdp.reward(
        gait.feet_slide,  # nothing is called here, and the term's name is not known: `check_terms` reports it
        -0.1,
        contact_sensors=FEET,
        velocity_sensors=FEET,
        speed=1.0,  # pyright: ignore[reportCallIssue]
    )
    assert slip.params["speed"] == 1.0
    mdp.reward(velocity.flat_orientation, -1.0)  # pyright: ignore[reportCallIssue]
    mdp.reward(velocity.flat_orientation, -1.0, sensor=3)  # pyright: ignore[reportArgumentType]
    mdp.reset_event(rewards.is_alive)  # pyright: ignore[reportArgumentType]
    mdp.observation(randomization.gravity, offset=(0.0, 1.0))  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_a_parameter_that_only_became_visible_is_no_change(tmp_path: Path) -> None:
    by_hand = TerminationTerm(func=terminations.illegal_contact, params={"sensors": FEET})
    helped = mdp.termination(terminations.illegal_contact, sensors=FEET)
    save_params(tmp_path, env=to_plain({"fallen": by_hand}))
    assert list_changes(tmp_path, env=to_plain({"fallen": helped})) == []
    stricter = helped.replace(params={**helped.params, "threshold": 5.0})
    assert list_changes(tmp_path, env=to_plain({"fallen": stricter})) == ["env.fallen.params.threshold: 0.0 -> 5.0"]


def test_records_are_completed_wherever_there_are_functions() -> None:
    command = CommandTerm(
        func=velocity.velocity_command,
        params={"speed": 1.0, "turn": 1.0},
        refine=events.reset_joints_by_offset,  # any function with a default
        refine_params={"joint": "base"},
    )
    record = with_default_params(yaml.safe_load(yaml.safe_dump(to_plain({"commands": {"v": command}, "a": [1, None]}))))
    assert record["commands"]["v"]["params"]["standing_fraction"] == 0.1
    assert record["commands"]["v"]["refine_params"] == {"velocity": [0.0, 0.0], "joint": "base"}
    assert record["a"] == [1, None]
    gone = {"func": "mjtrain.mdp.rewards:gone", "params": {"a": 1}}
    assert with_default_params(gone) == gone


def test_what_tasks_need_is_reached_through_mdp() -> None:
    from mjtrain.env.env import Env
    from mjtrain.env.events import Worlds
    from mjtrain.mdp import rotations

    assert mdp.Env is Env
    assert mdp.Worlds is Worlds
    assert rotations.yaw is mdp.rotations.yaw
    assert callable(mdp.uniform)
