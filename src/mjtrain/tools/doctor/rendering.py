"""A frame is rendered without a display, as `train --video` and `play` do it."""

import os
import time

from mjtrain.runtime.errors import RequestError
from mjtrain.sim.drawing.backend import drawing_environ, list_gpu_uuids
from mjtrain.tools.doctor.finding import Finding, Question, failure, ok, warning

_SCENE = """
<mujoco>
  <worldbody>
    <light pos="0 0 3"/>
    <geom type="plane" size="2 2 .1" rgba=".2 .3 .4 1"/>
    <geom type="sphere" size=".4" pos="0 0 .4" rgba=".9 .3 .2 1"/>
    <camera name="camera" pos="0 -2 1" xyaxes="1 0 0 0 .4 1"/>
  </worldbody>
</mujoco>
"""
_SIZE = 64

_ADVICE = (
    "apt-get install libegl1 libegl-mesa0; with NVIDIA's driver in a container set NVIDIA_DRIVER_CAPABILITIES=all; "
    "or MUJOCO_GL=osmesa with libosmesa6"
)


def check(question: Question) -> list[Finding]:
    """Render a sphere on a plane; a failure only where the run would record videos."""
    judge = failure if question.video else warning
    hidden = question.launch.gpu_ids is None or os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    try:
        os.environ.update(drawing_environ("cpu" if hidden or not list_gpu_uuids() else "cuda:0", os.environ))
    except RequestError as error:
        figure, _, advice = str(error).removeprefix("--video: ").partition(": ")
        return [judge("rendering", figure, advice or _ADVICE)]
    backend, begin_s = os.environ["MUJOCO_GL"], time.monotonic()
    try:
        colours = _count_colours()
    except Exception as error:  # of EGL, OpenGL or MuJoCo, each with its own class
        reason = " ".join(str(error).split()) or type(error).__name__
        return [judge("rendering", f"{backend}: {reason[:160]}", _ADVICE)]
    if colours < 3:
        return [judge("rendering", f"{backend}: the frame is empty", _ADVICE)]
    seconds = time.monotonic() - begin_s
    return [ok("rendering", f"{backend}: {_SIZE} x {_SIZE} pixels with {colours} colours in {seconds:.2f} s")]


def _count_colours() -> int:
    """Render the frame, and return how many colours it has."""
    import mujoco  # reads MUJOCO_GL
    import numpy as np

    model = mujoco.MjModel.from_xml_string(_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, _SIZE, _SIZE) as renderer:
        renderer.update_scene(data, camera="camera")
        return len(np.unique(renderer.render().reshape(-1, 3), axis=0))
