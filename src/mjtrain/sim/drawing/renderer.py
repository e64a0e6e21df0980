"""Sends clips or poses to a process that draws, and receives its videos or pictures."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from mjtrain.config import EnvConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import find_partials
from mjtrain.runtime.processes import module_path
from mjtrain.sim.drawing.backend import has_library, resolve_backend
from mjtrain.sim.drawing.video import Clip, Video
from mjtrain.sim.robots.robot import save_model

PICTURE_SIZE = (480, 360)
"""Width and height of a picture, in pixels."""

_WORKER = "mjtrain.sim.drawing.render_worker"


class RenderError(Exception):
    """Videos cannot be rendered."""


class VideoRenderer:
    """One child process that renders clips of one model, in order. Close it, or it dies with this process."""

    def __init__(self, model_file: Path, environ: Mapping[str, str], *, hurry: bool = False) -> None:
        """Start the process.

        Args:
            model_file: Compiled model, as `engines.robot.save_model` writes it; the process deletes it.
            environ: Variables on top of this process's own, see `backend.drawing_environ`.
            hurry: Render at normal priority; else only with CPU time that no other process wants.
        """
        self._pending: dict[str, Video] = {}
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._last_output = ""
        self._model_file = model_file
        words = [str(model_file), str(os.getpid()), str(int(hurry))]
        # A separate session: Ctrl-C goes to the training only, which then decides about its videos.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _WORKER, "videos", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # of a driver's messages, in another encoding
            env={**os.environ, "PYTHONPATH": module_path(), **environ},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_output, name="mjtrain-video", daemon=True)
        self._reader.start()

    def submit(self, clip: Clip, out: Path, *, gif: bool, size: tuple[int, int], shadows: bool) -> None:
        """Queue a clip for rendering.

        Args:
            size: Width and height of the world in pixels, even numbers; images are added on its right.
            shadows: Render shadows and antialias; ten times the work without a GPU.

        Raises:
            RenderError: The process has ended.
            OSError: The clip cannot be written.
        """
        out.parent.mkdir(exist_ok=True)  # not a run directory that is missing, which may come back
        recorded = out.with_name(f".{out.stem}.npz")
        picture = out.with_name(f".{out.stem}.gif") if gif else None
        images = {f"images_{number}": frames for number, frames in enumerate(clip.images.values())}
        ghost = {} if clip.ghost is None else {"ghost": clip.ghost}
        np.savez(recorded, allow_pickle=False, qpos=clip.qpos, **ghost, **images)
        job = {
            "name": out.name,
            "recorded": str(recorded),
            "streams": [asdict(stream) for stream in clip.images],
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
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except OSError:
            recorded.unlink(missing_ok=True)
            raise RenderError(self._why()) from None

    def poll(self) -> list[Video]:
        """Return the videos that were finished since the last call, or raise a RenderError; does not wait."""
        done = []
        while not self._messages.empty():
            message = json.loads(self._messages.get())
            if "error" in message:
                self._last_output = message["error"]
                raise RenderError(self._why())
            video = self._pending.pop(message["done"])
            done.append(replace(video, cpu_s=message["cpu_s"]))
        if not done and self._pending and self._process.poll() is not None and not self._reader.is_alive():
            raise RenderError(self._why())
        return done

    def finish(self, timeout_s: float, beat: Callable[[], None] = lambda: None) -> list[Video]:
        """Wait for all queued clips; return the videos that were finished since the last `poll`.

        Raises:
            RenderError: The process cannot render, or takes too long.
        """
        done = []
        deadline = time.monotonic() + timeout_s
        while True:
            done += self.poll()
            if not self._pending:
                return done
            if time.monotonic() > deadline:
                raise RenderError(f"{len(self._pending)} videos were not finished within {timeout_s:g} s")
            beat()
            time.sleep(0.05)

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not written yet has no reader any more
                    stream.close()
        with contextlib.suppress(OSError):  # what is left on a disk that cannot be written or reached does no harm
            self._model_file.unlink(missing_ok=True)
            for video in self._pending.values():
                inputs = [video.path.with_name(f".{video.path.stem}{suffix}") for suffix in (".npz", ".gif")]
                for leftover in (*inputs, *find_partials(video.path)):
                    leftover.unlink(missing_ok=True)

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"'):
                self._messages.put(line)
            elif line.strip():
                self._last_output = line.strip()  # a message of a library, or the end of a traceback

    def _why(self) -> str:
        """Return the final message of a process that has ended or is about to."""
        self._reader.join(1.0)  # it may not have been read yet
        while not self._messages.empty():
            self._last_output = json.loads(self._messages.get()).get("error", self._last_output)
        return self._last_output or f"the render process exited with status {self._process.poll()}"


class FrameRenderer:
    """Draws worlds with MuJoCo's renderer in a separate process, from the robot's first camera if it has one."""

    def __init__(self, config: EnvConfig) -> None:
        backend = resolve_backend(os.environ, has_library, "render_mode='rgb_array':")
        handle, self._model_file = tempfile.mkstemp(suffix=".mjb")
        os.close(handle)
        try:
            save_model(config, Path(self._model_file))
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _WORKER, "pictures", self._model_file, *map(str, PICTURE_SIZE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "PYTHONPATH": module_path(), "MUJOCO_GL": backend},
                start_new_session=True,  # Ctrl-C is for this process, which may continue
            )
        except BaseException:
            Path(self._model_file).unlink(missing_ok=True)
            raise

    def render(self, qpos: torch.Tensor) -> tuple[np.ndarray, ...]:
        """Return a picture of each world. Shape (num_envs, nq) to uint8 of shape (height, width, 3)."""
        width, height = PICTURE_SIZE
        return tuple(
            np.frombuffer(self._draw(row.tobytes(), 3 * width * height), np.uint8).reshape(height, width, 3).copy()
            for row in qpos.double().cpu().numpy()
        )

    def _draw(self, positions: bytes, size: int) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(positions)
            self._process.stdin.flush()
            picture = self._process.stdout.read(size)
        except BrokenPipeError:
            picture = b""
        except BaseException:  # as by Ctrl-C; the rest of this picture must not be read as the next one
            self._process.kill()
            raise
        if len(picture) < size:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines() or ["it ended"]
            raise RequestError(f"render_mode='rgb_array': MuJoCo cannot render here ({said[-1]})")
        return picture

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        Path(self._model_file).unlink(missing_ok=True)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):  # what it did not read cannot be flushed
                    stream.close()
