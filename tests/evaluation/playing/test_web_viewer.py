"""The viewer in a real Chromium: what is drawn moves, stands still, obeys."""

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Locator

import mjtrain
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.evaluation.playing.player import Player
from mjtrain.evaluation.playing.policy_session import PolicySession
from mjtrain.runs.trained_run import find_trained_run, make_untrained_run
from support.browser import (
    decode_picture,
    differing,
    drawn,
    look,
    open_browser,
    open_page,
    open_viewer,
    serve_viewer,
    wait_for,
)
from support.vision import make_vision_task, train_vision

DRAW_IMAGE = """
async image => {
    while (!image.complete || image.naturalWidth === 0) await new Promise(then => setTimeout(then, 10));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/png").split(",")[1];
}
"""
"""What the browser shows in an <img>, as a PNG. A screenshot waits for the page to stand still, which it may not do for
half a minute where Chromium draws the scene on a busy CPU."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


class BusySession(PolicySession):
    """A session whose answers come late, as on a busy machine."""

    lag_s = 0.0

    def tick(self, elapsed_s: float) -> bool:
        changed = super().tick(elapsed_s)
        time.sleep(self.lag_s)
        return changed


def press(slider: Locator, key: str, times: int) -> None:
    """Press a key as often as a user who holds it down, faster than a busy session answers."""
    slider.focus()
    for _ in range(times):
        slider.press(key, delay=20)


def make_session(task: str, log_root: Path, num_envs: int = 1) -> BusySession:
    run = find_trained_run(task, log_root=str(log_root))
    return BusySession(
        Player(mjtrain.RankContext(seed=1), replace(run, env=to_eval_config(run.own_env)), num_envs=num_envs)
    )


def test_the_quadruped_moves_stands_still_and_obeys(browser: Browser, log_root: Path) -> None:
    session = make_session("Quadruped-Velocity-Flat", log_root)
    env = session.player.env
    with open_viewer(browser, session) as page:
        wait_for(lambda: drawn(look(page)) > 500)
        running = look(page)
        wait_for(lambda: differing(running, look(page)) > 25)

        page.get_by_role("button", name="Pause").click()
        wait_for(lambda: session.paused)
        page.get_by_role("button", name="Resume").wait_for()
        still = settle(lambda: look(page))
        steps = session.num_steps
        assert differing(still, settle(lambda: look(page))) == 0
        assert session.num_steps == steps

        slider = page.get_by_role("slider").first
        press(slider, "End", 1)
        wait_for(lambda: env.drawn_command("velocity")[0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0])
        session.lag_s = 0.3
        press(slider, "ArrowLeft", 25)  # each by a hundredth of the range from -1 to 1
        wait_for(lambda: env.drawn_command("velocity")[0, 0].item() == pytest.approx(0.5))
        press(slider, "End", 1)
        wait_for(lambda: env.drawn_command("velocity")[0, 0].item() == 1.0)
        session.lag_s = 0.0
        seen = env.observe()["actor"]
        columns = slice(9, 12)  # after velocity, turning and up; scaled by 2
        assert not torch.allclose(seen[0, columns], torch.tensor([2.0, 0.0, 0.0]), atol=1e-3)
        for count in range(1, 11):  # the robot may lie still for a few steps
            page.get_by_role("button", name="Step").click()
            wait_for(lambda count=count: session.num_steps == steps + count)
        wait_for(lambda: differing(still, look(page)) > 25)
        page.get_by_role("button", name="Resume").click()
        wait_for(lambda: session.num_steps > steps + 60)
        page.get_by_role("button", name="Pause").click()
        wait_for(lambda: session.paused)
        since_start_s = (int(env.episode_step[0]) + 1) * env.step_dt
        forward = min(1.0, 2.0 * since_start_s)  # the robot may have fallen, and a start approaches it by 2 m/s^2
        assert env.command("velocity")[0].tolist() == pytest.approx([forward, 0.0, 0.0], abs=1e-5)
        assert env.observe()["actor"][0, columns].tolist() == pytest.approx([2 * forward, 0.0, 0.0], abs=1e-5)

        before, position = settle(lambda: look(page)), session.state("qpos")
        page.get_by_role("button", name="Reset").click()
        wait_for(lambda: int(env.episode_step[0]) == 0)
        assert np.abs(session.state("qpos") - position).max() > 0.01
        wait_for(lambda: differing(before, look(page)) > 25)
        assert page.get_by_text("paused").count() == 1


def test_the_reference_is_a_ghost_to_start_from(browser: Browser) -> None:
    run = make_untrained_run("Quadruped-Track")
    run = replace(run, env=to_eval_config(run.own_env))
    session = BusySession(Player(mjtrain.RankContext(seed=1), run, policy="zero"))
    session.paused, session.lag_s = True, 0.3
    env = session.player.env
    with open_viewer(browser, session) as page:
        press(page.get_by_role("slider").first, "ArrowRight", 25)
        page.get_by_text("reference trot: 0.50 s, frame 25").wait_for()
        assert int(env.command("motion")[0, 0]) == 0, "the robot has not moved"
        shown = settle(lambda: look(page))
        page.get_by_label("Ghost").uncheck()
        wait_for(lambda: differing(shown, look(page)) > 50)
        before = settle(lambda: look(page))
        page.get_by_role("button", name="Start here").click()
        wait_for(lambda: int(env.command("motion")[0, 0]) == 25)
        assert env.command_error("motion", "mpkpe")[0] < 0.06
        wait_for(lambda: differing(before, look(page)) > 25)
        page.get_by_role("button", name="Step").click()
        page.get_by_text("reference trot: 0.52 s, frame 26").wait_for()


LOSE_TWO_REQUESTS = """() => {
    const real = window.fetch;
    let left = 2;
    window.fetch = (...given) => left-- > 0 ? Promise.reject(new Error("lost")) : real(...given);
}"""


def test_keys_and_a_gamepad_of_the_browser_steer_the_robot(browser: Browser, log_root: Path) -> None:
    session = make_session("Quadruped-Velocity-Flat", log_root)

    def wanted() -> list[float]:
        return [round(value, 2) for value in session.player.env.drawn_command("velocity")[0, :3].tolist()]

    with serve_viewer(session) as viewer:
        address = f"{viewer}/drive"
        page = open_page(browser, address, width=400, height=200)
        assert page.request.get(f"{address}?key=i").status == 403, "another page could send this"
        view = page.frame_locator("iframe")
        view.get_by_role("button", name="Reset").wait_for()
        page.locator("p").click()
        page.keyboard.press("i")
        wait_for(lambda: wanted() == [0.2, 0.0, 0.0])
        view.locator("body").press("u")
        wait_for(lambda: wanted() == [0.2, 0.0, 0.2])
        page.evaluate(LOSE_TWO_REQUESTS)
        page.evaluate("navigator.getGamepads = () => [null, {axes: [0, -1, 0.55, 0]}]")
        wait_for(lambda: wanted() == [1.0, 0.0, -0.5])
        page.get_by_text("+1.00 +0.00 -0.50").wait_for()
        wait_for(lambda: view.get_by_role("slider").first.get_attribute("aria-valuenow") == "1")
        page.evaluate("navigator.getGamepads = () => [null, {axes: [0, 0.02, 0, 0]}]")
        wait_for(lambda: wanted() == [0.0, 0.0, 0.0])
        page.evaluate("axis = 0; navigator.getGamepads = () => [{axes: [0, axis = 0.03 - axis, 0, 0]}]")
        page.locator("p").click()
        page.keyboard.press("i")
        wait_for(lambda: wanted() == [0.2, 0.0, 0.0])
        page.wait_for_timeout(500)  # ten looks at the stick, which trembles
        assert wanted() == [0.2, 0.0, 0.0]
        refused = page.request.get(f"{address}?sticks=1,x,nan", headers={"X-Mjtrain-Drive": "1"})
        assert (refused.status, wanted()) == (400, [0.2, 0.0, 0.0])
        page.close()


def test_cartpole_changes_its_checkpoint_and_follows_its_training(
    browser: Browser, log_root: Path, cartpole_run: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "cartpole_balance" / "2026-01-01_00-00-00"
    (run_dir / "params").mkdir(parents=True)
    for file in (cartpole_run / "params").iterdir():
        (run_dir / "params" / file.name).write_bytes(file.read_bytes())
    for iteration in (10, 20):
        (run_dir / f"model_{iteration}.pt").write_bytes((cartpole_run / f"model_{iteration}.pt").read_bytes())
    session = make_session("Cartpole-Balance", tmp_path, num_envs=4)
    assert session.player.iteration == 20
    with open_viewer(browser, session) as page:
        wait_for(lambda: drawn(look(page)) > 250)
        page.get_by_role("combobox").and_(page.locator("[value='model_20.pt']")).click()
        page.get_by_role("option", name="model_10.pt").click()
        wait_for(lambda: session.player.iteration == 10)
        (run_dir / "model_39.pt").write_bytes((cartpole_run / "model_40.pt").read_bytes()[:-100])
        page.get_by_label("Follow training").check()
        wait_for(lambda: "model_39.pt" in session.problem)
        assert session.player.iteration == 10
        (run_dir / "model_40.pt").write_bytes((cartpole_run / "model_40.pt").read_bytes())
        wait_for(lambda: session.player.iteration == 40)
        page.get_by_text("model_40.pt (iteration 40)").wait_for()
        assert session.problem == ""


def test_panels_show_what_the_cameras_see(browser: Browser, tmp_path: Path) -> None:
    run = find_trained_run(str(train_vision(make_vision_task(), tmp_path)))
    player = Player(mjtrain.RankContext(seed=1), replace(run, env=to_eval_config(run.own_env)), num_envs=2)
    session = PolicySession(player)
    with open_viewer(browser, session) as page:
        for stream in ("rgb", "depth", "segmentation"):
            page.get_by_text(f"side {stream}").wait_for()
        panels = page.locator("img:visible")
        wait_for(lambda: panels.count() == 3)
        for panel in panels.all():
            wait_for(partial(panel.evaluate, "image => image.complete && image.naturalWidth > 0"))

        def look_at_panels() -> list[np.ndarray]:
            return [decode_picture(base64.b64decode(panel.evaluate(DRAW_IMAGE))) for panel in panels.all()]

        wait_for(lambda: all(drawn(picture) > 100 for picture in look_at_panels()))  # each shows the pole
        first = look_at_panels()
        wait_for(lambda: all(differing(a, b) > 20 for a, b in zip(first, look_at_panels(), strict=True)))

        page.get_by_role("button", name="Pause").click()
        wait_for(lambda: session.paused)
        still = settle(lambda: np.concatenate(look_at_panels()))
        assert differing(still, settle(lambda: np.concatenate(look_at_panels()))) == 0
    session.select(1)
    other = player.env.cameras.images("side", "rgb")[1].numpy()
    assert np.array_equal(next(iter(session.images().values())), other)


def settle(take: Callable[[], np.ndarray]) -> np.ndarray:
    """Wait until a picture shows what was asked for last, which it does when five in a row are the same."""
    pictures = [take()]

    def stands_still() -> bool:
        if differing(pictures[0], picture := take()):
            pictures.clear()
        pictures.append(picture)
        return len(pictures) == 5

    wait_for(stands_still)
    return pictures[0]
