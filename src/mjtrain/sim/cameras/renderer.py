"""The cameras of all worlds, rendered at once by MuJoCo Warp's ray caster, and the rows of what they see by name."""

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Literal

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from mjtrain.config.env import CameraConfig
from mjtrain.runtime.deferred_imports import start_warp
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.machine import format_bytes
from mjtrain.sim.cameras.cameras import ResolvedCamera, check_cameras
from mjtrain.sim.cameras.worlds import RenderedWorlds, build_height_fields
from mjtrain.sim.engines.warp import capture_graph, launch_graph
from mjtrain.sim.robots.layout import match_names

SEEN_FIELDS = (
    "geom_rgba",
    "geom_matid",
    "mat_rgba",
    "mat_texid",
    "mat_texrepeat",
    "mat_emission",
    "mat_specular",
    "mat_shininess",
    "light_pos",
    "light_pos0",
    "light_poscom0",
    "light_dir",
    "light_dir0",
    "light_ambient",
    "light_diffuse",
    "light_specular",
    "light_active",
    "cam_pos",
    "cam_pos0",
    "cam_poscom0",
    "cam_quat",
    "cam_mat0",
    "cam_fovy",
)
"""Fields of the model that may differ between worlds, named as in `mujoco.MjModel`.

Cameras and lights of the modes track and trackcom read those that end in 0.
"""

PartKind = Literal["geom", "material", "texture", "light", "camera", "camera with fovy"]
"""What a row may be of."""

_CHANNELS = {"rgb": (3, torch.uint8), "depth": (1, torch.float32), "segmentation": (1, torch.uint8)}


class SeenParts:
    """Rows of geoms, materials, textures, lights and cameras, by regular expressions over names, matched whole.

    A camera has its name in the config; one with a focal length has no fovy. A material, texture or light without a
    name is called by its number.
    """

    def __init__(
        self, model: mujoco.MjModel, cameras: Mapping[str, ResolvedCamera], device: torch.device | str
    ) -> None:
        self._device = device
        self._rows: dict[PartKind, dict[str, int]] = {
            "geom": {model.geom(row).name: row for row in range(model.ngeom) if model.geom(row).name},
            "material": {model.mat(row).name or str(row): row for row in range(model.nmat)},
            "texture": {
                model.tex(row).name or str(row): row
                for row in range(model.ntex)
                if model.tex_type[row] == mujoco.mjtTexture.mjTEXTURE_2D
            },
            "light": {model.light(row).name or str(row): row for row in range(model.nlight)},
            "camera": {name: camera.index for name, camera in cameras.items()},
            "camera with fovy": {
                name: camera.index for name, camera in cameras.items() if not model.cam_sensorsize[camera.index, 1]
            },
        }
        self._fovy_deg = {
            name: float(model.cam_fovy[row])
            for name, row in self._rows["camera with fovy"].items()
            if model.cam_projection[row] == mujoco.mjtProjection.mjPROJ_PERSPECTIVE
        }
        self._bodies = {model.body(row).name: row for row in range(model.nbody) if model.body(row).name}
        self._body_of_geom = np.array(model.geom_bodyid)
        self._found: dict[tuple, torch.Tensor] = {}

    def rows(self, kind: PartKind, patterns: Sequence[str]) -> torch.Tensor:
        """Return the rows of parts in the fields of the model; of textures, those that are neither cube nor sky."""
        key = (kind, *patterns)
        if key not in self._found:
            named = self._rows[kind]
            rows = sorted({named[name] for name in match_names(patterns, named, kind)})
            self._found[key] = torch.tensor(rows, device=self._device, dtype=torch.long)
        return self._found[key]

    def widest_fovy_deg(self, patterns: Sequence[str]) -> float:
        """Return the largest vertical field of view of cameras, 0 where none has one; does not ask the device."""
        names = match_names(patterns, self._rows["camera with fovy"], "camera with fovy")
        return max((self._fovy_deg.get(name, 0.0) for name in names), default=0.0)

    def geoms(self, geoms: Sequence[str], bodies: Sequence[str]) -> torch.Tensor:
        """Return the rows of geoms, and of all geoms of bodies, whether they have names or not."""
        key = ("geoms", tuple(geoms), tuple(bodies))
        if key not in self._found:
            own = [self._bodies[name] for name in match_names(bodies, self._bodies, "body")]
            of_bodies = np.nonzero(np.isin(self._body_of_geom, own))[0].tolist()
            rows = sorted({*self.rows("geom", geoms).tolist(), *of_bodies})
            self._found[key] = torch.tensor(rows, device=self._device, dtype=torch.long)
        return self._found[key]


class CameraRenderer:
    """Renders the cameras of all worlds, for either engine.

    It has separate poses, computed from `qpos` by MuJoCo Warp's kinematics; the engine is not asked. Cameras with the
    same interval, shadows and geom_groups are rendered together. On a CPU the worlds are split over threads. Poses,
    rays and images are one captured graph, of each thread on a CPU, where Warp replays it without Python.
    """

    images: dict[str, dict[str, torch.Tensor]]
    """Images by camera and stream, on the device; the same memory for the renderer's whole life.

    rgb is uint8, shape (num_envs, 3, height, width). depth is float32, shape (num_envs, 1, height, width), in m along
    the optical axis, clamped to near_m..far_m; a miss is far_m. segmentation is uint8, shape (num_envs, 1, height,
    width): 0 for background, then the classes in the order of the config.
    """

    nominal: dict[str, torch.Tensor]
    """The fields in SEEN_FIELDS as the model was compiled, by name, without axis of worlds."""

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        cameras: Mapping[str, CameraConfig],
        *,
        device: str,
        num_threads: int,
    ) -> None:
        """Allocate images and acceleration structures; nothing is rendered yet."""
        found = check_cameras(model, cameras)
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.parts = SeenParts(model, found, self.device)
        """Rows of what is seen in the fields of the model."""
        self.images = {name: _allocate(name, num_envs, camera.config, self.device) for name, camera in found.items()}
        groups = _group(found)
        self._group_of = {name: number for number, group in enumerate(groups) for name in group}
        start_warp(on_cpu=self.device.type == "cpu")
        self._wp_device = wp.get_device(device)
        self._parts = _split(num_envs, 1 if self._wp_device.is_cuda else num_threads)
        with wp.ScopedDevice(self._wp_device):
            seen = _keep_what_is_seen(model, found)
            shared = _put_model(seen)
            height_fields = build_height_fields(seen)
            self._worlds = [
                RenderedWorlds(seen, shared, part.stop - part.start, groups, _rows(self.images, part), height_fields)
                for part in self._parts
            ]
        self.nominal = {field: self._worlds[0].share(field).clone() for field in SEEN_FIELDS}
        self._expanded: dict[str, torch.Tensor] = {}
        self._graphs: dict[tuple[int, ...], list[wp.Graph]] = {}
        self._pool = ThreadPoolExecutor(len(self._parts), "render") if len(self._parts) > 1 else None

    def render(self, qpos: torch.Tensor, cameras: Sequence[str] | None = None) -> None:
        """Write `images` of cameras, or of all, and of those rendered together with them; qpos is (num_envs, nq)."""
        wanted = self._group_of if cameras is None else cameras
        groups = tuple(sorted({self._group_of[name] for name in wanted}))
        for worlds, part in zip(self._worlds, self._parts, strict=True):
            worlds.qpos.copy_(qpos[part])
        with wp.ScopedDevice(self._wp_device):
            if groups not in self._graphs:  # one part of the worlds after the other, in this thread
                self._graphs[groups] = [capture_graph(partial(worlds.render, groups)) for worlds in self._worlds]
            graphs = self._graphs[groups]
            if self._pool is None:
                for graph in graphs:
                    launch_graph(graph)
            else:
                list(self._pool.map(launch_graph, graphs))

    def expand(self, field: str) -> torch.Tensor:
        """Let every world have its own values of one of SEEN_FIELDS, which are returned: write into them in place.

        Shape (num_envs, ...), as in `mujoco.MjModel` behind it.
        """
        if field not in self._expanded:
            nominal = self.nominal[field]  # which stays as it is, also with one world
            with torch.inference_mode(mode=False):  # it must outlive a rollout
                values = nominal.repeat(self.num_envs, *[1] * nominal.ndim)
            self._expanded[field] = values
            for worlds, part in zip(self._worlds, self._parts, strict=True):
                worlds.set_field(field, values[part])
            self._graphs.clear()  # they point at the shared values
        return self._expanded[field]

    @property
    def num_bytes(self) -> int:
        """Bytes of `images` and of what the ray caster writes before, of all worlds."""
        images = sum(image.nbytes for streams in self.images.values() for image in streams.values())
        return images + sum(worlds.num_bytes for worlds in self._worlds)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of the expanded fields, for `load_state_dict`."""
        return {field: values.clone() for field, values in self._expanded.items()}

    def check_state(self, state: dict[str, torch.Tensor]) -> None:
        """Raise a ValueError unless fields are those of a renderer of the same model and num_envs."""
        for field, values in state.items():
            expected = (self.num_envs, *self.nominal[field].shape) if field in self.nominal else None
            if expected != tuple(values.shape):
                raise ValueError(f"{field} of the cameras has shape {tuple(values.shape)}, here it is {expected}")

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Continue with the fields of a renderer of the same model and num_envs, as `check_state` has found them."""
        for field, values in state.items():
            self.expand(field).copy_(values)

    def close(self) -> None:
        """Give threads, captured graphs and acceleration structures back; the images stay."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._graphs.clear()
        self._worlds = []
        self._parts = []


def _keep_what_is_seen(model: mujoco.MjModel, cameras: Mapping[str, ResolvedCamera]) -> mujoco.MjModel:
    """Copy a model without options of physics that MuJoCo Warp may lack, and with sight as far as `far_m`."""
    seen = copy.copy(model)
    seen.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
    seen.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    seen.opt.jacobian = mujoco.mjtJacobian.mjJAC_AUTO
    seen.opt.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
    seen.opt.disableflags = seen.opt.enableflags = seen.opt.noslip_iterations = 0
    farthest_m = max((camera.config.far_m for camera in cameras.values()), default=0.0)
    seen.vis.map.zfar = max(seen.vis.map.zfar, farthest_m / seen.stat.extent)
    # A camera with a sensor shows all of it, stretched to the image, as in `mujoco.Renderer`; MuJoCo Warp cuts off what
    # is beyond the image's ratio of width to height, so the sensor gets that ratio, and pixels that are not square.
    for index, ratio in {camera.index: camera.ratio for camera in cameras.values()}.items():
        width, height = seen.cam_sensorsize[index]
        if height:
            stretch = ratio * height / width
            seen.cam_sensorsize[index, 0] *= stretch
            seen.cam_intrinsic[index, [0, 2]] *= stretch  # focal length and principal point along the width
    return seen


def _put_model(model: mujoco.MjModel) -> mjw.Model:
    try:
        with warnings.catch_warnings(category=UserWarning, action="ignore"):  # of physics
            return mjw.put_model(model)
    except (NotImplementedError, ValueError) as error:
        raise RequestError(f"--env.cameras: MuJoCo Warp, which renders, cannot load the robot: {error}") from error


def _allocate(name: str, num_envs: int, camera: CameraConfig, device: torch.device) -> dict[str, torch.Tensor]:
    shapes = {
        stream: ((num_envs, _CHANNELS[stream][0], camera.height, camera.width), _CHANNELS[stream][1])
        for stream in camera.streams
    }
    try:
        return {stream: torch.zeros(shape, dtype=dtype, device=device) for stream, (shape, dtype) in shapes.items()}
    except RuntimeError as error:
        if not any(word in str(error) for word in ("allocate", "overflow")):  # it is not about memory
            raise
        size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())
        raise RequestError(
            f"--env.cameras.{name}: images of {camera.width} x {camera.height} pixels take {format_bytes(size)} for "
            f"{num_envs} environments, which cannot be allocated; give a smaller width and height, or fewer "
            "environments"
        ) from error


def _group(cameras: Mapping[str, ResolvedCamera]) -> list[dict[str, ResolvedCamera]]:
    """Put cameras together that one render context can serve."""
    groups: dict[tuple, dict[str, ResolvedCamera]] = {}
    for name, camera in cameras.items():
        config = camera.config
        key = (config.interval, config.shadows, tuple(sorted(set(config.geom_groups))))
        groups.setdefault(key, {})[name] = camera
    return list(groups.values())


def _split(num_envs: int, num_parts: int) -> list[slice]:
    num_parts = max(1, min(num_parts, num_envs))
    ends = [num_envs * part // num_parts for part in range(num_parts + 1)]
    return [slice(first, last) for first, last in pairwise(ends)]


def _rows(images: Mapping[str, Mapping[str, torch.Tensor]], part: slice) -> dict[str, dict[str, torch.Tensor]]:
    return {name: {stream: image[part] for stream, image in streams.items()} for name, streams in images.items()}
