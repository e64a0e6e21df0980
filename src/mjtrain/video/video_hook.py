"""Records videos of a world during training."""

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
from mjtrain.video.renderer import RenderError, VideoRenderer
from mjtrain.video.video import Video

SIZE = (320, 240)
LEAST_FULLNESS = 0.1
"""Least fraction of a clip that is rendered at the end of a run."""

FINISH_TIMEOUT_S = 20.0
"""Longest wait for unfinished videos at the end of a run, in seconds."""


class VideoHook:
    """Records world 0 of a rank during training, and renders it in a process that only uses spare CPU time.

    Use as a context manager. `finish` waits for unfinished videos when a run ends well; a run that fails discards them.
    """

    def __init__(self, config: TrainConfig, env: Env, device: str, run_dir: Path, warn: Callable[[str], None]) -> None:
        """Start the render process.

        Args:
            config: What is trained; its run holds the interval and the length of videos.
            env: The environments of this rank.
            device: Torch device of this rank.
            run_dir: Where the run lives; videos go to videos/iteration_{iteration}.mp4.
            warn: Called with a line that says why no more videos are made.

        Raises:
            RequestError: Videos cannot be rendered or encoded here.
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
        self._renderer: VideoRenderer | None = VideoRenderer(model_file, environ)

    def __enter__(self) -> "VideoHook":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._renderer is not None:
            self._renderer.close()

    def after_step(self) -> None:
        """Record the world; called after each env step."""
        self._recorder.after_step()

    def begin(self, iteration: int) -> None:
        """Start a clip, if one is due.

        Args:
            iteration: Iterations done, with the policy that the clip starts with.
        """
        if iteration % self._interval == 0 and self._renderer is not None and not self._recorder.is_recording:
            self._recorder.begin(iteration)

    def update(self, iteration: int) -> tuple[dict[str, float], list[Video]]:
        """Submit what was recorded and collect finished videos; called after each iteration, does not wait.

        Args:
            iteration: Iterations done.

        Returns:
            Metrics (seconds that the training spent on videos, and CPU seconds of the render process for the finished
            videos), and these videos.
        """
        began = time.perf_counter()
        done = self._try(lambda renderer: self._submit(renderer, least=1.0))
        self.begin(iteration)
        return {"video_time_s": time.perf_counter() - began, "video_cpu_s": sum(video.cpu_s for video in done)}, done

    def finish(self) -> list[Video]:
        """Submit what was recorded and wait for all videos; return those finished since the last call."""

        def wait(renderer: VideoRenderer) -> list[Video]:
            done = self._submit(renderer, least=LEAST_FULLNESS)
            return [*done, *renderer.finish(FINISH_TIMEOUT_S, heartbeat.beat)]

        return self._try(wait)

    def _submit(self, renderer: VideoRenderer, least: float) -> list[Video]:
        """Submit the clip if at least this fraction of it is recorded; return finished videos."""
        if self._recorder.is_recording and self._recorder.fullness > least - 1e-9:
            clip = self._recorder.take()
            out = self._folder / f"iteration_{clip.iteration}.mp4"
            renderer.submit(clip, out, gif=self._gif, size=SIZE, shadows=False)
        return renderer.poll()

    def _try(self, action: Callable[[VideoRenderer], list[Video]]) -> list[Video]:
        if self._renderer is None:
            return []
        try:
            return action(self._renderer)
        except (RenderError, OSError) as error:
            self._warn(f"--video: {error}; training continues without videos")
            self._renderer.close()
            self._renderer = None
            return []
