"""Buttons, sliders and plots of the browser viewer."""

from functools import partial
from typing import Any

import numpy as np
import viser
from mjviser import ViserMujocoScene

from mjtrain.play.replay import ReplaySession
from mjtrain.play.viewer_session import SPEEDS, PolicySession, ViewerSession

_COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")


class Panels:
    """What stands beside the picture. Callbacks come from other threads, so they post what is to be done."""

    def __init__(self, server: viser.ViserServer, show: ViewerSession, scene: ViserMujocoScene) -> None:
        self._show = show
        self._gui = server.gui
        self._scene = scene
        self._updates = []
        self._status = self._gui.add_markdown("")
        self._add_time()
        if isinstance(show, PolicySession):
            self._add_commands(show)
            self._add_checkpoints(show)
            self._add_plots(show)
        elif isinstance(show, ReplaySession):
            self._add_frames(show)
        with self._gui.add_folder("View"):
            self._add_contacts()
            scene.create_scene_gui(
                camera_distance=2.5 * show.kinematics.size_m, camera_azimuth=110.0, camera_elevation=18.0
            )

    def refresh(self) -> None:
        """Bring all that changes by itself up to date."""
        lines = ["**paused**" if self._show.paused else f"running at {self._show.speed:g}x", *self._show.status()]
        text = "  \n".join(lines)
        if text != self._status.content:
            self._status.content = text
        for update in self._updates:
            update()

    def _add_time(self) -> None:
        show, gui = self._show, self._gui
        pause = gui.add_button("Pause", icon=viser.Icon.PLAYER_PAUSE)
        step = gui.add_button("Step", icon=viser.Icon.PLAYER_TRACK_NEXT)
        reset = gui.add_button("Reset", icon=viser.Icon.REFRESH)
        speed = gui.add_dropdown("Speed", [f"{speed:g}x" for speed in SPEEDS], initial_value="1x")

        shown = False

        def toggle() -> None:
            show.paused = not show.paused

        def step_once() -> None:
            show.paused = True
            show.step()

        def update() -> None:
            nonlocal shown
            if show.paused != shown:
                shown = show.paused
                pause.label = "Go on" if shown else "Pause"
                pause.icon = viser.Icon.PLAYER_PLAY if shown else viser.Icon.PLAYER_PAUSE

        self._updates.append(update)
        pause.on_click(lambda _: show.post(toggle))
        step.on_click(lambda _: show.post(step_once))
        reset.on_click(lambda _: show.post(show.reset))
        speed.on_update(lambda _: setattr(show, "speed", float(speed.value.removesuffix("x"))))

    def _add_contacts(self) -> None:
        box = self._gui.add_checkbox("Contact forces", initial_value=False, hint="Arrows in the chosen world.")

        def switch() -> None:
            self._scene.show_contact_points = self._scene.show_contact_forces = box.value

        box.on_update(lambda _: self._show.post(switch))

    def _add_commands(self, show: PolicySession) -> None:
        for name, term in show.player.env.config.commands.items():
            if term.steer is None or not term.controls:
                continue
            with self._gui.add_folder(f"Command {name}"):
                by_hand = self._gui.add_checkbox("By hand", initial_value=False, hint="Off: commands are drawn.")
                sliders = [
                    self._gui.add_slider(
                        control, min=low, max=high, step=(high - low) / 100, initial_value=_rest(low, high)
                    )
                    for control, (low, high) in term.controls.items()
                ]
            self._connect_command(show, name, by_hand, sliders)

    def _connect_command(self, show: PolicySession, name: str, by_hand: Any, sliders: list[Any]) -> None:
        env = show.player.env

        def steer() -> None:
            env.steer(name, [slider.value for slider in sliders] if by_hand.value else None)

        def moved(_: Any) -> None:
            if not by_hand.value:
                by_hand.value = True
            show.post(steer)

        by_hand.on_update(lambda _: show.post(steer))
        for slider in sliders:
            slider.on_update(moved)

    def _add_checkpoints(self, show: PolicySession) -> None:
        if not show.checkpoints():
            return
        with self._gui.add_folder("Checkpoint"):
            choice = self._gui.add_dropdown("File", [path.name for path in show.checkpoints()])
            follow = self._gui.add_checkbox(
                "Follow training", initial_value=show.follows, hint="Take up each new checkpoint of the run."
            )

        def chosen(event: Any) -> None:
            run_dir = show.player.run.run_dir
            if event.client is not None and run_dir is not None:  # a user, and not update
                show.post(partial(show.load, run_dir / choice.value))

        shown = show.player.checkpoint

        def update() -> None:
            nonlocal shown
            names = tuple(path.name for path in show.checkpoints())
            if names and names != tuple(choice.options):
                choice.options = names
            acting = show.player.checkpoint
            if acting != shown and acting is not None and acting.name in names:
                shown, choice.value = acting, acting.name

        choice.on_update(chosen)
        follow.on_update(lambda _: setattr(show, "follows", follow.value))
        self._updates.append(update)

    def _add_plots(self, show: PolicySession) -> None:
        rewards, sensors = list(show.player.env.config.rewards), list(show.kinematics.touch_sensors)
        with self._gui.add_folder("Rewards per second"):
            self._add_plot(show, rewards, column=1)
        if sensors:
            with self._gui.add_folder("Contact forces, N"):
                self._add_plot(show, sensors, column=2)

    def _add_plot(self, show: PolicySession, names: list[str], *, column: int) -> None:
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
            if not show.history:
                plot.data = nothing
                return
            times = np.array([row[0] for row in show.history])
            values = np.stack([row[column] for row in show.history], axis=1).astype(np.float64)
            plot.data = (times, *values)

        self._updates.append(update)

    def _add_frames(self, show: ReplaySession) -> None:
        with self._gui.add_folder("Frames"):
            slider = self._gui.add_slider("Frame", min=0, max=show.num_frames - 1, step=1, initial_value=show.frame)

        def chosen(event: Any) -> None:
            if event.client is not None:
                show.post(partial(show.go_to, slider.value))

        shown = show.frame

        def update() -> None:
            nonlocal shown
            if show.frame != shown:
                shown = slider.value = show.frame

        slider.on_update(chosen)
        self._updates.append(update)


def _rest(low: float, high: float) -> float:
    """Return where a slider begins: at zero, or in the middle where zero is out of its bounds."""
    return 0.0 if low <= 0.0 <= high else (low + high) / 2
