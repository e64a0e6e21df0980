"""Buttons, sliders and plots of the browser viewer."""

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import viser
from mjviser import ViserMujocoScene

from mjtrain.evaluation.playing.policy_session import SPEEDS, PolicySession
from mjtrain.evaluation.playing.viewer_session import ReplaySession, ViewerSession
from mjtrain.sim.drawing.video import CameraStream, scale, to_picture

_IMAGE_SIZE = 256
"""Largest width and height of a camera image, in pixels."""

_COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")


class Panels:
    """The controls beside the picture. Callbacks run in other threads, so they queue actions on the session."""

    def __init__(self, server: viser.ViserServer, session: ViewerSession, scene: ViserMujocoScene) -> None:
        self._session = session
        self._gui = server.gui
        self._scene = scene
        self._updates = []
        self._status = self._gui.add_markdown("")
        self._add_time()
        if isinstance(session, PolicySession):
            self._add_cameras(session)
            self._add_commands(session)
            self._add_reference(session)
            self._add_checkpoints(session)
            self._add_plots(session)
        elif isinstance(session, ReplaySession):
            with self._gui.add_folder("Frames"):
                self._add_frame_slider(session, session.num_frames, lambda: session.frame)
        with self._gui.add_folder("View"):
            self._add_contacts()
            scene.create_scene_gui(
                camera_distance=2.5 * session.kinematics.size_m, camera_azimuth=110.0, camera_elevation=18.0
            )

    def refresh(self) -> None:
        """Update everything that changes over time."""
        lines = [
            "**paused**" if self._session.paused else f"running at {self._session.speed:g}x",
            *self._session.status(),
        ]
        text = "  \n".join(lines)
        if text != self._status.content:
            self._status.content = text
        for update in self._updates:
            update()

    def _add_time(self) -> None:
        session, gui = self._session, self._gui
        pause = gui.add_button("Pause", icon=viser.Icon.PLAYER_PAUSE)
        step = gui.add_button("Step", icon=viser.Icon.PLAYER_TRACK_NEXT)
        reset = gui.add_button("Reset", icon=viser.Icon.REFRESH)
        speeds = {f"{speed:g}x": speed for speed in SPEEDS}
        speed = gui.add_dropdown("Speed", list(speeds), initial_value="1x")
        shown = False

        def update() -> None:
            nonlocal shown
            if session.paused != shown:
                shown = session.paused
                pause.label = "Resume" if shown else "Pause"
                pause.icon = viser.Icon.PLAYER_PLAY if shown else viser.Icon.PLAYER_PAUSE

        self._updates.append(update)
        pause.on_click(lambda _: session.post(session.toggle))
        step.on_click(lambda _: session.post(session.step_once))
        reset.on_click(lambda _: session.post(session.reset))
        speed.on_update(lambda _: setattr(session, "speed", speeds.get(speed.value, session.speed)))

    def _add_contacts(self) -> None:
        box = self._gui.add_checkbox("Contact forces", initial_value=False, hint="Arrows in the selected world.")

        def switch() -> None:
            self._scene.show_contact_points = self._scene.show_contact_forces = bool(box.value)

        box.on_update(lambda _: self._session.post(switch))

    def _add_cameras(self, session: PolicySession) -> None:
        shown = session.images()
        if not shown:
            return
        with self._gui.add_folder("Cameras"):
            panels = {
                stream: self._gui.add_image(_enlarge(stream, image), label=stream.label, format="png")
                for stream, image in shown.items()
            }

        def update() -> None:
            for stream, image in session.images().items():
                if not np.array_equal(image, shown[stream]):
                    shown[stream] = image
                    panels[stream].image = _enlarge(stream, image)

        self._updates.append(update)

    def _add_commands(self, session: PolicySession) -> None:
        for name, controls in session.settable.items():
            with self._gui.add_folder(f"Command {name}"):
                manual = self._gui.add_checkbox("Manual", initial_value=False, hint="Off: commands are sampled.")
                rest = [0.0 if low <= 0.0 <= high else (low + high) / 2 for low, high in controls.values()]
                if name == session.steered and session.steering is not None:
                    rest = [float(value) for value in session.steering.values]
                sliders = [
                    self._gui.add_slider(control, min=low, max=high, step=(high - low) / 100, initial_value=value)
                    for (control, (low, high)), value in zip(controls.items(), rest, strict=True)
                ]
            self._connect_command(session, name, manual, list(zip(sliders, controls.values(), strict=True)))

    def _connect_command(self, session: PolicySession, name: str, manual: Any, sliders: list[Any]) -> None:
        env = session.player.env
        shown = [slider.value for slider, _ in sliders]
        was_manual = False
        asked: deque[None] = deque()
        lock = threading.Lock()

        def moved(event: Any) -> None:
            """Take what a visitor has set; viser calls this in one of many threads."""
            nonlocal shown, was_manual
            if event.client is None:  # set below; steering by it later would undo what was pressed in between
                return
            with lock:
                if event.target is not manual:
                    manual.value = True
                values = [float(np.clip(slider.value, low, high)) for slider, (low, high) in sliders]
                was_manual = bool(manual.value)
                if was_manual and not all(map(np.isfinite, values)):
                    return
                asked.append(None)
                session.steer(name, values if was_manual else None)
                session.post(asked.popleft)
                if was_manual:
                    shown = values  # not sent back to the sliders, which may have moved on

        for handle in (manual, *(slider for slider, _ in sliders)):
            handle.on_update(moved)

        def update() -> None:
            """Show what keys and gamepads have set, unless a visitor has just moved something."""
            nonlocal shown, was_manual
            with lock:
                if asked:
                    return
                if env.is_steered(name) != was_manual:
                    was_manual = manual.value = env.is_steered(name)
                if name == session.steered and session.steering is not None and session.steering.values != shown:
                    shown = list(session.steering.values)
                    for (slider, _), value in zip(sliders, shown, strict=True):
                        slider.value = value

        self._updates.append(update)

    def _add_reference(self, session: PolicySession) -> None:
        ghost = session.ghost
        if ghost is None:
            return
        with self._gui.add_folder("Reference"):
            box = self._gui.add_checkbox("Ghost", initial_value=True, hint="What the robot should do, beside it.")
            self._add_frame_slider(session, ghost.num_frames, lambda: ghost.frame(session.selected))
            start = self._gui.add_button("Start here", hint="A new episode of the selected world, from this frame.")

        box.on_update(lambda _: session.post(lambda: setattr(ghost, "is_shown", bool(box.value))))
        start.on_click(lambda _: session.post(session.start_here))

    def _add_checkpoints(self, session: PolicySession) -> None:
        if not session.checkpoints():
            return
        with self._gui.add_folder("Checkpoint"):
            choice = self._gui.add_dropdown("File", [path.name for path in session.checkpoints()])
            follow = self._gui.add_checkbox(
                "Follow training", initial_value=session.follows, hint="Load each new checkpoint of the run."
            )

        def chosen(event: Any) -> None:
            files = {path.name: path for path in session.checkpoints()}
            if event.client is not None and choice.value in files:  # a user, and not update
                asked.append(files[choice.value])
                session.post(go)

        def go() -> None:
            nonlocal shown
            session.load(asked.popleft())
            shown = None  # it may have been refused

        asked: deque[Path] = deque()
        shown = session.player.checkpoint
        offered = tuple(path.name for path in session.checkpoints())

        def update() -> None:
            nonlocal shown, offered
            names = tuple(path.name for path in session.checkpoints())
            if names and names != offered:
                choice.options = offered = names
            acting = session.player.checkpoint
            if not asked and acting != shown and acting is not None and acting.name in names:
                shown, choice.value = acting, acting.name

        choice.on_update(chosen)
        follow.on_update(lambda _: setattr(session, "follows", bool(follow.value)))
        self._updates.append(update)

    def _add_plots(self, session: PolicySession) -> None:
        rewards, sensors = list(session.player.env.config.rewards), list(session.kinematics.touch_sensors)
        if tracked := session.tracked():
            with self._gui.add_folder("Commands and errors"):
                self._add_plot(session, tracked, column=3)
        with self._gui.add_folder("Rewards per second"):
            self._add_plot(session, rewards, column=1)
        if sensors:
            with self._gui.add_folder("Contact forces, N"):
                self._add_plot(session, sensors, column=2)

    def _add_plot(self, session: PolicySession, names: list[str], *, column: int) -> None:
        series: list[Any] = [{"label": "time, s"}]
        series += [
            {"label": name, "stroke": _COLORS[index % len(_COLORS)], "width": 1.5} for index, name in enumerate(names)
        ]
        nothing = tuple(np.zeros(1) for _ in series)
        plot = self._gui.add_uplot(
            data=nothing,
            series=tuple(series),
            scales={"x": {"time": False, "auto": True}, "y": {"auto": True}},
            aspect=1.6,
        )

        def update() -> None:
            if not session.history:
                plot.data = nothing
                return
            times = np.array([row[0] for row in session.history])
            values = np.stack([row[column] for row in session.history], axis=1).astype(np.float64)
            plot.data = (times, *values)

        self._updates.append(update)

    def _add_frame_slider(
        self, session: PolicySession | ReplaySession, num_frames: int, read: Callable[[], int]
    ) -> None:
        """Add a slider that goes to a frame and shows the present one."""
        shown = read()
        slider = self._gui.add_slider("Frame", min=0, max=num_frames - 1, step=1, initial_value=shown)
        asked: deque[int] = deque()

        def go() -> None:
            nonlocal shown
            shown = asked.popleft()
            session.go_to(shown)

        def chosen(event: Any) -> None:
            if event.client is not None and slider.value in range(num_frames):
                asked.append(slider.value)
                session.post(go)

        def update() -> None:
            nonlocal shown
            # What the user chooses is not sent back: it would arrive late, and move the slider under the user's hand.
            if not asked and read() != shown:
                shown = slider.value = read()

        slider.on_update(chosen)
        self._updates.append(update)


def _enlarge(stream: CameraStream, image: np.ndarray) -> np.ndarray:
    """Return an image as the page shows it; the browser would blur small ones."""
    return scale(to_picture(stream, image), _IMAGE_SIZE, _IMAGE_SIZE)
