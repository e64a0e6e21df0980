"""Films a world of a training now and then."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from mjtrain import heartbeat
from mjtrain.config import TrainConfig
from mjtrain.engines.robot import save_model
from mjtrain.env.env import Env
from mjtrain.video.backend import drawing_environ
from mjtrain.video.recorder import Recorder
from mjtrain.video.renderer import DrawingError, VideoRenderer
from mjtrain.video.video import Video

SIZE = (320, 240)
SHORTEST = 0.1
"""How much of a clip must be there at the end of a run, to be worth drawing."""

PATIENCE_S = 20.0
"""Longest wait for unfinished videos at the end of a run."""


class VideoHook:
    """Records world 0 of a rank as it trains, and has it drawn by a process that only takes what is left of the cores.

    Use as a context manager: videos that are not done when a run ends well are waited for, not when it fails.
    """

    def __init__(self, config: TrainConfig, env: Env, device: str, run_dir: Path, warn: Callable[[str], None]) -> None:
        """Get ready.

        Args:
            config: What is trained; its run says when and how long.
            env: The environments of this rank.
            device: Torch device of this rank.
            run_dir: Where the run lives; videos go to videos/iteration_{iteration}.mp4.
            warn: Takes a line about why there are no videos any more.

        Raises:
            RequestError: Nothing can draw or encode here.
        """
        self._folder = run_dir / "videos"
        self._interval = config.run.video_interval
        self._gif = config.run.logger == "tensorboard"
        self._warn = warn
        self._recorder = Recorder(env.state.qpos, env.step_dt, config.run.video_length_s)
        environ = drawing_environ(device, os.environ)
        self._folder.mkdir(exist_ok=True)
        model_file = self._folder / ".model.mjb"
        save_model(config.env, model_file)
        self._studio: VideoRenderer | None = VideoRenderer(model_file, environ)

    def __enter__(self) -> "VideoHook":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._studio is not None:
            self._studio.close()

    def after_step(self) -> None:
        """Look at the world; called after each env step."""
        self._recorder.after_step()

    def begin(self, iteration: int) -> None:
        """Begin a clip, if one is due.

        Args:
            iteration: Iterations done: the age of the policy that is filmed first.
        """
        if iteration % self._interval == 0 and self._studio is not None and not self._recorder.is_recording:
            self._recorder.begin(iteration)

    def update(self, iteration: int) -> tuple[dict[str, float], list[Video]]:
        """Hand over what was recorded, and hear of what is done; called after each iteration, waits for nothing.

        Args:
            iteration: Iterations done.

        Returns:
            Metrics: seconds that the training spent on it, and CPU seconds of the drawing process for the videos that
            were done; and these videos.
        """
        began = time.perf_counter()
        done = self._try(lambda studio: self._hand_over(studio, least=1.0))
        self.begin(iteration)
        return {"video_time_s": time.perf_counter() - began, "video_cpu_s": sum(video.cpu_s for video in done)}, done

    def finish(self) -> list[Video]:
        """Hand over what there is and wait for all videos; return those that were done since the last call."""

        def wait(studio: VideoRenderer) -> list[Video]:
            done = self._hand_over(studio, least=SHORTEST)
            return [*done, *studio.finish(PATIENCE_S, heartbeat.beat)]

        return self._try(wait)

    def _hand_over(self, studio: VideoRenderer, least: float) -> list[Video]:
        """Have a clip drawn that is as full as it must be at least."""
        if self._recorder.is_recording and self._recorder.fullness > least - 1e-9:
            clip = self._recorder.take()
            out = self._folder / f"iteration_{clip.iteration}.mp4"
            studio.submit(clip, out, gif=self._gif, size=SIZE, shadows=False)
        return studio.poll()

    def _try(self, action: Callable[[VideoRenderer], list[Video]]) -> list[Video]:
        if self._studio is None:
            return []
        try:
            return action(self._studio)
        except (DrawingError, OSError) as error:
            self._warn(f"--video: {error}; training goes on without videos")
            self._studio.close()
            self._studio = None
            return []
