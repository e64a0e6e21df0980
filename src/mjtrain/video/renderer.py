"""Gives clips to the process that draws, and hears of videos that are done."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from mjtrain.video.recorder import Clip
from mjtrain.video.video import Video


class DrawingError(Exception):
    """Videos cannot be drawn."""


class VideoRenderer:
    """One child process that draws clips of one model, in order. Close it, or it dies with this process."""

    def __init__(self, model_file: Path, environ: Mapping[str, str], *, hurry: bool = False) -> None:
        """Start the process.

        Args:
            model_file: Compiled model, as `engines.robot.save_model` writes it; the process deletes it.
            environ: Variables on top of this process's own, see `backend.drawing_environ`.
            hurry: Draw at once; else only when nobody else wants the cores.
        """
        self._pending: dict[str, Video] = {}
        self._heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._last_words = ""
        self._model_file = model_file
        command = [
            sys.executable,
            "-m",
            "mjtrain.video.render_worker",
            str(model_file),
            str(os.getpid()),
            str(int(hurry)),
        ]
        # A session of its own: Ctrl-C is for the training, which then decides about its videos.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environ},
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, name="mjtrain-studio", daemon=True)
        self._listener.start()

    def submit(self, clip: Clip, out: Path, *, gif: bool, size: tuple[int, int], shadows: bool) -> None:
        """Have a clip drawn.

        Args:
            clip: What happened.
            out: The MP4 file; it appears there when it is whole.
            gif: Make an animated picture, too.
            size: Width and height in pixels, even numbers.
            shadows: Draw them, and smooth edges; ten times the work without a GPU.

        Raises:
            DrawingError: The process has ended.
            OSError: The clip cannot be written.
        """
        out.parent.mkdir(parents=True, exist_ok=True)
        positions = out.with_name(f".{out.stem}.npy")
        picture = out.with_name(f".{out.stem}.gif") if gif else None
        np.save(positions, clip.qpos, allow_pickle=False)
        order = {
            "name": out.name,
            "qpos": str(positions),
            "out": str(out),
            "gif": None if picture is None else str(picture),
            "fps": clip.fps,
            "width": size[0],
            "height": size[1],
            "shadows": shadows,
        }
        self._pending[out.name] = Video(path=out, gif=picture, iteration=clip.iteration, cpu_s=0.0)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except OSError:
            positions.unlink(missing_ok=True)
            raise DrawingError(self._why()) from None

    def poll(self) -> list[Video]:
        """Return the videos that were done since the last call; waits for nothing.

        Raises:
            DrawingError: The process cannot draw.
        """
        done = []
        while not self._heard.empty():
            message = json.loads(self._heard.get())
            if "error" in message:
                self._last_words = message["error"]
                raise DrawingError(self._why())
            video = self._pending.pop(message["done"])
            done.append(replace(video, cpu_s=message["cpu_s"]))
        if not done and self._pending and self._process.poll() is not None and not self._listener.is_alive():
            raise DrawingError(self._why())
        return done

    def finish(self, timeout_s: float, beat: Callable[[], None] = lambda: None) -> list[Video]:
        """Wait for what was submitted; return the videos that were done since the last `poll`.

        Args:
            timeout_s: Longest wait.
            beat: Called while waiting.

        Raises:
            DrawingError: The process cannot draw, or takes too long.
        """
        done = []
        deadline = time.monotonic() + timeout_s
        while True:
            done += self.poll()
            if not self._pending:
                return done
            if time.monotonic() > deadline:
                raise DrawingError(f"{len(self._pending)} videos were not done within {timeout_s:g} s")
            beat()
            time.sleep(0.05)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._model_file.unlink(missing_ok=True)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue  # what was not yet written to it has nobody to read it
        for video in self._pending.values():
            for leftover in (f".{video.path.stem}.npy", f".{video.path.stem}.gif", f".{video.path.name}.partial"):
                video.path.with_name(leftover).unlink(missing_ok=True)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"'):
                self._heard.put(line)
            elif line.strip():
                self._last_words = line.strip()  # a library's complaint, or the end of a traceback

    def _why(self) -> str:
        """Return the last words of a process that is at its end."""
        self._listener.join(1.0)  # they may still be on the way
        while not self._heard.empty():
            self._last_words = json.loads(self._heard.get()).get("error", self._last_words)
        return self._last_words or f"the process that draws has ended with status {self._process.poll()}"
