"""Pictures of worlds."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from mjtrain.config import EnvConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.drawing.backend import has_library, resolve_backend
from mjtrain.sim.robots.robot import save_model

SIZE = (480, 360)
"""Width and height of a picture, in pixels."""


class FrameRenderer:
    """Draws worlds with MuJoCo's renderer in a separate process, from the robot's first camera if it has one."""

    def __init__(self, config: EnvConfig) -> None:
        backend = resolve_backend(os.environ, has_library)
        handle, self._model_file = tempfile.mkstemp(suffix=".mjb")
        os.close(handle)
        try:
            save_model(config, Path(self._model_file))
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mjtrain.sim.drawing.frame_worker", self._model_file, *map(str, SIZE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "MUJOCO_GL": backend},
            )
        except BaseException:
            Path(self._model_file).unlink(missing_ok=True)
            raise

    def render(self, qpos: torch.Tensor) -> tuple[np.ndarray, ...]:
        """Return a picture of each world. Shape (num_envs, nq) to uint8 of shape (height, width, 3)."""
        width, height = SIZE
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
