"""Find the run that `play` was asked for, and evaluate it, start a viewer or record a video."""

import contextlib
import os
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mjtrain.config import UNTRAINED, AnyEnvConfig, EnvConfig, GymnasiumConfig, PlayConfig, TaskConfig, TerrainConfig
from mjtrain.deployment.steering import find_beyond
from mjtrain.env.catalog import CUSTOM, resolve_task_name
from mjtrain.env.term_check import find_term_problems
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.runs.bundle_places import PRETRAINED, is_place
from mjtrain.runs.motion_places import resolve_motions
from mjtrain.runs.storage.store import hide_query
from mjtrain.runs.trained_run import TrainedRun, find_replayed_run, find_trained_run, is_run, make_untrained_run
from mjtrain.runtime.errors import RequestError, refuse, require
from mjtrain.runtime.files import check_writable, saying_where
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.standard_streams import write_to_stderr
from mjtrain.sim.drawing.backend import drawing_environ
from mjtrain.sim.engines import resolve_engine

if TYPE_CHECKING:
    from mjtrain.evaluation.playing.viewer_session import ViewerSession
    from mjtrain.motion.motion import Motion
    from mjtrain.motion.skeleton import Skeleton

_VISER_TRIES = 1000
"""Number of ports that viser tries, one after the other."""

_VIDEO_SIZE = (480, 360)
_RENDER_TIMEOUT_S = 600.0
_FOREIGN_FPS = 25.0
"""Frames per second where an environment does not say how long a step is."""


def find_run_to_play(task: str, config: PlayConfig) -> TrainedRun:
    """Find the run that `play` was asked for; its environment is configured for evaluation, see `to_eval_config`."""
    _check_held(config)
    if config.replay is not None:
        run = find_replayed_run(task, config.replay, trust=config.trust_run)
    elif (
        config.policy in UNTRAINED
        and config.run is None
        and config.checkpoint is None
        and not (is_run(task) or is_place(task))
    ):
        run = make_untrained_run(task)
        run = replace(run, env=resolve_motions(run.env)[0])
    else:
        run = find_trained_run(
            task,
            run=_name_run(task, config),
            checkpoint=config.checkpoint,
            log_root=config.log_root,
            trust=config.trust_run,
        )
    return _to_eval_run(run, config)


def _name_run(task: str, config: PlayConfig) -> str | None:
    """Return the run or bundle that is asked for; None for the newest run."""
    policy = config.policy
    if policy in ("trained", *UNTRAINED):
        return config.run
    place = f"{PRETRAINED}:{resolve_task_name(task)}" if policy == PRETRAINED else policy
    if not is_place(place):
        raise RequestError(
            f"--policy {policy}: give trained, zero, random, {PRETRAINED}, or a folder, .zip file or URL to which "
            "mjtrain push wrote a policy"
        )
    if config.run is not None:
        raise RequestError(
            f"--run {hide_query(config.run)}: --policy {hide_query(policy)} names a policy already; give one of them"
        )
    return place


def find_task_to_play(task: TaskConfig, config: PlayConfig) -> TrainedRun:
    """Return a task that was made in Python, configured for evaluation."""
    _check_held(config)
    if config.policy not in UNTRAINED and config.checkpoint is None:
        raise RequestError(
            'play() of a task that was made in Python needs a checkpoint, or policy="zero" or "random"; a trained run '
            "is played by its directory"
        )
    checkpoint = None if config.checkpoint is None else Path(config.checkpoint).absolute()
    env, _ = resolve_motions(task.env)
    run = TrainedRun(task=task.name or CUSTOM, env=env, agent=task.agent, checkpoint=checkpoint)
    return _to_eval_run(run, config)


def with_other_env(run: TrainedRun, env: AnyEnvConfig) -> TrainedRun:
    """Return a run that is played in another environment, which must have no problem that the run did not record."""
    env, _ = resolve_motions(env)
    problems = find_term_problems(env) if isinstance(env, EnvConfig) else []
    # A run may keep the problems that it was trained with. Its notices name them, see `runs.trained_run`.
    refuse(problem for problem in problems if not any(line.endswith(f"recorded {problem}") for line in run.notices))
    return replace(run, env=env)


def _check_held(config: PlayConfig) -> None:
    if config.values and not config.command:
        raise RequestError(f"--values {' '.join(map('{:.15g}'.format, config.values))}: needs --command")
    if config.command and config.sim_to_sim is not None:
        raise RequestError(f"--command {config.command}: leave out --sim-to-sim, which draws commands")
    if config.command and (config.viewer != "none" or config.replay is not None):
        raise RequestError(f"--command {config.command}: leave out --viewer, which has sliders for it, and --replay")


def _to_eval_run(run: TrainedRun, config: PlayConfig) -> TrainedRun:
    if not isinstance(run.env, EnvConfig):
        if config.engine != "auto":
            raise RequestError(f"--engine {config.engine}: {run.env.label} brings its own physics")
        for name in ("noise", "pushes", "randomization"):
            if getattr(config, name):
                raise RequestError(f"--{name}: {run.env.label} is played as it is; leave it out")
        drawn = config.video is not None and isinstance(run.env, GymnasiumConfig)
        ours = (config.replay, config.html, config.record)
        needs_ours = config.viewer != "none" or any(option is not None for option in ours)
        if needs_ours or (config.video is not None and not drawn):
            _ = run.own_env  # says that there is nothing to show
        return (
            replace(run, env=replace(run.env, kwargs={**run.env.kwargs, "render_mode": "rgb_array"})) if drawn else run
        )
    every = config.sim_to_sim is not None  # which takes them away itself
    env = to_eval_config(
        run.env, noise=config.noise or every, pushes=config.pushes or every, randomization=config.randomization or every
    )
    return replace(run, env=env)


def find_values_beyond(run: TrainedRun, config: PlayConfig) -> tuple[str, ...]:
    """Return a line for each of the values of a command that is outside of the bounds in the environment of a run."""
    term = run.env.commands.get(config.command) if isinstance(run.env, EnvConfig) else None
    beyond = () if term is None else find_beyond(term.controls, config.values)
    return tuple(f"--values {' '.join(map('{:.15g}'.format, config.values))}: {line}" for line in beyond)


def measure(context: RankContext, run: TrainedRun, config: PlayConfig) -> dict[str, Any]:
    """Play whole episodes in the env of a run, unchanged; return what was played, and what `summarise` returns."""
    from mjtrain.evaluation.episodes import play_episodes, resolve_run_size, summarise
    from mjtrain.evaluation.followed import FailuresByBin, find_followed
    from mjtrain.evaluation.playing.player import Player

    num_envs, per_env = resolve_run_size(config.episodes, config.num_envs)
    player = Player(context, run, num_envs=num_envs, engine=config.engine, policy=config.policy, held=config.held)
    with player:
        followed = find_followed(player.env)
        by_bin = None if followed is None else FailuresByBin(player.env, followed)
        episodes = play_episodes(player, per_env, by_bin=by_bin)
    return {
        "task": run.task,
        "policy": player.policy_name,
        "checkpoint": None if player.checkpoint is None else str(player.checkpoint),
        "iteration": player.iteration,
        "num_envs": num_envs,
        "episodes_per_env": per_env,
        "seed": config.seed,
        "engine": resolve_engine(config.engine, context.device) if isinstance(run.env, EnvConfig) else "its own",
        **{name: getattr(config, name) for name in ("noise", "pushes", "randomization")},
        **({"command": config.command, "values": list(config.values)} if config.command else {}),
        "step_dt_s": player.env.step_dt,
        **summarise(episodes, run.env, player.estimated_group),
        **({} if by_bin is None else {"by_time": by_bin.to_plain()}),
    }


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
    from mjtrain.evaluation.playing.viewer_session import ReplaySession, check_dump, describe_dump, load_dump
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
    from mjtrain.evaluation.playing.viewer_session import Dump, ReplaySession
    from mjtrain.motion.report import report_motion
    from mjtrain.sim.robots.model import list_grounds, robot_only

    qpos = skeleton.qpos(motion).numpy()
    qvel, act, ctrl = skeleton.qvel(motion).numpy(), np.zeros((len(qpos), 0)), np.zeros((len(qpos), skeleton.model.nu))
    frames = Dump(path=path, qpos=qpos, qvel=qvel, act=act, ctrl=ctrl, step_dt=1 / motion.fps, world=0)
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


def check_video(config: PlayConfig) -> None:
    """Raise a RequestError unless videos can be rendered here and the file can be written."""
    out = Path(config.video or "")
    if out.suffix != ".mp4":
        raise RequestError(f"--video {out}: give a name that ends in .mp4")
    check_writable("--video", out)
    drawing_environ("cpu", os.environ)


def record_video(context: RankContext, run: TrainedRun, config: PlayConfig) -> Path:
    """Run a policy in one environment and render it."""
    if not isinstance(run.env, EnvConfig):
        return _record_foreign(context, run, config)
    from mjtrain.evaluation.playing.player import Player
    from mjtrain.evaluation.recorder import make_recorder
    from mjtrain.sim.drawing.renderer import RenderError, VideoRenderer
    from mjtrain.sim.robots.robot import save_model

    assert config.video is not None
    out = Path(config.video).resolve()
    player = Player(context, run, num_envs=1, engine=config.engine, policy=config.policy, held=config.held)
    with player:
        recorder = make_recorder(player.env, config.video_length_s)
        recorder.begin(player.iteration or 0)
        while recorder.fullness < 1.0:
            player.step()
            recorder.after_step()
        clip = recorder.take()
    with tempfile.TemporaryDirectory() as folder:
        model_file = Path(folder) / "model.mjb"
        with saying_where("--video", model_file):
            save_model(run.env, model_file)
        renderer = VideoRenderer(model_file, drawing_environ(context.device, os.environ), hurry=True)
        try:
            renderer.submit(clip, out, gif=False, size=_VIDEO_SIZE, shadows=True)
            renderer.finish(_RENDER_TIMEOUT_S)
        except RenderError as error:
            raise RequestError(f"--video {config.video}: {error}") from error
        finally:
            renderer.close()
    return out


def _record_foreign(context: RankContext, run: TrainedRun, config: PlayConfig) -> Path:
    from mjtrain.evaluation.playing.player import Player
    from mjtrain.runtime.worker import same_environ
    from mjtrain.sim.drawing.video import write_video

    assert config.video is not None
    with contextlib.ExitStack() as stack:
        stack.enter_context(same_environ())
        os.environ.update(drawing_environ(context.device, os.environ))  # Gymnasium asks there how MuJoCo renders
        player = stack.enter_context(Player(context, run, num_envs=1, policy=config.policy, held=config.held))
        fps = 1.0 / player.env.step_dt if player.env.step_dt else _FOREIGN_FPS
        pictures = []
        while len(pictures) < max(2, round(config.video_length_s * fps)):
            try:
                picture = player.env.worlds.picture()
            except Exception as error:  # of whatever draws
                raise RequestError(f"--video {config.video}: {run.task} cannot be drawn here ({error})") from error
            if picture is None or picture.ndim != 3:
                raise RequestError(f"--video {config.video}: {run.task} draws no pictures (render_mode rgb_array)")
            pictures.append(picture)
            player.step()
    out = Path(config.video).resolve()
    write_video(pictures, out, fps)
    return out
