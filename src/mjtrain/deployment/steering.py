"""The commands that a policy reads, and an operator who steers one by keys or by a gamepad."""

import contextlib
import os
import select
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from mjtrain.deployment.robot import Named
from mjtrain.runtime.errors import RequestError

KEYS = ("ik", "jl", "uo")
"""Keys that raise and lower the first three controls. Viewers use others already for the camera and the picture."""

REST_KEY = "m"
STOP_KEY = "x"

APPROACH = "mjtrain.mdp.velocity:approach"
"""The `refine` that limits how fast a command changes."""

HELP = "i and k: ahead and back; j and l: left and right; u and o: turn left and right; m: stand"

_STEP = 0.1
"""What a key changes, as a fraction of the range."""
_DEAD_ZONE = 0.1
_STICK_AXES = (1, 0, 3)
"""Axes of Linux's joystick interface for the first three controls: left stick up, left stick left, right stick left."""
_EVENT = struct.Struct("<IhBB")
_BUTTON, _AXIS = 1, 2


class Steering:
    """Values of the controls of a command, as an operator sets them."""

    def __init__(self, bounds: Mapping[str, Sequence[float]]) -> None:
        """Begin at rest; bounds are the least and the largest value by control, such as ahead, left, turn."""
        self._bounds = [(low, high) for low, high in bounds.values()]
        self._rest = [min(max(0.0, low), high) for low, high in self._bounds]
        self.values = list(self._rest)
        """One for each control."""

    def press(self, key: str) -> bool:
        """Take a key; return whether it means anything."""
        if key == REST_KEY:
            self.values = list(self._rest)
            return True
        for place, pair in enumerate(KEYS[: len(self._bounds)]):
            if key and key in pair:
                low, high = self._bounds[place]
                change = _STEP * (high - low)
                value = self.values[place] + (change if key == pair[0] else -change)
                self.values[place] = min(max(round(value, 6), low), high)
                return True
        return False

    def push(self, sticks: Sequence[float]) -> None:
        """Take the positions of sticks, one for each control: -1 for the least value, 0 for rest, 1 for the largest."""
        for place, (rest, stick, (low, high)) in enumerate(zip(self._rest, sticks, self._bounds, strict=False)):
            amount = max(abs(stick) - _DEAD_ZONE, 0.0) / (1 - _DEAD_ZONE)
            end = high if stick > 0 else low
            self.values[place] = rest + min(amount, 1.0) * (end - rest)


def has_finite_bounds(bounds: Mapping[str, Sequence[float]]) -> bool:
    """Whether each control has two bounds; keys, sticks and sliders change a value by a fraction of its range."""
    return bool(np.isfinite(list(bounds.values())).all())


def find_beyond(bounds: Mapping[str, Sequence[float]], values: Sequence[float]) -> list[str]:
    """Return a line for each control whose value is outside of its bounds; none if there are other values."""
    if len(bounds) != len(values):
        return []
    return [
        f"{name} {value:.15g} is outside of {low:.15g} to {high:.15g}, the bounds that the task has for it"
        for (name, (low, high)), value in zip(bounds.items(), values, strict=True)
        if value < low or value > high
    ]


class Operator(Protocol):
    """Where an operator's keys and sticks come from."""

    def update(self, steering: Steering) -> bool:
        """Take what has arrived since the last call, without waiting; return whether the robot must stop."""
        ...


class Keyboard:
    """The keys of the terminal that the command was started from. Its loss stops the robot, too."""

    def update(self, steering: Steering) -> bool:
        """Take the keys that were pressed; see `Operator.update`."""
        stops = False
        while not stops and select.select([sys.stdin], [], [], 0)[0]:
            try:
                typed = os.read(sys.stdin.fileno(), 64)
            except OSError:  # the terminal was closed
                return True
            stops = not typed
            for key in typed.decode(errors="replace"):
                stops |= key == STOP_KEY
                steering.press(key)
        return stops


class Gamepad:
    """A gamepad by Linux's joystick interface. Any of its buttons stops the robot, and so does its loss."""

    def __init__(self, path: str) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise RequestError(f"--gamepad {path}: {error.strerror}; give the device of a gamepad") from error
        self._sticks = [0.0] * len(_STICK_AXES)

    def update(self, steering: Steering) -> bool:
        """Take the events that have arrived; see `Operator.update`."""
        while True:
            try:
                events = os.read(self._file, 64 * _EVENT.size)
            except BlockingIOError:
                return False
            except OSError:  # it was unplugged
                return True
            if not events:
                return True
            for _, value, kind, number in _EVENT.iter_unpack(events):
                if kind == _BUTTON and value:
                    return True
                if kind & _AXIS and number in _STICK_AXES:  # at first the driver tells where the sticks are
                    self._sticks[_STICK_AXES.index(number)] = -value / 32767
                    steering.push(self._sticks)

    def close(self) -> None:
        """Close the device."""
        os.close(self._file)


@contextlib.contextmanager
def open_operator(drive: str, gamepad: str) -> Iterator[Operator | None]:
    """Open what an operator steers by, the keyboard, the device of a gamepad or none, and give it back in the end."""
    if drive == "gamepad":
        with contextlib.closing(Gamepad(gamepad)) as pad:
            yield pad
    elif drive == "keyboard":
        with _reading_keys():
            yield Keyboard()
    else:
        yield None


@contextlib.contextmanager
def _reading_keys() -> Iterator[None]:
    """Let the terminal pass each key on at once, without showing it."""
    if sys.stdin is None or not sys.stdin.isatty():  # it may be closed (`<&-`)
        raise RequestError("--drive keyboard: standard input is not a terminal; start the command in one")
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class Commands:
    """The commands that a policy reads, and how they change from one control period to the next."""

    def __init__(self, metadata: dict[str, Any], values: Sequence[float], operator: Operator | None = None) -> None:
        """Take the values of all commands that the observations read, one after the other.

        Args:
            values: As the metadata describes; none for zero where that means to stand or to stay. The frames of a
                motion may be left out.
            operator: Who steers the command from then on; None for nobody.
        """
        read = dict.fromkeys(term.get("params", {}).get("command") for term in metadata["observations"])
        described, at = metadata.get("commands", {}), 0
        self._described = {name: described.get(name, {}) for name in read if name is not None}
        self._period_s = metadata["control_period_s"]
        sizes = {name: entry.get("size", len(values)) for name, entry in self._described.items()}
        motion = metadata.get("motion", {}).get("command")  # what the policy sees of it is reported by the robot
        asked = {name: size for name, size in sizes.items() if name != motion}
        rests = [self._described[name].get("rest") for name in asked]
        if not values and None not in rests:
            values = [value for rest in rests for value in rest]
        if len(values) == sum(asked.values()):
            given = iter(values)
            values = [next(given) if name in asked else 0.0 for name, size in sizes.items() for _ in range(size)]
        flag = f"--command {' '.join(f'{value:.15g}' for value in values) or 'without values'}"
        if len(values) != sum(sizes.values()):
            lacking = (asked or sizes).items()
            wanted = "; ".join(f"{name}: {_describe(self._described[name], size)}" for name, size in lacking)
            raise RequestError(f"{flag}: give {wanted or 'none, because the policy reads no command'}")
        if not np.isfinite(values).all():
            raise RequestError(f"{flag}: each must be finite")
        self.wanted: Named = {}
        """What is asked for, before `advance` limits how fast it changes."""
        for name, size in sizes.items():
            self.wanted[name] = np.array(values[at : at + size], dtype=float)
            at += size
            if "quaternion" in (self._described[name].get("columns") or [""])[-1]:
                length = float(np.linalg.norm(self.wanted[name][-4:]))
                if not 0 < length < np.inf:
                    raise RequestError(f"{flag}: the quaternion of {name} has length {length:g}; give one of length 1")
                self.wanted[name][-4:] /= length
        self.current: Named = {}
        """What the policy sees."""
        self.ages: dict[str, int] = {}
        """Control periods since each one was asked for."""
        self.notices = [
            f"{flag}: {line}"
            for name, wanted in self.wanted.items()
            for line in find_beyond(self._described[name].get("controls") or {}, wanted.tolist())
        ]
        """Lines that the user should see."""
        self._operator = operator
        if operator is not None:
            self._steered, self._steering = self._find_steered()
        self.reset()

    def _find_steered(self) -> tuple[str, Steering]:
        for name, entry in self._described.items():
            controls = entry.get("controls") or {}
            if len(controls) == len(self.wanted[name]) <= len(KEYS) and has_finite_bounds(controls):
                steering = Steering(controls)
                steering.values = self.wanted[name].tolist()
                return name, steering
        raise RequestError(
            f"--drive: the policy reads no command with finite bounds that can be steered "
            f"({', '.join(self.wanted) or 'none'})"
        )

    def is_stopped(self) -> bool:
        """Take what the operator has done since the last call, and return whether the robot must stop."""
        if self._operator is None:
            return False
        stops = self._operator.update(self._steering)
        self.wanted[self._steered] = np.array(self._steering.values)
        if not self._is_limited(self._steered):
            self.current[self._steered] = self.wanted[self._steered]
        return stops

    def reset(self) -> None:
        """Begin as an episode does: with zero where the training limits how fast a command changes."""
        self.current = {
            name: np.zeros_like(value) if self._is_limited(name) else value for name, value in self.wanted.items()
        }
        self._before: Named = {}

    def advance(self, periods: int) -> None:
        """Change the current commands by what the training allows in some control periods."""
        for name, wanted in self.wanted.items():
            is_same = name in self._before and np.array_equal(wanted, self._before[name])
            self.ages[name] = self.ages[name] + periods if is_same else 0
        self._before = dict(self.wanted)
        for name in filter(self._is_limited, self.wanted):
            params, before = self._described[name]["refine_params"], self.current[name]
            change, seconds = self.wanted[name] - before, periods * self._period_s
            longest, turn = params["acceleration"] * seconds, params["turn_acceleration"] * seconds
            planar = change[:2] * (longest / max(longest, float(np.linalg.norm(change[:2]))))
            self.current[name] = before + np.array([*planar, *change[2:].clip(-turn, turn)])

    def _is_limited(self, name: str) -> bool:
        return self._described[name].get("refine") == APPROACH


def _describe(entry: dict[str, Any], size: int) -> str:
    columns = entry.get("columns")
    return f"{size} values" + ("" if columns is None else f" ({'; '.join(columns)})")
