"""A policy on video."""

import os
import tempfile
from pathlib import Path

from mjtrain.config import PlayConfig
from mjtrain.errors import RequestError
from mjtrain.rank import RankContext
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.video.backend import drawing_environ

SIZE = (480, 360)
LONGEST_DRAWING_S = 600.0


def check_video(config: PlayConfig) -> None:
    """Raise a RequestError unless a video can be made and has a place to go."""
    out = Path(config.video or "")
    if out.suffix != ".mp4":
        raise RequestError(f"--video {out}: give a name that ends in .mp4")
    if not out.absolute().parent.is_dir():
        raise RequestError(f"--video {out}: there is no folder {out.parent}")
    if not config.video_length_s > 0:
        raise RequestError(f"--video-length-s {config.video_length_s}: must be more than 0")
    drawing_environ("cpu", os.environ)


def record_video(context: RankContext, run: TrainedRun, config: PlayConfig) -> Path:
    """Let a policy act in one environment, and draw it.

    Args:
        context: Device, seed and threads.
        run: What to play, its env as it is.
        config: Where the video goes, how long it is, and who acts.

    Returns:
        The MP4 file.

    Raises:
        RequestError: The engine, the robot or the checkpoint do not fit, or MuJoCo cannot draw here.
    """
    from mjtrain.engines.robot import save_model
    from mjtrain.play.player import Player
    from mjtrain.video.recorder import Recorder
    from mjtrain.video.renderer import DrawingError, VideoRenderer

    assert config.video is not None
    out = Path(config.video).absolute()
    player = Player(context, run, num_envs=1, engine=config.engine, policy=config.policy)
    recorder = Recorder(player.env.state.qpos, player.env.step_dt, config.video_length_s)
    recorder.begin(player.iteration or 0)
    while recorder.fullness < 1.0:
        player.step()
        recorder.after_step()
    clip = recorder.take()
    player.close()
    with tempfile.TemporaryDirectory() as folder:
        model_file = Path(folder) / "model.mjb"
        save_model(run.env, model_file)
        studio = VideoRenderer(model_file, drawing_environ(context.device, os.environ), hurry=True)
        try:
            studio.submit(clip, out, gif=False, size=SIZE, shadows=True)
            studio.finish(LONGEST_DRAWING_S)
        except DrawingError as error:
            raise RequestError(f"--video {config.video}: {error}") from error
        finally:
            studio.close()
    return out
