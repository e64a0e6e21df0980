"""The page to send, in a real Chromium: it moves, needs no network, and shows what a run says as mere text."""

import base64
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import mujoco
import numpy as np
import pytest
from playwright.sync_api import Browser

from mjtrain.cli.play import main
from mjtrain.env.catalog import load_task
from mjtrain.evaluation.playing.replay_page import pack, render_page
from mjtrain.sim.drawing.scene import make_grounds, make_scene, merge_vertices
from mjtrain.sim.robots.model import load_model
from support.browser import decode_picture, differing, drawn, open_browser, wait_for
from support.machine import patience


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


def content_of(page: Path) -> dict:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_moves_without_a_network(
    browser: Browser, log_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "walk.html"
    options = ["--html", str(out), "--html-episodes", "2", "--html-length-s", "2", "--num-threads", "1"]
    main(["Quadruped-Velocity-Flat", "--log-root", str(log_root), *options])
    assert capsys.readouterr().out.strip() == str(out)
    assert out.stat().st_size < 2_000_000
    page = browser.new_page(viewport={"width": 700, "height": 450})
    page.set_default_timeout(1000 * patience(30.0))
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(out.as_uri())
    page.get_by_role("button", name="Pause").click()
    scene = page.locator("#scene")

    def look(time: float) -> np.ndarray:
        page.evaluate("time => { seek(time); draw(); }", time)
        return decode_picture(scene.screenshot())

    first = look(0.0)
    assert drawn(first) > 2000
    assert differing(first, look(0.0)) == 0
    assert differing(first, look(0.4)) > 100
    page.get_by_label("Episode").select_option("1")
    assert differing(first, look(0.0)) > 100
    page.get_by_role("button", name="Play").click()
    wait_for(lambda: float(page.locator("#time").input_value()) > 0)
    assert (asked, errors) == ([out.as_uri()], [])


def test_what_a_run_says_is_not_markup(browser: Browser, log_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    options = ["--html", str(out), "--html-episodes", "1", "--html-length-s", "0.2", "--num-threads", "1"]
    main(["Cartpole-Balance", "--log-root", str(log_root), "--env.decimation", "6", *options])
    content = content_of(out)
    assert content["episodes"][0]["frame_dt"] == pytest.approx(0.048), "at most 30 frames a second, of 0.024 s each"
    evil = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">{script}"
    content["title"] = evil
    content["episodes"][0]["curves"][0]["names"][0] = evil
    out.write_text(render_page(content))
    page = browser.new_page()
    page.goto(out.as_uri())
    page.locator("figure span").first.wait_for()
    assert page.title() == evil
    assert page.locator("#title").inner_text() == evil
    assert page.locator("img").count() == 0


@pytest.mark.parametrize(
    ("size", "quat", "place"),
    [
        pytest.param([0, 0], [1, 0, 0, 0], [32, 4, 3], id="floor"),
        pytest.param([0, 0], [0.5**0.5, 0, 0.5**0.5, 0], [2, 4, 7], id="wall"),
        pytest.param([0, 0], [0.6, 0, 0, 0.8], [31.92, 4.56, 3], id="turned floor"),
        pytest.param([1, 0], [1, 0, 0, 0], [2, 4, 3], id="path"),
    ],
)
def test_an_infinite_plane_follows_the_camera_within_itself(
    browser: Browser, size: list[float], quat: list[float], place: list[float]
) -> None:
    """It moves by whole pairs of squares, and only along what is infinite."""
    page = browser.new_page()
    for name in ("shapes.js", "renderer.js"):
        page.add_script_tag(content=files("mjtrain.evaluation.playing").joinpath("page", name).read_text())
    thing = {"shape": "plane", "body": -1, "size": size, "square_m": 1.0}
    placed = page.evaluate(
        "([geom, quat]) => Renderer.prototype.place("
        "{ geom, pose: rigid([2, 0, 3], quat), endless: true }, [], [31.7, 4.4, 6.2]).slice(12, 15)",
        [thing, quat],
    )
    assert placed == pytest.approx(place, abs=1e-5)


def test_packed_numbers_are_near_the_true_ones() -> None:
    values = np.array([[0.1, -3.0, 20.0], [np.nan, np.inf, 7.25]])
    packed = pack(values)
    steps = np.frombuffer(base64.b64decode(packed["data"]), "<i2").reshape(packed["shape"])
    assert packed["offset"] + packed["scale"] * steps[0] == pytest.approx(values[0], abs=23 / 65534)
    assert packed["offset"] + packed["scale"] * steps[1, 1] == pytest.approx(20.0, abs=1e-3)
    assert np.isfinite(json.loads(json.dumps(pack(np.full(3, 2.0))))["scale"])


def test_meshes_become_smaller_and_keep_their_extent() -> None:
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(60.0), np.arange(40.0)))
    vertices = np.stack([x, y, np.sin(x / 9)], axis=1)
    corner = (np.arange(39)[:, None] * 60 + np.arange(59)).ravel()
    faces = np.concatenate([np.stack([corner, corner + a, corner + b], axis=1) for a, b in ((1, 61), (61, 60))])
    fewer, kept = merge_vertices(vertices, faces, 500)
    assert 200 < len(kept) <= 500
    assert kept.max() < len(fewer)
    assert np.ptp(fewer, axis=0)[:2] == pytest.approx([59, 39], abs=4)
    assert merge_vertices(vertices, faces, 10_000)[1] is faces


def test_the_scene_has_what_is_visible() -> None:
    model = load_model(load_task("Quadruped-Velocity-Rough").env)
    pose = model.key_qpos[0]
    scene = make_scene(model, pose)
    assert {geom["shape"] for geom in scene.geoms} >= {"box", "cylinder", "sphere"}
    assert scene.follows == 0
    (ground,) = make_grounds(model, pose[None], scene.bodies)
    assert ground["body"] == -1
    assert ground["square_m"] > 0
    rows, columns = ground["grid"].shape
    assert 8 <= 2 * ground["extent"][0] < 8.5
    assert rows * columns < model.hfield_nrow[0] * model.hfield_ncol[0] / 4


def test_a_height_field_on_a_moving_body_moves_with_it() -> None:
    field = '<hfield name="field" nrow="2" ncol="3" size="1 1 1 .1" elevation="0 1 0 1 0 1"/>'
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><asset>{field}</asset><worldbody><body name="tray"><joint name="hinge"/><geom size=".1"/>'
        '<body name="top" pos="0 0 1"><joint name="slide" type="slide"/><inertial mass="1" pos="0 0 0" '
        'diaginertia="1 1 1"/><geom type="hfield" hfield="field"/></body></body></worldbody></mujoco>'
    )
    scene = make_scene(model, model.qpos0)
    (ground,) = make_grounds(model, model.qpos0[None], scene.bodies)
    assert scene.bodies[ground["body"]] == model.body("top").id
    assert ground["grid"].shape == (2, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--html", "walk.htm5"), "--html walk.htm5"),
        (("--html", "nowhere/walk.html"), "nowhere"),
        (("--html", "walk.html", "--html-episodes", "0"), "--html-episodes 0"),
        (("--html", "walk.html", "--html-length-s", "inf"), "--html-length-s inf"),
        (("--html", "walk.html", "--record", "data"), "--html --record"),
    ],
)
def test_a_page_that_cannot_be_written_is_one_line(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["Cartpole-Balance", "--policy", "zero", *options])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err
