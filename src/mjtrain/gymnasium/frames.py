"""Pictures of worlds, in this process."""

import copy
import os
import sys
from typing import TYPE_CHECKING

import numpy as np
import torch

from mjtrain.errors import RequestError
from mjtrain.video.backend import has_library, resolve_backend

if TYPE_CHECKING:
    import mujoco

SIZE = (480, 360)
"""Width and height of a picture, in pixels."""


def choose_backend() -> None:
    """Choose how MuJoCo renders here, which it decides when it is imported; `MUJOCO_GL` wins if it is set.

    Raises:
        RequestError: MuJoCo cannot render here.
    """
    if "mujoco" not in sys.modules:
        os.environ.setdefault("MUJOCO_GL", resolve_backend(os.environ, has_library))


class FrameRenderer:
    """Draws worlds with MuJoCo's renderer, from the robot's first camera if it has one."""

    def __init__(self, model: "mujoco.MjModel") -> None:
        """Open a context of OpenGL.

        Raises:
            RequestError: MuJoCo cannot render here.
        """
        import mujoco

        self._model, self._data = copy.copy(model), mujoco.MjData(model)
        self._model.vis.global_.offwidth = max(SIZE[0], model.vis.global_.offwidth)
        self._model.vis.global_.offheight = max(SIZE[1], model.vis.global_.offheight)
        try:
            self._renderer = mujoco.Renderer(self._model, SIZE[1], SIZE[0])
        except Exception as error:  # of the driver; MuJoCo raises what each backend raises
            raise RequestError(
                f"render_mode='rgb_array': MuJoCo cannot render here ({error}); without a display set MUJOCO_GL=egl "
                "before mujoco is imported"
            ) from error

    def render(self, qpos: torch.Tensor) -> tuple[np.ndarray, ...]:
        """Return a picture of each world, uint8 of shape (height, width, 3). qpos has the shape (num_envs, nq)."""
        import mujoco

        pictures = []
        for positions in qpos.cpu().numpy():
            self._data.qpos[:] = positions
            mujoco.mj_kinematics(self._model, self._data)
            mujoco.mj_comPos(self._model, self._data)
            mujoco.mj_camlight(self._model, self._data)
            self._renderer.update_scene(self._data, 0 if self._model.ncam else -1)
            pictures.append(self._renderer.render().copy())
        return tuple(pictures)

    def close(self) -> None:
        """Close the context."""
        self._renderer.close()
