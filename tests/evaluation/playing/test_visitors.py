"""Whoever reaches the browser viewer: pages of other sites are refused, no value ends it, and the last one counts."""

import http.client
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace
from typing import Any

import pytest
import viser
import websockets.sync.client
from mjviser import ViserMujocoScene
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

import mjtrain
from mjtrain.evaluation.playing.player import Player
from mjtrain.evaluation.playing.policy_session import PolicySession
from mjtrain.evaluation.playing.viewer_session import Clock
from mjtrain.evaluation.playing.web_panels import Panels
from mjtrain.evaluation.playing.web_viewer import WebViewer, find_stranger, name_in_url, serve_page
from mjtrain.runs.trained_run import make_untrained_run
from support.machine import patience, wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[viser.ViserServer]:
    server = serve_page("127.0.0.1", 0)
    yield server
    server.stop()


def test_only_the_viewers_own_page_is_answered(server: viser.ViserServer) -> None:
    """Its own address, also through a tunnel; not another name that leads here, nor a page of another site."""
    port = server.get_port()

    def get(host: str, **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience(10.0))
        connection.request("GET", "/", headers={"Host": host, **headers})
        return connection.getresponse().status

    for host in (f"127.0.0.1:{port}", "localhost:9999", "[::1]:8080", "127.0.0.1"):
        assert get(host) == get(host, Origin=f"http://{host}") == 200
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "192.168.0.1:80", "", "a]b", "@"):
        assert get(host) == get(host, Origin=f"http://{host}") == 403
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{port}@evil.example", "file://", "http://[", "x"):
        assert get(f"127.0.0.1:{port}", Origin=origin) == 403


@pytest.mark.parametrize(
    ("host", "name"), [("::1", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("::", gethostname()), ("", gethostname())]
)
def test_a_url_has_an_address_that_browsers_reach(host: str, name: str) -> None:
    assert name_in_url(host) == name


def test_a_page_of_another_site_opens_no_connection(server: viser.ViserServer) -> None:
    port = server.get_port()
    protocol = Subprotocol(f"viser-v{viser.__version__}")
    connect = partial(websockets.sync.client.connect, f"ws://127.0.0.1:{port}", subprotocols=[protocol])
    with pytest.raises(InvalidStatus, match="403"):
        connect(origin=Origin("http://evil.example"))
    with connect(origin=Origin(f"http://127.0.0.1:{port}")) as connection:
        assert connection.recv(timeout=patience(10.0))


@pytest.mark.parametrize(
    ("listens", "host", "strange"),
    [
        ("0.0.0.0", "192.168.0.7:8080", False),
        ("0.0.0.0", "evil.example:8080", True),
        ("gpu1.lab", "gpu1.lab:8080", False),
        ("gpu1.lab", "gpu1.lab.evil.example", True),
        ("localhost", "127.0.0.1:8080", False),
        ("localhost", "192.168.0.7:8080", True),
    ],
)
def test_names_of_this_machine(listens: str, host: str, *, strange: bool) -> None:
    assert find_stranger(listens, [host], []) is strange
    assert find_stranger(listens, [host, host], [])
    assert find_stranger(listens, [host], [f"http://{host}", f"http://{host}"])


NOT_FINITE = [float("nan"), float("inf"), float("-inf")]
VALUES = ["nanx", "/etc/hostname", "../model_1.pt", "model_1.pt", -1, 10**9, *NOT_FINITE]


@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_clock_survives_a_time_that_is_not_finite(value: float) -> None:
    clock, steps = Clock(0.1), []
    clock.run(value, lambda: steps.append(1))
    clock.run(0.25, lambda: steps.append(1))
    assert len(steps) == 2


def test_no_value_ends_the_viewer(capfd: pytest.CaptureFixture[str]) -> None:
    """As a page that is not mjtrain's may send them; what is not offered is not taken."""
    session = PolicySession(
        Player(mjtrain.RankContext(), make_untrained_run("Quadruped-Velocity-Flat"), num_envs=2, policy="zero")
    )
    asked: list[Path] = []
    session.checkpoints = lambda: [Path("/run/model_1.pt")]  # pyright: ignore[reportAttributeAccessIssue]
    session.load = asked.append  # pyright: ignore[reportAttributeAccessIssue]
    viewer = WebViewer(session, host="127.0.0.1", port=0)
    handles = list(viewer._server.gui._gui_input_handle_from_uuid.values())
    assert {"Speed", "File", "Contact forces"} <= {handle.label for handle in handles}
    over = threading.Event()
    loop = threading.Thread(target=viewer.run, args=(over.is_set,))
    loop.start()
    try:
        for handle in handles:
            for value in VALUES:
                send(handle, value)
        session.post(lambda: setattr(session, "paused", False))  # buttons were among them
        for world in (-1, 99, 10**9):
            viewer._scene.env_idx = world
            wait_until(lambda: 0 <= viewer._scene.env_idx < 2, "a world that exists is selected")
        viewer._scene.show_only_selected = "x"  # pyright: ignore[reportAttributeAccessIssue]
        assert session.speed == 1.0
        send(next(handle for handle in handles if handle.label == "Speed"), "2x")
        assert session.speed == 2.0
        steps = session.num_steps
        wait_until(lambda: session.num_steps > steps + 3, "the worlds move")
        assert loop.is_alive()
    finally:
        over.set()
        loop.join(patience(30.0))
    assert set(asked) == {Path("/run/model_1.pt")}
    assert "Traceback" not in capfd.readouterr().err.replace("print_threadpool_errors", "")


def test_the_command_is_the_one_that_was_given_last() -> None:
    """Sliders show what keys and sticks have set, and must not set it again later."""
    player = Player(mjtrain.RankContext(), make_untrained_run("Quadruped-Velocity-Flat"), num_envs=2, policy="zero")
    session = PolicySession(player)
    session.paused = True
    server = serve_page("127.0.0.1", 0)
    try:
        panels = Panels(server, session, ViserMujocoScene(server, session.kinematics.model, 2))
        handles = list(server.gui._gui_input_handle_from_uuid.values())
        manual = next(handle for handle in handles if handle.label == "Manual")
        sliders = handles[handles.index(manual) + 1 :][:3]

        def tick() -> list[float]:
            session.tick(0.0)
            panels.refresh()
            commanded = player.env.drawn_command("velocity")[1, :3].tolist()
            assert [slider.value for slider in sliders] == pytest.approx(commanded)
            return [round(value, 2) for value in commanded]

        panels.refresh()
        assert not manual.value
        session.press("u")
        assert (tick(), manual.value) == ([0.0, 0.0, 0.2], True)
        session.push((1.0, 0.0, -0.55))  # before the next tick
        assert tick() == [1.0, 0.0, -0.5]
        assert tick() == [1.0, 0.0, -0.5]
        send(sliders[1], 0.25)
        assert tick() == [1.0, 0.25, -0.5]
        session.press("m")
        assert tick() == [0.0, 0.0, 0.0]
        send(manual, value=False)
        session.tick(0.0)
        session.press("i")
        assert (tick(), manual.value) == ([0.2, 0.0, 0.0], True)
        session.press("i")
        session.tick(0.0)
        send(manual, value=False)  # before the page shows the key
        panels.refresh()
        session.tick(0.0)
        panels.refresh()
        assert (manual.value, player.env.is_steered("velocity")) == (False, False)
        session.press("i")
        session.tick(0.0)
        send(sliders[0], -0.5)
        panels.refresh()
        assert tick() == [-0.5, 0.0, 0.0]
        send(sliders[0], 0.75)
        session.press("m")
        assert tick() == [0.0, 0.0, 0.0]
        send(manual, value=False)
        session.tick(0.0)
        session.press("m")
        assert (tick(), manual.value) == ([0.0, 0.0, 0.0], True)
    finally:
        server.stop()


def send(handle: Any, value: Any) -> None:
    """Do what viser does with a value from a page: cast it to the type of the current one, and call back."""
    state = handle._impl
    try:
        if isinstance(state.value, tuple):
            state.value = tuple(type(state.value[0])(value) for _ in state.value)
        else:
            state.value = type(state.value)(value)
    except (TypeError, ValueError, OverflowError):
        return
    for callback in state.update_cb:
        try:
            callback(viser.GuiEvent(SimpleNamespace(), 0, handle))  # pyright: ignore[reportArgumentType]
        except Exception:  # viser's thread prints it
            continue
