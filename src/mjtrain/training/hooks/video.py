"""Videos of a training."""

import contextlib
import os
import time
from collections.abc import Callable

from mjtrain.env.env import Env
from mjtrain.evaluation.recorder import make_recorder
from mjtrain.learning.learner import IterationResult
from mjtrain.runtime import heartbeat
from mjtrain.sim.drawing.backend import drawing_environ
from mjtrain.sim.drawing.renderer import RenderError, VideoRenderer
from mjtrain.sim.drawing.video import Video
from mjtrain.sim.robots.robot import save_model
from mjtrain.training.hooks.base import Hook, HookContext
from mjtrain.training.reporting.report import RunReport

SIZE = (320, 240)
SHORTEST = 0.1
"""Fraction of a recording that must be there at the end of a run, to be worth drawing."""

PATIENCE_S = 20.0
"""Longest wait for unfinished videos at the end of a run."""


class VideoHook(Hook):
    """Records world 0 of a rank while it trains. A process with low priority draws the videos.

    Videos that are not done when a run ends well are waited for; after an error they are not.
    """

    def __init__(self, context: HookContext, report: RunReport) -> None:
        """Start the process that draws; videos go to {run_dir}/videos/iteration_{iteration}.mp4."""
        super().__init__(context)
        run = context.config.run
        self._report = report
        self._folder = context.run_dir / "videos"
        self._interval = run.video_interval
        self._gif = run.logger == "tensorboard"
        assert isinstance(context.env, Env), "the request was refused"
        self._recorder = make_recorder(context.env, run.video_length_s)
        environ = drawing_environ(context.rank_context.device, os.environ)
        model_file = self._folder / ".model.mjb"
        self._renderer: VideoRenderer | None = None
        try:
            self._folder.mkdir(exist_ok=True)
            save_model(context.env.config, model_file)
            self._renderer = VideoRenderer(model_file, environ)
        except OSError as error:
            self._give_up(error)
            with contextlib.suppress(OSError):
                model_file.unlink(missing_ok=True)

    def __enter__(self) -> "VideoHook":
        self._context.learner.after_step = self._recorder.after_step
        self._begin(self._context.learner.iteration)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._renderer is not None:
            self._renderer.close()

    def after_iteration(self, result: IterationResult) -> None:
        """Hand a full recording over, begin the next one if it is due, and report finished videos; does not wait.

        Adds to the metrics the seconds that the training spent on videos, and the CPU seconds that the drawing process
        spent on those that were finished.
        """
        began = time.perf_counter()
        done = self._try(lambda renderer: self._hand_over(renderer, least=1.0))
        self._begin(result.iteration)
        result.metrics["video_time_s"] = time.perf_counter() - began
        result.metrics["video_cpu_s"] = sum(video.cpu_s for video in done)
        self._report.add_videos(done)

    def finish(self) -> None:
        """Hand over what was recorded, wait for all videos and report them."""

        def wait(renderer: VideoRenderer) -> list[Video]:
            done = self._hand_over(renderer, least=SHORTEST)
            return [*done, *renderer.finish(PATIENCE_S, heartbeat.beat)]

        self._report.add_videos(self._try(wait))

    def _begin(self, iteration: int) -> None:
        if iteration % self._interval == 0 and self._renderer is not None and not self._recorder.is_recording:
            self._recorder.begin(iteration)

    def _hand_over(self, renderer: VideoRenderer, least: float) -> list[Video]:
        """Have the recording drawn, if at least this fraction of it was recorded."""
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
            self._give_up(error)
            return []

    def _give_up(self, error: Exception) -> None:
        self._report.warn(f"--video: {error}; training continues without videos")
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
