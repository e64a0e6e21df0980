"""The process that draws worlds: reads positions from its standard input, and writes pictures to its standard output.

It is a separate process, as drivers of OpenGL bring libraries (LLVM) that clash with those of PyTorch's compiler.
"""

import os
import sys
from pathlib import Path

import mujoco
import numpy as np

from mjtrain.sim.drawing.scene import draw_pose, enlarge_buffer
from mjtrain.sim.robots.start import make_start


def main() -> None:
    """Draw until standard input ends, as it does with the parent; the arguments are the model, width and height."""
    model_file, width, height = sys.argv[1], *map(int, sys.argv[2:])
    pictures = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is not a picture
    model = mujoco.MjModel.from_binary_path(model_file)
    Path(model_file).unlink()
    enlarge_buffer(model, width, height)
    data = make_start(model)
    with mujoco.Renderer(model, height, width) as renderer:
        while len(row := sys.stdin.buffer.read(8 * model.nq)) == 8 * model.nq:
            draw_pose(renderer, data, np.frombuffer(row))
            pictures.write(renderer.render().tobytes())
            pictures.flush()


if __name__ == "__main__":
    main()
