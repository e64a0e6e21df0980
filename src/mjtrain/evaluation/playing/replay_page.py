"""A page to send: recorded episodes of a policy in one HTML file, which needs no network."""

import base64
import hashlib
import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from mjtrain.config import EnvConfig, PlayConfig
from mjtrain.env.catalog import shared_name
from mjtrain.evaluation.eval_config import UNFINISHED
from mjtrain.evaluation.playing.trajectories import Trajectory, record_episodes
from mjtrain.evaluation.playing.viewer_session import to_poses
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import check_writable, write_out
from mjtrain.runtime.rank import RankContext
from mjtrain.sim.drawing.scene import Scene, body_poses, make_grounds, make_scene
from mjtrain.sim.robots.kinematics import Kinematics

FPS = 30
"""Frames per second of simulated time, at most; the page interpolates between them."""

_PAGE = files("mjtrain.evaluation.playing") / "page"
_SCRIPTS = ("shapes.js", "renderer.js", "page.js")


def check_page(config: PlayConfig) -> None:
    """Raise a RequestError unless the page can be written."""
    out = Path(config.html or "")
    if out.suffix not in (".html", ".htm"):
        raise RequestError(f"--html {out}: give a name that ends in .html")
    check_writable("--html", out)


def write_page(context: RankContext, run: TrainedRun, config: PlayConfig) -> Path:
    """Play some episodes and write them as one HTML file."""
    from mjtrain.evaluation.playing.player import Player

    assert config.html is not None
    with Player(
        context, run, num_envs=config.html_episodes, engine=config.engine, policy=config.policy, held=config.held
    ) as player:
        max_steps = max(2, round(config.html_length_s / player.env.step_dt))
        episodes = sorted(
            record_episodes(player, 1, max_steps=max_steps, observations=False), key=lambda episode: episode.world
        )
        builder = _Builder(run.own_env, player.env)
        content = builder.build(shared_name(run.task), _describe(player, config), episodes)
    out = Path(config.html).absolute()
    write_out(out, render_page(content))
    return out


def render_page(content: dict[str, Any]) -> str:
    """Put data and scripts into the page. Nothing of the data can end the element that it is in.

    Its security policy allows the scripts and styles of this package, by their hashes, and no request to anywhere.
    """
    style = _PAGE.joinpath("page.css").read_text()
    script = "\n".join(_PAGE.joinpath(name).read_text() for name in _SCRIPTS)
    data = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {"style": style, "script": script, "style_hash": _hash(style), "script_hash": _hash(script), "data": data}
    page = _PAGE.joinpath("page.html").read_text()
    for name, text in parts.items():  # data last: it may contain what looks like a place of another part
        page = page.replace(f"{{{name}}}", text, 1)
    return page


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _describe(player: Any, config: PlayConfig) -> str:
    if player.checkpoint is None:
        return f"policy {player.policy_name}, seed {config.seed}"
    name = player.run.place or player.checkpoint.parent.name  # a shared policy lies in a cache
    return f"{name}, iteration {player.iteration}, seed {config.seed}"


class _Builder:
    """Turns episodes into what the page reads."""

    def __init__(self, config: EnvConfig, env: Any) -> None:
        self._config, self._env = config, env
        self._kinematics = Kinematics(config)
        self._stride = max(1, math.ceil(1 / (FPS * env.step_dt) - 1e-6))  # without what is only rounding

    def build(self, title: str, about: str, episodes: list[Trajectory]) -> dict[str, Any]:
        scene = make_scene(self._kinematics.model, episodes[0].arrays["qpos"][0])
        return {
            "title": title,
            "about": f"{about}. Drag to turn, right-drag or two fingers to move, wheel or pinch to zoom.",
            "scene": {
                "geoms": scene.geoms,
                "meshes": [
                    {"vertices": pack(vertices), "faces": pack(faces.astype(np.uint32))}
                    for vertices, faces in scene.meshes
                ],
                "follows": scene.follows,
                "center": scene.center,
                "size_m": self._kinematics.size_m,
            },
            "episodes": [self._episode(episode, scene) for episode in episodes],
        }

    def _episode(self, episode: Trajectory, scene: Scene) -> dict[str, Any]:
        qpos = episode.arrays["qpos"][:: self._stride].astype(float)
        model = self._kinematics.model
        poses = body_poses(model, qpos, scene.bodies)
        grounds = make_grounds(model, qpos, scene.bodies)
        return {
            "frame_dt": self._env.step_dt * self._stride,
            "positions": pack(poses[:, :, :3]),
            "quats": pack(poses[:, :, 3:]),
            "grounds": [{**ground, "grid": pack(ground["grid"])} for ground in grounds],
            "marks": [pack(pose) for pose in self._commanded_poses(episode)],
            "curves": [*self._commands(episode), self._rewards(episode)],
            "outcome": self._outcome(episode),
        }

    def _outcome(self, episode: Trajectory) -> str:
        seconds, total = episode.num_steps * self._env.step_dt, episode.arrays["rewards"].sum()
        cut = episode.causes == (UNFINISHED,)
        end = "recorded until here" if cut else f"ended by {', '.join(episode.causes)}"
        return f"{seconds:.1f} s, return {total:.2f}, {end}"

    def _commands(self, episode: Trajectory) -> list[dict[str, Any]]:
        found = []
        for name, term in self._config.commands.items():
            values = episode.arrays[f"commands/{name}"][:: self._stride]
            if term.is_pose:
                continue
            labels = list(term.controls) if len(term.controls) == values.shape[1] else map(str, range(values.shape[1]))
            found.append({"title": f"Command {name}", "names": list(labels), "values": pack(values)})
        return found

    def _rewards(self, episode: Trajectory) -> dict[str, Any]:
        values = episode.arrays["reward_terms"] / self._env.step_dt
        begins = np.arange(0, len(values), self._stride)
        means = np.add.reduceat(values, begins, axis=0) / np.diff(np.append(begins, len(values)))[:, None]
        return {"title": "Rewards per second", "names": list(self._config.rewards), "values": pack(means)}

    def _commanded_poses(self, episode: Trajectory) -> list[np.ndarray]:
        """Return where the page marks commands. Shape (frames, 7) each."""
        commands, qpos = self._config.commands, episode.arrays["qpos"][:: self._stride]
        return [
            to_poses(episode.arrays[f"commands/{name}"][:: self._stride], term.object, qpos, self._kinematics)
            for name, term in commands.items()
            if term.is_pose
        ]


def pack(values: np.ndarray) -> dict[str, Any]:
    """Return an array as the page reads it: little-endian int16 steps of its range, or uint32 as they are, in base64.

    A value that is not finite becomes the nearest finite one of the array, or 0.
    """
    if values.dtype == np.uint32:
        data = base64.b64encode(values.astype("<u4").tobytes()).decode()
        return {"type": "uint32", "shape": values.shape, "data": data}
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    scale = (high - low) / 65534 or 1.0
    offset = low + 32767 * scale
    clean = np.clip(np.nan_to_num(values, nan=0.0, posinf=high, neginf=low), low, high)
    steps = np.round((clean - offset) / scale).astype("<i2")
    data = base64.b64encode(steps.tobytes()).decode()
    return {"type": "int16", "shape": values.shape, "offset": offset, "scale": scale, "data": data}
