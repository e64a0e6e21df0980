"""Some of the worlds as the ray caster sees them: poses, what is seen of the model, and a context per camera group."""

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjtrain.sim.cameras.cameras import ResolvedCamera
from mjtrain.sim.cameras.unpack import unpack_depth, unpack_rgb, unpack_segmentation
from mjtrain.sim.robots.start import make_start

_CENTERED = (mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM, mujoco.mjtCamLight.mjCAMLIGHT_TARGETBODYCOM)
"""Cameras and lights that follow a centre of mass."""

_kernels: dict[Hashable, wp.Kernel | None] = {}
"""Kernels of the ray caster by what they are built for."""

_STATIC_TYPES = (bool, int, float, wp.uint32, wp.vec3)
"""Types of the fields of a context that are constants in the kernel, as in MuJoCo Warp."""


class RenderedWorlds:
    """Renders num_envs worlds, one after the other on a CPU and all at once on a GPU."""

    def __init__(
        self,
        model: mujoco.MjModel,
        wp_model: mjw.Model,
        num_envs: int,
        groups: Sequence[Mapping[str, ResolvedCamera]],
        images: Mapping[str, Mapping[str, torch.Tensor]],
        height_fields: mjw.RenderContext | None,
    ) -> None:
        """Allocate the worlds on warp's current device; they render into images, by camera and stream."""
        self._num_envs = num_envs
        self._model = copy.copy(wp_model)
        self._data = mjw.make_data(model, nworld=num_envs, nconmax=0, njmax=0)
        start = make_start(model)
        for name in ("mocap_pos", "mocap_quat"):
            wp.to_torch(getattr(self._data, name)).copy_(torch.from_numpy(getattr(start, name)))
        self._centers = bool({*model.cam_mode.tolist(), *model.light_mode.tolist()} & set(map(int, _CENTERED)))
        self._contexts = [_create_context(model, num_envs, list(group.values()), height_fields) for group in groups]
        self._launches = [
            _list_launches(context, group, images) for context, group in zip(self._contexts, groups, strict=True)
        ]
        self._images = images  # keeps the memory that the launches write
        self.qpos = wp.to_torch(self._data.qpos)
        """Positions, to be written before `render`. Shape (num_envs, nq)."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the pixels that the ray caster writes."""
        return sum(
            pixels.capacity
            for context in self._contexts
            for pixels in (context.rgb_data, context.depth_data, context.seg_data)
        )

    def share(self, field: str) -> torch.Tensor:
        """Return a field of the model that all worlds share, without axis of worlds."""
        return wp.to_torch(getattr(self._model, field))[0]

    def set_field(self, field: str, values: torch.Tensor) -> None:
        """Let the worlds have their own values of a field of the model, which are read whenever they are rendered."""
        dtype = getattr(self._model, field).dtype
        setattr(self._model, field, wp.from_torch(values, dtype=dtype))
        if field == "cam_fovy":  # rays follow from it, and precomputed ones are the same in every world
            for context in self._contexts:
                context.use_precomputed_rays = False

    def render(self, groups: Sequence[int]) -> None:
        """Render groups of cameras of all worlds at `qpos`."""
        mjw.kinematics(self._model, self._data)
        if self._centers:
            mjw.com_pos(self._model, self._data)
        if self._model.nflex:
            mjw.flex(self._model, self._data)
        mjw.camlight(self._model, self._data)
        for group in groups:
            mjw.refit_bvh(self._model, self._data, self._contexts[group])
            _render(self._model, self._data, self._contexts[group])
            for kernel, size, inputs, image in self._launches[group]:
                wp.launch(kernel, dim=size, inputs=inputs, outputs=[image])


def build_height_fields(model: mujoco.MjModel) -> mjw.RenderContext | None:
    """Build the acceleration structures of all height fields, which takes seconds, for all contexts of a model.

    A context without cameras has them; None without height fields.
    """
    if not model.nhfield:
        return None
    return mjw.create_render_context(
        model, cam_active=[], cam_res=[], use_textures=False, enabled_geom_groups=list(range(mujoco.mjNGROUP))
    )


def _render(model: mjw.Model, data: mjw.Data, context: mjw.RenderContext) -> None:
    """Render with a kernel that another context has built, if possible: building one takes a quarter of a second."""
    static = [str(getattr(context, field.name)) for field in fields(context) if field.type in _STATIC_TYPES]
    built_for = (model.nlight, context.geom_ray_types, *static)
    context._megakernel = _kernels.get(built_for)
    mjw.render(model, data, context)
    _kernels[built_for] = context._megakernel


def _create_context(
    model: mujoco.MjModel, num_envs: int, cameras: Sequence[ResolvedCamera], height_fields: mjw.RenderContext | None
) -> mjw.RenderContext:
    """Allocate buffers and acceleration structures for cameras with the same shadows and geom_groups."""
    if height_fields is not None:
        model = copy.copy(model)
        model.hfield_nrow[:] = model.hfield_ncol[:] = 2  # the smallest, in place of which come those that are built
    shared = cameras[0].config
    streams = [camera.config.streams for camera in cameras]
    context = mjw.create_render_context(
        model,
        nworld=num_envs,
        cam_active=[camera.index for camera in cameras],
        cam_res=[(camera.config.width, camera.config.height) for camera in cameras],
        render_rgb=["rgb" in names for names in streams],
        render_depth=["depth" in names for names in streams],
        render_seg=["segmentation" in names for names in streams],
        use_shadows=shared.shadows,
        enabled_geom_groups=list(shared.geom_groups),
        render_skybox=True,  # where the model has one
    )
    if height_fields is not None:
        context.hfield_registry = height_fields.hfield_registry
        context.hfield_bvh_id = height_fields.hfield_bvh_id
        context.hfield_bounds_size = height_fields.hfield_bounds_size
    return context


def _list_launches(
    context: mjw.RenderContext, cameras: Mapping[str, ResolvedCamera], images: Mapping[str, Mapping[str, torch.Tensor]]
) -> list[tuple[wp.Kernel, tuple[int, int, int], list, wp.array]]:
    """Return kernel, size, inputs and output for each stream of each camera."""
    starts = {
        "rgb": context.rgb_adr.numpy(),
        "depth": context.depth_adr.numpy(),
        "segmentation": context.seg_adr.numpy(),
    }
    found = []
    for number, (name, camera) in enumerate(cameras.items()):
        for stream in camera.config.streams:
            start = int(starts[stream][number])
            values = images[name][stream]
            num_envs, _, height, width = values.shape
            count = 1 if values.is_cuda else width  # columns of a thread; on a CPU, threads run one after another
            size, image = (num_envs, height, width // count), wp.from_torch(values)
            if stream == "rgb":
                found.append((unpack_rgb, size, [context.rgb_data, start, count], image))
            elif stream == "depth":
                limits = [camera.config.near_m, camera.config.far_m]
                found.append((unpack_depth, size, [context.depth_data, start, count, *limits], image))
            else:
                classes = wp.array(camera.class_of_geom, dtype=wp.uint8)
                found.append((unpack_segmentation, size, [context.seg_data, start, count, classes], image))
    return found
