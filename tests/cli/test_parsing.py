"""Flags of the robot, its parts and cameras with new names, and networks; and the flags of W&B's agent."""

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tyro

from mjtrain.cli import parsing, train
from mjtrain.cli.parsing import add_named_parts, expand_agent_flags, expand_robot_file, join_repeated
from mjtrain.cli.train import main
from mjtrain.config import (
    AgentConfig,
    CameraConfig,
    GymnasiumConfig,
    LaunchConfig,
    MirrorConfig,
    RobotConfig,
    RunConfig,
    SensorConfig,
    to_plain,
)
from mjtrain.env.catalog import load_task
from mjtrain.runtime.errors import RequestError

pytestmark = pytest.mark.usefixtures("short_trial")

CARTPOLE_ENV = load_task("Cartpole-Balance").env
CARTPOLE = CARTPOLE_ENV.robot.file


def dry_run_env(*flags: str) -> dict[str, Any]:
    """Return the environment that these flags give, as plain values."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        train.main(["Cartpole-Balance", "--gpu-ids", "None", "--dry-run", *flags])
    return json.loads(output.getvalue())["config"]["env"]


def dry_run(*flags: str) -> dict[str, Any]:
    """Return the robot that these flags give, as plain values."""
    return dry_run_env(*flags)["robot"]


def test_flags_are_read_alike_with_and_without_the_settings_of_the_task() -> None:
    flags = ["Cartpole-Balance", "--gpu-ids", "None", "--seed", "3", "--max-iterations", "7", "--dry-run"]
    assert train.read_command(flags) == train.read_command([*flags, "--agent.num-steps-per-env", "24"])


def test_only_flags_that_are_given_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """All flags of a task take half a second; those that are given a fiftieth, and they mean the same."""
    config = load_task("Quadruped-Velocity-Rough")
    default = train.AllOptions(launch=LaunchConfig(), run=RunConfig(), env=config.env, agent=config.agent)
    words = "--env.rewards.posture.weight -2 --env.robot.timestep=0.004 --agent.actor.hidden_dims 8 8 "
    words += "--gpu-ids 0 1 --env.robot.no-self-collision"
    every = parsing._read(train.AllOptions, words.split(), "train", default, {})
    prepared: list[str] = []
    make_field = tyro.constructors.StructFieldSpec

    def count(name: str, **options: Any) -> Any:
        prepared.append(name)
        return make_field(name=name, **options)

    monkeypatch.setattr(tyro.constructors, "StructFieldSpec", count)
    some = parsing.parse(train.AllOptions, words.split(), prog="train", default=default)
    assert some == every
    assert (some.env.rewards["posture"].weight, some.env.robot.timestep) == (-2.0, 0.004)
    assert not some.env.robot.self_collision
    assert (some.agent.actor.hidden_dims, some.launch.gpu_ids) == ((8, 8), (0, 1))
    named = {
        "env",
        "rewards",
        "weight",
        "robot",
        "timestep",
        "agent",
        "actor",
        "hidden_dims",
        "gpu_ids",
        "self_collision",
    }
    assert named < set(prepared) <= {*named, "launch", "run"}


@pytest.mark.parametrize("flags", [(), ("--seed", "3")])
def test_an_environment_of_gymnasium_needs_no_flags(flags: tuple[str, ...]) -> None:
    config, launch, _ = train.read_command(["gymnasium:Pendulum-v1", *flags])
    assert isinstance(config.env, GymnasiumConfig)
    assert (config.env.id, config.env.kwargs) == ("Pendulum-v1", {})
    assert launch.seed == (3 if flags else 0)


def test_the_scale_of_actions_is_a_number_or_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    def scale(*words: str) -> Any:
        return dry_run_env("--env.actions.push.scale", *words)["actions"]["push"]["scale"]

    assert scale("0.5") == 0.5
    assert scale("pu.*", "0.25") == {"pu.*": 0.25}
    for words in (["a"], ["a", "b"], ["a", "1", "b"]):
        with pytest.raises(SystemExit):
            scale(*words)
        assert f"--env.actions.push.scale {' '.join(words)}: give a number, or pairs" in capsys.readouterr().err


def test_a_flag_may_be_repeated_or_have_several_values() -> None:
    flag = "--inject-fault"
    for args in (
        [flag, "a", flag, "b", "--x", "1"],
        [flag, "a", "b", "--x", "1"],
        ["--x", "1", f"{flag}=a", flag, "b"],
        ["--x", "1", "--inject_fault", "a", "--inject_fault=b"],
    ):
        assert join_repeated(args, flag) == ["--x", "1", flag, "a", "b"]
    assert join_repeated(["--x", "1"], flag) == ["--x", "1"]
    assert join_repeated([f"{flag}s", "a", flag], flag) == [f"{flag}s", "a", flag]


def test_lists_of_rules_and_names_may_be_repeated() -> None:
    words = (
        "--stop-when mean_reward>=1 --without rewards.effort --stop-when kl>1 --wandb-tags a --without rewards.upright "
    )
    words += "--wandb-tags b c --copy-env A --copy_env=B --hostnames alpha --hostnames beta"
    config, launch, _ = train.read_command(["Cartpole-Balance", *words.split()])
    assert config.run.stop_when == ("mean_reward>=1", "kl>1")
    assert config.run.without == ("rewards.effort", "rewards.upright")
    assert (config.run.wandb_tags, launch.copy_env) == (("a", "b", "c"), ("A", "B"))
    assert launch.hostnames == ("alpha", "beta")


def test_a_parameter_takes_any_number_of_names() -> None:
    flag = "--env.events.friction.params.geoms"
    for names in (("cube", "palm", ".*_tip"), ("palm",)):
        config, _, _ = train.read_command(["Hand-Reorient-Cube", flag, *names])
        assert config.env.events["friction"].params["geoms"] == names  # pyright: ignore[reportAttributeAccessIssue]


def test_names_in_tuples_of_a_parameter_have_fixed_lengths() -> None:
    reward = replace(CARTPOLE_ENV.rewards["upright"], params={"pairs": (("a", "b"), ("c", "d"))})
    env = replace(CARTPOLE_ENV, rewards={"upright": reward})
    default = train.AllOptions(launch=LaunchConfig(), run=RunConfig(), env=env, agent=AgentConfig())
    words = ["--env.rewards.upright.params.pairs", "e", "f", "g", "h"]
    found = parsing.parse(train.AllOptions, words, prog="train", default=default)
    assert found.env.rewards["upright"].params == {"pairs": (("e", "f"), ("g", "h"))}


def test_flags_that_help_texts_mention_were_not_meant() -> None:
    with pytest.raises(RequestError, match=r"^unknown flag --critic; did you mean --agent\.") as error:
        train.read_command(["Cartpole-Balance", "--critic"])
    assert "--load" not in str(error.value)


def test_the_short_form_is_the_file(tmp_path: Path) -> None:
    other = tmp_path / "other.xml"
    other.write_text(Path(CARTPOLE).read_text())
    robot = RobotConfig(file=str(other), mirror=MirrorConfig(plane="x"))  # what the task adds stays
    for flags in (["--env.robot", str(other)], [f"--env.robot={other}"], ["--env.robot.file", str(other)]):
        assert dry_run(*flags) == to_plain(robot)
    assert expand_robot_file(["--env.robots", "x", "--env.robot.timestep", "1"])[::2] == [
        "--env.robots",
        "--env.robot.timestep",
    ]


def test_parts_with_new_names_and_patterns_are_flags() -> None:
    words = (
        "--env.robot.timestep 0.004 --env.robot.options.gravity 0 0 -5 --env.robot.options.cone elliptic "
        "--env.robot.sensors.imu.type gyro --env.robot.sensors.imu.object pole "
        "--env.robot.keyframes.start.joints hin.* 0.1 slider -0.5 --env.robot.keyframe start "
        "--env.robot.actuators.cart.joints slider --env.robot.actuators.cart.kp 20 "
        "--env.robot.actuators.cart.force-range -5 5 --env.robot.no-self-collision --env.actions.push.actuators slider"
    )
    robot = dry_run(*words.split(), "--env.robot.names.actuators", "pus.", "push")
    assert robot["sensors"]["imu"]["object"] == "pole"
    assert robot["keyframes"]["start"]["joints"] == {"hin.*": 0.1, "slider": -0.5}
    assert robot["actuators"]["cart"] == {
        **robot["actuators"]["cart"],
        "joints": ["slider"],
        "kp": 20.0,
        "force_range": [-5.0, 5.0],
    }
    assert robot["names"]["actuators"] == {"pus.": "push"}
    assert (robot["timestep"], robot["options"]["gravity"], robot["self_collision"]) == (0.004, [0.0, 0.0, -5.0], False)


def test_a_part_that_is_there_is_kept() -> None:
    there = RobotConfig(file="x.xml", sensors={"base_speed": SensorConfig(type="velocimeter", object="imu")})
    wide = CameraConfig(width=99, classes={"red_box": ("box",)})
    flags = ["--env.robot.sensors.base-speed.cutoff", "3", "--env.robot.sensors.up.type=framezaxis"]
    flags += ["--env.cameras.far-away.classes.red-box", "ball", "--env.cameras.far-away.classes.rest=.*"]
    env = add_named_parts(replace(CARTPOLE_ENV, robot=there, cameras={"far_away": wide}), flags)
    assert env.robot.sensors == {**there.sensors, "up": SensorConfig()}
    assert env.cameras == {"far_away": replace(wide, classes={**wide.classes, "rest": ()})}


def test_cameras_and_classes_with_new_names_are_flags() -> None:
    words = (
        "--env.robot.cameras.top.pos 0 0 3 --env.cameras.top.width 9 --env.cameras.top.streams depth segmentation "
        "--env.cameras.top.classes.moving cart pole --env.cameras.top.classes.rail=rail --env.cameras.side.interval=2"
    )
    cameras = dry_run_env(*words.split())["cameras"]
    assert cameras["top"]["classes"] == {"moving": ["cart", "pole"], "rail": ["rail"]}
    assert (cameras["top"]["width"], cameras["top"]["streams"]) == (9, ["depth", "segmentation"])
    assert cameras["side"]["interval"] == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--env.robot.sensors.imu.type gyro --env.robot.sensors.imu.object poll",
            "train: --env.robot.sensors.imu.object poll: no site or body or geom has this name; did you mean pole?; ",
        ),
        ("--env.robot.keyframe hme", "train: --env.robot.keyframe hme: no keyframe has this name; "),
        ("--env.robot.keyframes.home.joints hinge", "give pairs of an expression and a float"),
        ("--env.robot.options.cone round", "--env.robot.options.cone round: choose from elliptic, pyramidal"),
        (
            "--env.cameras.top.width 9",
            "train: --env.cameras.top.camera top: the robot has no such camera; it has side",
        ),
        ("--env.cameras.top.wide 9", "train: unknown flag --env.cameras.top.wide 9"),
        ("--env.robot.timestp 0.1", "train: unknown flag --env.robot.timestp"),
    ],
)
def test_a_wrong_name_is_one_line_before_anything_starts(
    flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dry in ([], ["--dry-run"]):
        with pytest.raises(SystemExit) as stop:
            train.main(["Cartpole-Balance", "--gpu-ids", "None", "--log-root", str(tmp_path), *flags.split(), *dry])
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("words", "place", "value"),
    [
        ("--agent.actor.distribution-cfg.init-std 0.5", "actor.distribution_cfg.init_std", 0.5),
        ("--agent.actor.cnn-cfg.output-channels 4 8", "actor.cnn_cfg.output_channels", [4, 8]),
        ("--agent.actor.cnn-cfg.kernel-size 8 4 3", "actor.cnn_cfg.kernel_size", [8, 4, 3]),
        ("--agent.critic.cnn-cfg.stride 1", "critic.cnn_cfg.stride", 1),
        ("--agent.actor.cnn-cfg.max-pool True False True", "actor.cnn_cfg.max_pool", [True, False, True]),
        ("--agent.actor.class-name RNNModel --agent.actor.rnn-type gru", "actor.rnn_type", "gru"),
        ("--agent.algorithm.auxiliary-cfg.coef 0.1", "algorithm.auxiliary_cfg.coef", 0.1),
    ],
)
def test_a_setting_of_a_network_is_a_flag(
    words: str, place: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["Cartpole-Balance", "--gpu-ids", "None", "--dry-run", *words.split()])
    found = json.loads(capsys.readouterr().out)["config"]["agent"]
    for name in place.split("."):
        found = found[name]
    assert found == value


def test_without_an_agent_words_stay_as_they_are() -> None:
    words = ["--run-name=two words", "--a,b=1", "--c", "d e"]
    assert expand_agent_flags(words, {}) == words
    assert expand_agent_flags(words, {"WANDB_SWEEP_ID": "s"}) == [
        *["--run-name", "two", "words"],
        *["--a", "1", "--b", "1", "--c", "d e"],
    ]
