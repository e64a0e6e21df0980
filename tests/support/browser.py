"""A real browser for the viewer: Chromium without a screen, drawing in software."""

import io
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from mjtrain.evaluation.playing.viewer_session import ViewerSession
from mjtrain.evaluation.playing.web_viewer import WebViewer
from support.machine import patience, wait_until

_MESA = Path("/usr/share/glvnd/egl_vendor.d/50_mesa.json")
_ARGS = ["--no-sandbox", "--use-gl=angle"] + (
    ["--use-angle=gl-egl", "--ignore-gpu-blocklist"]  # Mesa needs a third of the CPU time
    if _MESA.exists()
    else ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
)

PANEL_WIDTH = 400
"""Pixels on the right that may belong to buttons and sliders."""

SCALE = 0.5
"""Pixels that are drawn for each of the page's, along each axis: drawn in software, they cost most of a test's time."""

FEWER_FRAMES = """
const draw = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = then => setTimeout(() => draw(then), 200);
window.cancelAnimationFrame = clearTimeout;
"""
"""Without it a page draws as many frames as it can, and one drawn in software costs up to a second of a core."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium; skips where there is none."""
    with sync_playwright() as playwright:
        names = ("chromium-headless-shell", "chromium", "google-chrome")
        installed = next(filter(None, map(shutil.which, names)), None) or playwright.chromium.executable_path
        if not Path(installed).exists():
            pytest.skip("there is no Chromium: apt-get install chromium-headless-shell, or playwright install chromium")
        browser = playwright.chromium.launch(executable_path=installed, args=_ARGS)
        yield browser
        browser.close()


@contextmanager
def serve_viewer(session: ViewerSession) -> Iterator[str]:
    """Serve a session; the value is the address of its page."""
    viewer = WebViewer(session, host="127.0.0.1", port=0)
    stop = threading.Event()
    server = threading.Thread(target=viewer.run, args=(stop.is_set,))
    server.start()
    try:
        yield viewer.address
    finally:
        stop.set()
        server.join(patience(30.0))
    assert not server.is_alive()


def open_page(browser: Browser, address: str, *, width: int, height: int) -> Page:
    """Open a page of the viewer, which draws little."""
    page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=SCALE)
    page.add_init_script(FEWER_FRAMES)
    page.set_default_timeout(1000 * patience(30.0))
    page.goto(address)
    return page


@contextmanager
def open_viewer(browser: Browser, session: ViewerSession, *, width: int = 800, height: int = 400) -> Iterator[Page]:
    """Serve a session and open its page."""
    with serve_viewer(session) as address:
        page = open_page(browser, address, width=width, height=height)
        page.get_by_role("button", name="Reset").wait_for()
        page.locator("canvas").first.wait_for()
        close = page.locator(".mantine-Notification-closeButton")  # viser says that drawing in software is slow
        wait_for(lambda: close.count() > 0)
        close.first.click()
        wait_for(lambda: close.count() == 0)
        yield page
        page.close()


def wait_for(condition: Callable[[], bool]) -> None:
    wait_until(condition, "the browser shows what was asked for")


def look(page: Page) -> np.ndarray:
    """Take a picture of the next frame, without the panel. Shape (SCALE * height, SCALE * width, 3), uint8."""
    # `evaluate` has no limit: a page that draws no frame would hold the test for as long as pytest lets it.
    page.evaluate("() => new Promise(then => { requestAnimationFrame(then); setTimeout(then, 5000); })")
    size = page.viewport_size
    assert size is not None
    clip = {"x": 0, "y": 0, "width": size["width"] - PANEL_WIDTH, "height": size["height"]}
    return decode_picture(page.screenshot(clip=clip))  # pyright: ignore[reportArgumentType]


def decode_picture(png: bytes) -> np.ndarray:
    """Read a screenshot. Shape (height, width, 3), uint8."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def differing(first: np.ndarray, second: np.ndarray) -> int:
    """Count pixels that look different."""
    return int((np.abs(first.astype(int) - second.astype(int)).max(axis=2) > 8).sum())


def drawn(picture: np.ndarray) -> int:
    """Count pixels that are not of the most frequent colour, the background."""
    colors, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    background = colors[counts.argmax()]
    return int((np.abs(picture.astype(int) - background).max(axis=2) > 8).sum())
