"""MuJoCo's own viewer window; needs a display."""

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import mujoco
import mujoco.viewer

from mjtrain.evaluation.playing.policy_session import SPEEDS, PolicySession
from mjtrain.evaluation.playing.viewer_session import ViewerSession
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.drawing.scene import GhostGeoms
from mjtrain.sim.robots.start import make_start

KEYS = (
    "space: pause; right: one env step; backspace: reset; up and down: speed; page up and page down: world; "
    "keypad: 8 and 2 ahead and back, 4 and 6 left and right, 7 and 9 turn left and right, 5 stand; with a "
    "reference, 1 and 3 0.1 s back and ahead in it, enter: start there, decimal point: ghost"
)

_KEYPAD = {328: "i", 322: "k", 324: "j", 326: "l", 327: "u", 329: "o", 325: "m"}
"""Keys that steer, by the keys of the keypad: MuJoCo's window uses all letters."""

_SPACE, _RIGHT, _DOWN, _UP, _BACKSPACE, _PAGE_UP, _PAGE_DOWN = 32, 262, 264, 265, 259, 266, 267
_KEYPAD_1, _KEYPAD_3, _KEYPAD_POINT, _KEYPAD_ENTER = 321, 323, 330, 335
_SCRUB_S = 0.1
_FRAME_S = 1 / 60
_CLOSE_S = 10.0


def check_display() -> None:
    """Raise a RequestError where no window can be opened."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise RequestError("--viewer native: no display found (DISPLAY is not set); use --viewer web")


def run_native_viewer(session: ViewerSession, stop: Callable[[], bool] = lambda: False) -> None:
    """Show the selected world in a window until it is closed or stop returns True."""
    check_display()
    model = session.kinematics.model
    data = make_start(model)
    num_worlds = len(session.state("qpos"))

    def faster(by: int) -> None:
        index = min(range(len(SPEEDS)), key=lambda place: abs(SPEEDS[place] - session.speed)) + by
        session.speed = SPEEDS[min(max(index, 0), len(SPEEDS) - 1)]

    actions: dict[int, Callable[[], None]] = {
        _SPACE: session.toggle,
        _RIGHT: session.step_once,
        _BACKSPACE: session.reset,
        _UP: lambda: faster(1),
        _DOWN: lambda: faster(-1),
        _PAGE_UP: lambda: session.select((session.selected + 1) % num_worlds),
        _PAGE_DOWN: lambda: session.select((session.selected - 1) % num_worlds),
    }

    if isinstance(session, PolicySession):
        actions |= {key: partial(session.press, name) for key, name in _KEYPAD.items()} | _ghost_actions(session)
    ghost = None if session.ghost is None else GhostGeoms(model)

    def on_key(key: int) -> None:
        if key in actions:
            session.post(actions[key])

    others = threading.enumerate()
    with mujoco.viewer.launch_passive(model, data, key_callback=on_key) as window:
        before = time.monotonic()
        while window.is_running() and not stop():
            now = time.monotonic()
            session.tick(now - before)
            before = now
            world = session.selected
            with window.lock():
                data.qpos[:] = session.state("qpos")[world]
                data.qvel[:] = session.state("qvel")[world]
                data.ctrl[:] = session.state("ctrl")[world]
                mujoco.mj_forward(model, data)  # contacts too
                scene = window.user_scn
                assert scene is not None
                scene.ngeom = 0
                qpos = None if session.ghost is None else session.ghost.qpos(world)
                if ghost is not None and qpos is not None:
                    ghost.add(scene, qpos)
            window.sync()
            time.sleep(max(0.0, _FRAME_S - (time.monotonic() - now)))
    for thread in threading.enumerate():  # those of the window: the process must not exit while they close it
        if thread not in others:
            thread.join(timeout=_CLOSE_S)


def _ghost_actions(session: PolicySession) -> dict[int, Callable[[], None]]:
    ghost = session.ghost
    if ghost is None:
        return {}

    def scrub(by_s: float) -> None:
        frame = ghost.frame(session.selected) + round(by_s / session.player.env.step_dt)
        session.go_to(min(max(frame, 0), ghost.num_frames - 1))

    return {
        _KEYPAD_1: lambda: scrub(-_SCRUB_S),
        _KEYPAD_3: lambda: scrub(_SCRUB_S),
        _KEYPAD_POINT: lambda: setattr(ghost, "is_shown", not ghost.is_shown),
        _KEYPAD_ENTER: session.start_here,
    }
