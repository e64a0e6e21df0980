"""Kernels that write the ray caster's buffers into images as policies take them."""

# Warp compiles these functions; pyright cannot follow its arrays and tid().
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false

import mujoco
import warp as wp

wp.set_module_options({"enable_backward": False})

_GEOM = wp.constant(int(mujoco.mjtObj.mjOBJ_GEOM))


@wp.kernel
def unpack_rgb(packed: wp.array2d[wp.uint32], start: int, count: int, image: wp.array4d[wp.uint8]):
    """Write colours, packed as 0xAARRGGBB, into (num_envs, 3, height, width), count columns in each thread."""
    world, row, part = wp.tid()
    for column in range(part * count, min((part + 1) * count, image.shape[3])):
        color = packed[world, start + row * image.shape[3] + column]
        image[world, 0, row, column] = wp.uint8((color >> wp.uint32(16)) & wp.uint32(0xFF))
        image[world, 1, row, column] = wp.uint8((color >> wp.uint32(8)) & wp.uint32(0xFF))
        image[world, 2, row, column] = wp.uint8(color & wp.uint32(0xFF))


@wp.kernel
def unpack_depth(
    distances: wp.array2d[float], start: int, count: int, near_m: float, far_m: float, image: wp.array4d[float]
):
    """Write depths, of which 0 is a miss, into (num_envs, 1, height, width), clamped to near_m..far_m."""
    world, row, part = wp.tid()
    for column in range(part * count, min((part + 1) * count, image.shape[3])):
        distance = distances[world, start + row * image.shape[3] + column]
        if distance == 0.0:
            distance = far_m
        image[world, 0, row, column] = wp.clamp(distance, near_m, far_m)


@wp.kernel
def unpack_segmentation(
    objects: wp.array2d[wp.vec2i],
    start: int,
    count: int,
    class_of_geom: wp.array[wp.uint8],
    image: wp.array4d[wp.uint8],
):
    """Write the classes of pairs (id, type of object) into (num_envs, 1, height, width); only geoms have a class."""
    world, row, part = wp.tid()
    for column in range(part * count, min((part + 1) * count, image.shape[3])):
        found = objects[world, start + row * image.shape[3] + column]
        if found[1] == _GEOM:
            image[world, 0, row, column] = class_of_geom[found[0]]
        else:
            image[world, 0, row, column] = wp.uint8(0)
