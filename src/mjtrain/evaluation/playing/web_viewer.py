"""A viewer in the browser: a web server that shows a `ViewerSession` with viser."""

import socket
import threading
import time
from collections.abc import Callable

import numpy as np
import viser
from mjviser import ViserMujocoScene

from mjtrain.evaluation.playing.viewer_session import ViewerSession
from mjtrain.evaluation.playing.web_panels import Panels

_FRAME_S = 1 / 30
_PANELS_S = 0.2
_IDLE_S = 0.002


class WebViewer:
    """Serves a page that shows and controls one session; all visitors share it."""

    def __init__(self, session: ViewerSession, *, host: str, port: int) -> None:
        """Start the server.

        Args:
            session: What is shown.
            host: Address to listen on; a loopback address accepts connections from this machine only.
            port: Where to listen; the next free one if it is taken.
        """
        self._session = session
        self._server = viser.ViserServer(host=host, port=port, verbose=False)
        self._server.gui.configure_theme(show_logo=False, show_share_button=False)
        self._server.gui.main_panel.dock_right()
        self.address = f"http://{socket.gethostname() if host == '0.0.0.0' else host}:{self._server.get_port()}"
        """URL of the page."""
        self._redraw = threading.Event()
        self._redraw.set()
        kinematics, num_worlds = session.kinematics, len(session.qpos())
        self._scene = ViserMujocoScene(self._server, kinematics.model, num_worlds)
        self._scene.set_refresh_handler(self._redraw.set)
        self._scene.camera_tracking_enabled = kinematics.moves_freely
        self._offsets = _spread(num_worlds, 0.0 if kinematics.model.nhfield else 1.5 * kinematics.size_m)
        self._poses = {name: self._add_marker(name) for name in session.commanded_poses()}
        self._panels = Panels(self._server, session, self._scene)
        self._server.on_client_connect(lambda _: self._redraw.set())

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Serve until stop returns True, and then close the server."""
        before = drawn = refreshed = time.monotonic()
        try:
            while not stop():
                now = time.monotonic()
                if self._session.tick(now - before):
                    self._redraw.set()
                before = now
                if now - drawn >= _FRAME_S and self._redraw.is_set():
                    self._redraw.clear()
                    self._draw()
                    drawn = now
                if now - refreshed >= _PANELS_S:
                    self._panels.refresh()
                    refreshed = now
                time.sleep(_IDLE_S)
        finally:
            self._server.stop()

    def _add_marker(self, name: str) -> viser.FrameHandle:
        size = 0.08 * self._session.kinematics.size_m
        return self._server.scene.add_frame(f"/command {name}", axes_length=size, axes_radius=size / 12)

    def _draw(self) -> None:
        session = self._session
        world = self._scene.env_idx
        if world != session.selected:
            session.select(world)
        qpos = session.qpos()
        positions, rotations = session.kinematics.body_poses(qpos)
        positions += (self._offsets - self._offsets[world])[:, None]  # the selected world stays where it is
        origin = np.zeros(3)
        if self._scene.camera_tracking_enabled:  # the scene moves and the camera stays
            origin = self._scene.fixed_bodies_frame.position
        for name, pose in session.commanded_poses().items():
            self._poses[name].position, self._poses[name].wxyz = origin + pose[:3], pose[3:7]
        self._scene.update_from_arrays(positions, rotations, qpos=qpos, qvel=session.qvel(), ctrl=session.ctrl())


def _spread(num_worlds: int, distance_m: float) -> np.ndarray:
    """Place worlds side by side in a square grid. Shape (num_worlds, 3), in m."""
    columns = int(np.ceil(np.sqrt(num_worlds)))
    world = np.arange(num_worlds)
    return distance_m * np.stack([world % columns, world // columns, np.zeros(num_worlds)], axis=1)
