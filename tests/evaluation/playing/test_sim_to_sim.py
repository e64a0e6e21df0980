"""play --sim-to-sim: the same episodes in several simulators, with each disturbance of the task."""

import json
from pathlib import Path

import pytest

from mjtrain.cli.play import main
from mjtrain.evaluation.summary_table import print_comparison


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
