"""Start the viewer that play was asked for."""

import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mjtrain.config import PlayConfig, TerrainConfig
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError, require
from mjtrain.runtime.rank import RankContext

if TYPE_CHECKING:
    from mjtrain.evaluation.playing.viewer_session import ViewerSession
    from mjtrain.motion.motion import Motion
    from mjtrain.motion.skeleton import Skeleton


def check_viewer(config: PlayConfig) -> None:
    """Raise a RequestError if the requested viewer cannot run here."""
    if config.viewer == "native":
        from mjtrain.evaluation.playing.native_viewer import check_display

        check_display()
    if config.viewer == "web":
        if not 0 <= config.viewer_port <= 65535:
            raise RequestError(f"--viewer-port {config.viewer_port}: must be from 0 to 65535")
        require("--viewer web:", "viewer", "viser", "mjviser")
        _check_host(config.viewer_host)


def _check_host(host: str) -> None:
    """Raise a RequestError if no port of an address can be listened on, where viser would wait forever."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM):
            try:
                probe = socket.socket(family, kind)
            except OSError:  # of a family that the kernel lacks; viser passes over it, too
                continue
            with probe:
                probe.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"--viewer-host {host}: is not an address of this machine ({reason})") from error


def watch(context: RankContext, run: TrainedRun, config: PlayConfig) -> None:
    """Show a policy in a viewer until the viewer is closed or a signal arrives; arguments as for `evaluate.measure`.

    Raises:
        RequestError: The viewer, the engine, the robot or the checkpoint do not fit.
    """
    from mjtrain.evaluation.playing.player import Player
    from mjtrain.evaluation.playing.policy_session import PolicySession

    num_envs = 1 if config.num_envs is None else config.num_envs
    if num_envs < 1:
        raise RequestError(f"--num-envs {num_envs}: must be at least 1")
    with Player(context, run, num_envs=num_envs, engine=config.engine, policy=config.policy) as player:
        session = PolicySession(player)
        session.follows = config.follow
        _run_viewer(session, config)


def replay(_: RankContext, run: TrainedRun, config: PlayConfig) -> list[str]:
    """Show a NaN dump in a viewer, or describe it in lines; arguments as for `evaluate.measure`.

    Raises:
        RequestError: The file is not a NaN dump or belongs to another robot, or the viewer cannot run here.
    """
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
    """Show a reference motion in a viewer until the viewer is closed or a signal arrives.

    Raises:
        RequestError: The motion is of another robot, or the viewer cannot run here.
    """
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

        _say(f"viewer: {KEYS}")
        run_native_viewer(session)
        return
    from mjtrain.evaluation.playing.drive_page import PATH
    from mjtrain.evaluation.playing.web_viewer import WebViewer

    viewer = WebViewer(session, host=config.viewer_host, port=config.viewer_port)
    drive = f"; {viewer.address}{PATH} steers by keys or a gamepad" if viewer.steers else ""
    _say(f"viewer: {viewer.address} (Ctrl-C ends){drive}")
    viewer.run()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201
