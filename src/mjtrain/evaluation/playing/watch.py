"""Start the viewer that play was asked for."""

import contextlib
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mjtrain.config import PlayConfig, TerrainConfig
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError, require
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.standard_streams import write_to_stderr

if TYPE_CHECKING:
    from mjtrain.evaluation.playing.viewer_session import ViewerSession
    from mjtrain.motion.motion import Motion
    from mjtrain.motion.skeleton import Skeleton

_VISER_TRIES = 1000
"""Number of ports that viser tries, one after the other."""


def check_viewer(config: PlayConfig) -> None:
    """Raise a RequestError if the requested viewer cannot run here."""
    if config.viewer == "native":
        from mjtrain.evaluation.playing.native_viewer import check_display

        check_display()
    if config.viewer == "web":
        if not 0 <= config.viewer_port <= 65535:
            raise RequestError(f"--viewer-port {config.viewer_port}: must be from 0 to 65535")
        require("--viewer web:", "viewer", "viser", "mjviser")
        _check_address(config.viewer_host, config.viewer_port)


def _check_address(host: str, port: int) -> None:
    """Raise a RequestError if viser cannot listen, where it would wait forever."""
    try:
        addresses = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM)
        _try_to_listen(addresses, 0)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"--viewer-host {host}: is not an address of this machine ({reason})") from error
    last = min(port + _VISER_TRIES - 1, 65535)
    for candidate in range(port, last + 1):
        with contextlib.suppress(OSError):
            return _try_to_listen(addresses, candidate)
    tried = "is taken" if port == last else f"no port from it to {last} is free"
    raise RequestError(f"--viewer-port {port}: {tried}; give another one, or 0 for any that is free")


def _try_to_listen(addresses: list[Any], port: int) -> None:
    """Raise an OSError unless a port can be listened on."""
    for family, kind, _, _, address in addresses:
        try:
            probe = socket.socket(family, kind)
        except OSError:  # of a family that the kernel lacks; viser passes over it, too
            continue
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as viser's server does
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address[0], port, *address[2:]))
            probe.listen()


def watch(context: RankContext, run: TrainedRun, config: PlayConfig) -> None:
    """Show a policy in a viewer until the viewer is closed or a signal arrives; arguments as for `evaluate.measure`."""
    from mjtrain.evaluation.episodes import resolve_run_size
    from mjtrain.evaluation.playing.player import Player
    from mjtrain.evaluation.playing.policy_session import PolicySession

    num_envs, _ = resolve_run_size(1, config.num_envs)
    with Player(context, run, num_envs=num_envs, engine=config.engine, policy=config.policy) as player:
        session = PolicySession(player)
        session.follows = config.follow
        _run_viewer(session, config)


def replay(_: RankContext, run: TrainedRun, config: PlayConfig) -> list[str]:
    """Show a NaN dump in a viewer, or describe it in lines; arguments as for `evaluate.measure`."""
    from mjtrain.evaluation.playing.replay import ReplaySession, check_dump, describe_dump, load_dump
    from mjtrain.sim.robots.kinematics import Kinematics

    assert config.replay is not None
    dump = load_dump(Path(config.replay))
    if config.viewer == "none":
        kinematics = Kinematics(run.own_env)
        check_dump(dump, kinematics)
        return describe_dump(dump, kinematics)
    _run_viewer(ReplaySession(dump, run.own_env), config)
    return []


def show_motion(path: Path, motion: "Motion", skeleton: "Skeleton", config: PlayConfig) -> None:
    """Show a reference motion in a viewer until the viewer is closed or a signal arrives."""
    from mjtrain.evaluation.playing.replay import Dump, ReplaySession
    from mjtrain.motion.report import report_motion
    from mjtrain.sim.robots.model import list_grounds, robot_only

    qpos = skeleton.qpos(motion).numpy()
    empty = np.zeros((len(qpos), 0))
    frames = Dump(
        path=path, qpos=qpos, qvel=skeleton.qvel(motion).numpy(), act=empty, ctrl=empty, step_dt=1 / motion.fps, world=0
    )
    lines = [f"{name}: {value}" for name, value in report_motion(motion, skeleton).rows()]
    scene = robot_only(skeleton.robot)
    if not list_grounds(skeleton.model):
        scene = replace(scene, terrain=TerrainConfig(kind="flat"))
    _run_viewer(ReplaySession(frames, scene, lines), config)


def _run_viewer(session: "ViewerSession", config: PlayConfig) -> None:
    if config.viewer == "native":
        from mjtrain.evaluation.playing.native_viewer import KEYS, run_native_viewer

        write_to_stderr(f"viewer: {KEYS}")
        run_native_viewer(session)
        return
    from mjtrain.evaluation.playing.web_viewer import WebViewer

    viewer = WebViewer(session, host=config.viewer_host, port=config.viewer_port)
    drive = f"; {viewer.drive_address} steers by keys or a gamepad" if viewer.drive_address else ""
    write_to_stderr(f"viewer: {viewer.address} (Ctrl-C ends){drive}")
    viewer.run()
