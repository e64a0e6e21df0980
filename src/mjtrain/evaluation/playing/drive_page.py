"""A page around the viewer that steers the robot by the keys and the gamepad of the browser."""

import http
import math
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mjtrain.deployment.steering import HELP, KEYS, REST_KEY
from mjtrain.evaluation.playing.policy_session import PolicySession
from mjtrain.evaluation.playing.viewer_session import ViewerSession

Driver = Callable[[Any, Any], Any]
"""Takes a connection and a request, and returns a response, or None for a request of another page."""

PATH = "/drive"

_HEADER = "X-Mjtrain-Drive"
"""Only a page of the same origin can send it: for others a browser asks the server first, which refuses."""

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>mjtrain: drive</title>
<style>
  body { margin: 0; height: 100vh; display: flex; flex-direction: column; font: 14px sans-serif; }
  iframe { flex: 1; border: 0; }
  p { margin: 0; padding: 6px 10px; background: #222; color: #eee; }
</style>
<iframe id="view" src="/"></iframe>
<p>HELP; or the sticks of a gamepad. <span id="values"></span></p>
<script>
  const view = document.getElementById("view"), values = document.getElementById("values");
  const send = async query => {
    const answer = await fetch("PATH?" + query, {headers: {"HEADER": "1"}, signal: AbortSignal.timeout(2000)});
    values.textContent = await answer.text();
  };
  const onKey = event => {
    const typing = ["INPUT", "TEXTAREA"].includes(event.target.tagName);
    if (!typing && "KEYS".includes(event.key)) send("key=" + event.key);
  };
  window.addEventListener("keydown", onKey);
  view.addEventListener("load", () => view.contentWindow.addEventListener("keydown", onKey));
  let pushed = "", used = false, busy = false;
  setInterval(async () => {
    const pad = navigator.getGamepads().find(found => found !== null);
    if (!pad || busy) return;
    const sticks = [1, 0, 2].map(axis => -(pad.axes[axis] || 0)).map(stick => Math.abs(stick) > 0.1 ? stick : 0);
    const query = sticks.map(stick => stick.toFixed(2)).join();
    used ||= sticks.some(stick => stick);  // one that lies there, and trembles, leaves the keys alone
    if (!used || query === pushed) return;
    busy = true;  // requests in flight at once could arrive in another order
    try {
      await send("sticks=" + query);
      pushed = query;
    } catch {
      // It may not have arrived, so the next call sends it again: a stick that was let go must not be lost.
    } finally {
      busy = false;
    }
  }, 50);
</script>
"""


def make_driver(session: ViewerSession) -> Driver | None:
    """Return what answers the requests of the page; None where nothing can be steered."""
    if not isinstance(session, PolicySession) or session.steering is None:
        return None
    return partial(_answer, session)


def _answer(session: PolicySession, connection: Any, request: Any) -> Any:
    parts = urlsplit(request.path)
    if parts.path != PATH:
        return None
    if not parts.query:
        response = connection.respond(http.HTTPStatus.OK, _page())
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


def _page() -> str:
    words = {"HELP": HELP, "PATH": PATH, "HEADER": _HEADER, "KEYS": "".join(KEYS) + REST_KEY}
    page = _PAGE
    for name, value in words.items():
        page = page.replace(name, value)
    return page
