"""Commands by keys of a terminal and by a gamepad."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mjtrain.cli.deploy import main
from mjtrain.deployment.steering import _EVENT, Commands, Gamepad, Steering, open_operator
from mjtrain.runtime.errors import RequestError

BOUNDS = {"ahead": [-1.0, 1.0], "left": [-0.5, 0.5], "turn": [-1.0, 1.0]}
LIMITED = {
    "size": 3,
    "rest": [0.0, 0.0, 0.0],
    "controls": BOUNDS,
    "refine": "mjtrain.mdp.velocity:approach",
    "refine_params": {"acceleration": 2.0, "turn_acceleration": 4.0},
}


def make_metadata(**described: Any) -> dict[str, Any]:
    term = {"name": "command", "params": {"command": "velocity"}}
    return {"control_period_s": 0.02, "observations": [term], "commands": {"velocity": described}}


@pytest.fixture
def stick(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A device that gives events of Linux's joystick interface, and where to write them."""
    device = tmp_path / "js0"
    os.mkfifo(device)
    driver = os.open(device, os.O_RDWR)
    yield device, driver
    os.close(driver)


def test_keys_change_the_command_within_its_bounds() -> None:
    steering = Steering(BOUNDS)
    assert all(map(steering.press, "iijo"))
    assert steering.values == pytest.approx([0.4, 0.1, -0.2])
    assert all(map(steering.press, "k" * 20 + "l" * 20 + "u" * 20))
    assert steering.values == [-1.0, -0.5, 1.0]
    assert not steering.press("w")
    assert not steering.press("")
    assert steering.press("m")
    assert steering.values == [0.0, 0.0, 0.0]
    one = Steering({"height": (0.2, 0.5)})
    assert one.values == [0.2]
    assert not one.press("j")
    one.press("i")
    assert one.values == pytest.approx([0.23])


def test_sticks_reach_the_bounds_and_rest_near_the_middle() -> None:
    steering = Steering(BOUNDS)
    steering.push((1.0, -1.0, 0.55))
    assert steering.values == pytest.approx([1.0, -0.5, 0.5])
    steering.push((-1.0, 0.05, -0.1))
    assert steering.values == pytest.approx([-1.0, 0.0, 0.0])


def test_a_gamepad_steers_and_stops(stick: tuple[Path, int]) -> None:
    device, driver = stick
    with open_operator("gamepad", str(device)) as pad:
        commands = Commands(make_metadata(**LIMITED), (), pad)
        assert not commands.is_stopped()
        os.write(driver, _EVENT.pack(0, 0, 0x81, 0) + _EVENT.pack(0, -32767, 2, 1) + _EVENT.pack(9, 32767, 2, 3))
        assert not commands.is_stopped()
        commands.advance(1)
        assert commands.current["velocity"] == pytest.approx([0.04, 0.0, -0.08]), "as fast as in training"
        commands.advance(100)
        assert commands.current["velocity"] == pytest.approx([1.0, 0.0, -1.0])
        os.write(driver, _EVENT.pack(10, 1, 1, 4))
        assert commands.is_stopped()


def test_the_loss_of_the_gamepad_stops_the_robot(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "js0")
    driver = os.open(tmp_path / "js0", os.O_RDWR)
    pad, steering = Gamepad(str(tmp_path / "js0")), Steering(BOUNDS)
    assert not pad.update(steering)
    os.close(driver)
    assert pad.update(steering)
    pad.close()


def test_the_keyboard_needs_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as Python does if the process begins without one
    with pytest.raises(RequestError, match="--drive keyboard: standard input is not"), open_operator("keyboard", ""):
        pass


def test_what_cannot_be_steered_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(RequestError, match=r"--gamepad .*gone: No such file"),
        open_operator("gamepad", f"{tmp_path}/gone"),
    ):
        pass
    for described in ({"size": 4}, {"size": 1, "controls": {"ahead": [0.0, float("inf")]}}):
        rest = [0.0] * described["size"]
        with pytest.raises(RequestError, match=r"--drive: .* no command with finite bounds .* steered \(velocity\)"):
            Commands(make_metadata(**described, rest=rest), (), Gamepad(os.devnull))
    with pytest.raises(SystemExit) as end:
        main(["nowhere", "--gamepad", "/dev/input/js1"])
    assert end.value.code == 2
    assert "--gamepad /dev/input/js1: is for --drive gamepad" in capsys.readouterr().err
