"""A viewer in the browser: a web server that shows a `ViewerSession` with viser, and a page around it that steers."""

import contextlib
import http
import ipaddress
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import viser
import websockets.asyncio.server
from mjviser import ViserMujocoScene
from mjviser.conversions import merge_geoms
from viser.transforms import SO3

from mjtrain.deployment.steering import HELP, KEYS, REST_KEY
from mjtrain.evaluation.playing.policy_session import PolicySession
from mjtrain.evaluation.playing.viewer_session import ViewerSession
from mjtrain.evaluation.playing.web_panels import Panels
from mjtrain.launcher.ipc.network import names_this_machine
from mjtrain.runtime.standard_streams import write_to_stderr
from mjtrain.sim.drawing.scene import GHOST_COLOR, body_poses, list_ghost_geoms

_FRAME_S = 1 / 30
_PANELS_S = 0.2
_IDLE_S = 0.002

Driver = Callable[[Any, Any], Any]
"""Takes a connection and a request, and returns a response, or None for a request of another page."""

_DRIVE_PATH = "/drive"

_HEADER = "X-Mjtrain-Drive"
"""Only a page of the same origin can send it: for others a browser asks the server first, which refuses."""


class WebViewer:
    """Serves a page that shows and controls one session; all visitors share it."""

    def __init__(self, session: ViewerSession, *, host: str, port: int) -> None:
        """Start the server, on the next free port if this one is taken."""
        self._session = session
        driver = None
        if isinstance(session, PolicySession) and session.steering is not None:
            driver = partial(_answer_drive_page, session)
        self._server = serve_page(host, port, driver)
        self._server.gui.configure_theme(show_logo=False, show_share_button=False)
        self._server.gui.main_panel.dock_right()
        self.address = f"http://{name_in_url(host)}:{self._server.get_port()}"
        """URL of the page."""
        self.drive_address = f"{self.address}{_DRIVE_PATH}" if driver else ""
        """URL of the page that steers the robot; empty if nothing can be steered."""
        self._problem = ""
        self._redraw = threading.Event()
        self._redraw.set()
        kinematics, num_worlds = session.kinematics, len(session.state("qpos"))
        self._scene = ViserMujocoScene(self._server, kinematics.model, num_worlds)
        self._scene.set_refresh_handler(self._redraw.set)
        self._scene.camera_tracking_enabled = kinematics.base_body is not None
        if kinematics.base_body is not None:  # mjviser follows the first body that moves, which may be an object
            self._scene._tracked_body_id = kinematics.base_body
        self._offsets = _spread(num_worlds, 0.0 if kinematics.model.nhfield else 1.5 * kinematics.size_m)
        axes_m = 0.08 * kinematics.size_m
        self._poses = {
            name: self._server.scene.add_frame(
                f"/fixed_bodies/command {name}", axes_length=axes_m, axes_radius=axes_m / 12
            )
            for name in session.commanded_poses()
        }
        self._ghost = {} if session.ghost is None else self._add_ghost()
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
                    self._try_to_draw()
                    drawn = now
                if now - refreshed >= _PANELS_S:
                    self._panels.refresh()
                    refreshed = now
                time.sleep(_IDLE_S)
        finally:
            self._server.stop()

    def _add_ghost(self) -> dict[int, viser.MeshHandle]:
        """Add the robot again, translucent, where the scene moves if the camera follows; by body."""
        model, (red, green, blue, opacity) = self._session.kinematics.model, GHOST_COLOR
        found = {}
        for body, geoms in list_ghost_geoms(model).items():
            mesh = merge_geoms(model, geoms)
            found[body] = self._server.scene.add_mesh_simple(
                f"/fixed_bodies/ghost/{body}",
                mesh.vertices,
                mesh.faces,
                color=(red, green, blue),
                opacity=opacity,
                cast_shadow=False,
            )
        return found

    def _draw_ghost(self) -> None:
        session = self._session
        qpos = None if session.ghost is None else session.ghost.qpos(session.selected)
        with self._server.atomic():
            for handle in self._ghost.values():
                handle.visible = qpos is not None
            if qpos is not None and self._ghost:
                (poses,) = body_poses(session.kinematics.model, qpos[None], np.array([*self._ghost]))
                for handle, pose in zip(self._ghost.values(), poses, strict=True):
                    handle.position, handle.wxyz = pose[:3], pose[3:]

    def _try_to_draw(self) -> None:
        try:
            self._draw()
        except Exception as error:  # a visitor may set any option of the scene to any value, and then another one
            problem = f"the viewer cannot draw this: {type(error).__name__}: {error}"
            if problem != self._problem:
                write_to_stderr(problem)
            self._problem = problem

    def _draw(self) -> None:
        session = self._session
        if not 0 <= self._scene.env_idx < len(self._offsets):  # a page that is not ours may send any number
            self._scene.env_idx = session.selected
        world = self._scene.env_idx
        if world != session.selected:
            session.select(world)
        qpos = session.state("qpos")
        positions, rotations = session.kinematics.body_poses(qpos)
        positions += (self._offsets - self._offsets[world])[:, None]  # the selected world stays where it is
        for name, pose in session.commanded_poses().items():
            self._poses[name].position, self._poses[name].wxyz = pose[:3], pose[3:7]
        self._draw_ghost()
        qvel, ctrl = session.state("qvel"), session.state("ctrl")
        mocap = np.flatnonzero(session.kinematics.model.body_mocapid >= 0)
        poses = positions[:, mocap], SO3.from_matrix(rotations[:, mocap]).wxyz
        self._scene.update_from_arrays(positions, rotations, *poses, qpos=qpos, qvel=qvel, ctrl=ctrl)


def name_in_url(host: str) -> str:
    """Return how a browser reaches an address that the server listens on."""
    if host in ("", "0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def serve_page(host: str, port: int, driver: Driver | None = None) -> viser.ViserServer:
    """Start viser's server, which then refuses what pages of other sites send through a visitor's browser."""
    with _checking_requests(host, driver):
        return viser.ViserServer(host=host, port=port, verbose=False)


@contextlib.contextmanager
def _checking_requests(host: str, driver: Driver | None) -> Iterator[None]:
    """Have the server that viser starts in a with block check every request; viser itself takes no such option."""
    serve = websockets.asyncio.server.serve

    def serve_checked(*args: Any, process_request: Any = None, **options: Any) -> Any:
        def check(connection: Any, request: Any) -> Any:
            if find_stranger(host, request.headers.get_all("Host"), request.headers.get_all("Origin")):
                return connection.respond(http.HTTPStatus.FORBIDDEN, "open the viewer by its own address\n")
            if driver is not None and (answer := driver(connection, request)) is not None:
                return answer
            return None if process_request is None else process_request(connection, request)

        return serve(*args, process_request=check, **options)

    websockets.asyncio.server.serve = serve_checked  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        websockets.asyncio.server.serve = serve  # pyright: ignore[reportAttributeAccessIssue]


def find_stranger(host: str, hosts: list[str], origins: list[str]) -> bool:
    """Return whether a request is not one of the viewer's own page.

    A page of another site has another origin. A name of another site that leads here is not a name of this machine.
    """
    if len(hosts) != 1 or len(origins) > 1:
        return True
    try:
        name = urlsplit(f"//{hosts[0]}").hostname or ""
        if origins and urlsplit(origins[0]).netloc.lower() != hosts[0].lower():
            return True
    except ValueError:
        return True
    if name in ("localhost", host.lower()):
        return False
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return names_this_machine(host) or name not in (socket.gethostname().lower(), socket.getfqdn().lower())
    return names_this_machine(host) and not address.is_loopback


def _spread(num_worlds: int, distance_m: float) -> np.ndarray:
    """Place worlds side by side in a square grid. Shape (num_worlds, 3), in m."""
    columns = int(np.ceil(np.sqrt(num_worlds)))
    world = np.arange(num_worlds)
    return distance_m * np.stack([world % columns, world // columns, np.zeros(num_worlds)], axis=1)


def _answer_drive_page(session: PolicySession, connection: Any, request: Any) -> Any:
    parts = urlsplit(request.path)
    if parts.path != _DRIVE_PATH:
        return None
    if not parts.query:
        page = files("mjtrain.evaluation.playing").joinpath("page", "drive.html").read_text()
        words = {"HELP": HELP, "PATH": _DRIVE_PATH, "HEADER": _HEADER, "KEYS": "".join(KEYS) + REST_KEY}
        for name, value in words.items():
            page = page.replace(name, value)
        response = connection.respond(http.HTTPStatus.OK, page)
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "text/html; charset=utf-8"
        return response
    if request.headers.get(_HEADER) is None:
        return connection.respond(http.HTTPStatus.FORBIDDEN, "only the page itself steers\n")
    asked = parse_qs(parts.query)
    for key in asked.get("key", ()):
        session.press(key[:1])
    for text in asked.get("sticks", ()):
        sticks = _read_sticks(text)
        if sticks is None:
            return connection.respond(http.HTTPStatus.BAD_REQUEST, f"sticks: give {len(KEYS)} numbers from -1 to 1\n")
        session.push(sticks)
    assert session.steering is not None
    return connection.respond(http.HTTPStatus.OK, " ".join(f"{value:+.2f}" for value in session.steering.values))


def _read_sticks(text: str) -> list[float] | None:
    try:
        sticks = [float(part) for part in text.split(",")]
    except ValueError:
        return None
    return sticks if len(sticks) == len(KEYS) and all(map(math.isfinite, sticks)) else None
