"""play --sim-to-sim: the same episodes in several simulators, with each disturbance of the task."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from mjtrain.cli.play import main
from mjtrain.config import EnvConfig
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.evaluation.summary_table import print_comparison
from mjtrain.tools.sim_to_sim import PlainEngine, _find_breaks, list_cases
from support.envs import actions_for, make_env
from support.metadata import describe_task


def test_an_exported_policy_in_plain_mujoco_does_what_it_does_in_the_environment(
    log_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pushes = ("--env.events.push.interval-s", "0.1", "0.1", "--env.events.push.params.linear", "3")
    options = ("--env.episode-length-s", "0.4", "--episodes", "3", "--num-threads", "1", "--json")
    names = ("--sim-to-sim", "native", "plain")
    main(["Quadruped-Velocity-Flat", "--log-root", str(log_root), *names, *options, *pushes])
    report = json.loads(capsys.readouterr().out)
    rows = {(row["case"], row["simulator"]): row for row in report["rows"]}
    cases = list(dict.fromkeys(case for case, _ in rows))
    assert (cases[0], cases[-1]) == ("undisturbed", "all of them")
    assert {"sensor noise", "push", "friction", "gains", "payload"} <= set(cases)
    for case in cases:
        native, plain = rows[case, "native"], rows[case, "plain"]
        assert case == "undisturbed" or native["errors"] != rows["undisturbed", "native"]["errors"], case
        if case not in ("sensor noise", "all of them"):  # noise is drawn by other generators
            assert plain["errors"] == pytest.approx(native["errors"], rel=1e-3), case
            assert plain["return"] == pytest.approx(native["return"], rel=1e-3), case
            assert (plain["length_s"], plain["failed"]) == (native["length_s"], native["failed"]), case
    assert rows["undisturbed", "plain"]["breaks"] == []
    assert "velocity/planar" in rows["push", "plain"]["breaks"]
    print_comparison(report)
    table = capsys.readouterr().out
    shown = f"{rows['push', 'native']['errors']['velocity/planar']:.3f} !"
    assert any("push" in line and "native" in line and shown in line for line in table.splitlines()), table
    print_comparison(report | {"task": "Dog\x1b[31m", "units": {"velocity/planar": "\x1b[32m"}})
    table = capsys.readouterr().out
    assert table.startswith(r"Dog\x1b[31m: 3 episodes each of ")
    assert r"\x1b[32m" in table
    assert "\x1b" not in table


def test_rewards_and_terminations_see_the_torques_and_sensors_of_plain_mujoco() -> None:
    native, metadata = describe_task("Quadruped-Velocity-Flat")
    native = make_env(native.config, num_envs=1, seed=3)
    chosen: list[np.ndarray] = []
    policy = SimpleNamespace(metadata=metadata, act=lambda _: chosen[-1])
    engine = PlainEngine(native.config, cast("Any", policy), 1, 0)
    plain = Env(native.config, engine, 3)

    def read(env: Env) -> list[torch.Tensor]:
        return [
            env.state.qpos,
            env.state.ctrl,
            env.qacc((".*",)),
            env.qfrc_actuator((".*",)),
            env.sensor_history((".*velocity",)),
        ]

    read(native)  # from now on, its engine follows what is read
    read(plain)
    for action in 0.3 * actions_for(native, 5):
        chosen.append(action[0].double().numpy())
        commands = {name: plain.command(name)[0].double().numpy() for name in metadata["commands"]}
        engine.robots[0].act(commands, np.zeros(plain.state.qpos.shape[1]))
        native.step(action)
        plain.step(action)
        for ours, theirs in zip(read(plain), read(native), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    history = read(plain)[-1]
    assert history.shape[1] == native.config.decimation
    assert (history[:, 0] != history[:, -1]).any()


def test_errors_stand_below_their_names_whichever_an_episode_had_first(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"case": "undisturbed", "simulator": "native", "errors": {"v/turn": 0.7, "v/planar": 0.1}, "successes": {}}
    row |= {"failed": 0.5, "length_s": 1.0, "wall_s": 2.0, "breaks": []}
    units = {"v/planar": "m/s", "v/turn": "rad/s"}
    report = {"task": "T", "policy": "hf://a/b", "checkpoint": "c", "episodes": 1, "rule": "r", "units": units}
    print_comparison({**report, "rows": [row]})
    table = capsys.readouterr().out
    assert table.startswith("T: 1 episode each of hf://a/b\n")
    assert table.index("planar") < table.index("turn") < table.index("0.100") < table.index("0.700")


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (("--pushes",), "--pushes"),
        (("--engine", "warp"), "--sim-to-sim warp"),
        (("--html", "page.html"), "leave out"),
    ],
)
def test_flags_that_do_not_fit_are_named(
    flags: tuple[str, ...], cause: str, log_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["Cartpole-Balance", "--log-root", str(log_root), "--sim-to-sim", "native", *flags])
    assert stop.value.code == 2
    assert cause in capsys.readouterr().err


def test_a_policy_that_observes_what_the_plain_robot_does_not_report_is_refused_before_any_episode(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = "--policy pretrained --sim-to-sim plain --sim-to-sim native --episodes 1 --num-threads 1"
    with pytest.raises(SystemExit) as stop:
        main(["Quadruped-Track", *flags.split()])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert "--sim-to-sim plain: the robot must report the observations targets (" in printed
    assert printed.endswith("give --sim-to-sim native warp\n")
    assert "1 of " not in printed


@pytest.mark.parametrize(
    ("place", "changes", "name"),
    [
        ("observations", {"noise": 0.1}, "sensor noise"),
        ("observations", {"shift": 1}, "sensor noise"),
        ("actions", {"noise": 0.1}, "action noise"),
    ],
)
def test_each_noise_alone_is_a_case(place: str, changes: dict[str, Any], name: str) -> None:
    env = load_task("Cartpole-Balance").env
    assert isinstance(env, EnvConfig)
    assert list(list_cases(env)) == ["undisturbed"]
    if place == "actions":
        env = replace(env, actions={key: term.replace(**changes) for key, term in env.actions.items()})
    else:
        ((group, terms),) = env.observations.items()
        env = replace(env, observations={group: {key: term.replace(**changes) for key, term in terms.items()}})
    assert list(list_cases(env)) == ["undisturbed", name]
    assert list_cases(env)[name].observation_noise


def test_errors_with_a_sign_are_compared_by_their_size() -> None:
    rows = [{"errors": {"off": value}, "successes": {}, "failed": 0.0} for value in (-0.2, 0.1, -0.31, 0.31)]
    assert [_find_breaks(row, rows[0]) for row in rows] == [[], [], ["off"], ["off"]]
