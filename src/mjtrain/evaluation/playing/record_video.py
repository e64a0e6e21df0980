"""Record a video of a policy."""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from mjtrain.config import EnvConfig, PlayConfig
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import check_writable, saying_where
from mjtrain.runtime.rank import RankContext
from mjtrain.sim.drawing.backend import drawing_environ

SIZE = (480, 360)
RENDER_TIMEOUT_S = 600.0
FOREIGN_FPS = 25.0
"""Frames per second where an environment does not say how long a step is."""


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
            renderer.submit(clip, out, gif=False, size=SIZE, shadows=True)
            renderer.finish(RENDER_TIMEOUT_S)
        except RenderError as error:
            raise RequestError(f"--video {config.video}: {error}") from error
        finally:
            renderer.close()
    return out


def _record_foreign(context: RankContext, run: TrainedRun, config: PlayConfig) -> Path:
    """Run a policy in one environment that draws itself."""
    from mjtrain.evaluation.playing.player import Player
    from mjtrain.runtime.worker import same_environ
    from mjtrain.sim.drawing.video import write_video

    assert config.video is not None
    with ExitStack() as stack:
        stack.enter_context(same_environ())
        os.environ.update(drawing_environ(context.device, os.environ))  # Gymnasium asks there how MuJoCo renders
        player = stack.enter_context(Player(context, run, num_envs=1, policy=config.policy, held=config.held))
        fps = 1.0 / player.env.step_dt if player.env.step_dt else FOREIGN_FPS
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
