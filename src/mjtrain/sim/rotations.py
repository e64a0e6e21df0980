"""Quaternions (w, x, y, z) in batches."""

from __future__ import annotations

from mjtrain.runtime.deferred_imports import torch


def from_yaw(yaw: torch.Tensor) -> torch.Tensor:
    """Rotation about z by an angle in rad. Shape (...,) to (..., 4)."""
    zero = torch.zeros_like(yaw)
    return torch.stack([(yaw / 2).cos(), zero, zero, (yaw / 2).sin()], dim=-1)


def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Product of two rotations: first right, then left. Shape (..., 4)."""
    w1, x1, y1, z1 = left.unbind(-1)
    w2, x2, y2, z2 = right.unbind(-1)
    return torch.stack(
        [
            w1 * w2 - x1 * x2 - y1 * y2 - z1 * z2,
            w1 * x2 + x1 * w2 + y1 * z2 - z1 * y2,
            w1 * y2 - x1 * z2 + y1 * w2 + z1 * x2,
            w1 * z2 + x1 * y2 - y1 * x2 + z1 * w2,
        ],
        dim=-1,
    )


def conjugate(quaternion: torch.Tensor) -> torch.Tensor:
    """Return the inverse of unit quaternions. Shape (..., 4)."""
    return torch.cat([quaternion[..., :1], -quaternion[..., 1:]], dim=-1)


def rotate(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Rotate vectors: from the frame of a body to the world's. Shapes (..., 4) and (..., 3) to (..., 3)."""
    scalar, axis = quaternion[..., :1], quaternion[..., 1:]
    twice = 2 * cross(axis, vector)
    return vector + scalar * twice + cross(axis, twice)


def cross(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Vector product. Shapes (..., 3) and (..., 3) to (..., 3)."""
    return torch.linalg.cross(one, other, dim=-1)


def rotate_inverse(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Rotate vectors back: from the world's frame to that of a body. Shapes (..., 4) and (..., 3) to (..., 3)."""
    return rotate(conjugate(quaternion), vector)


def from_euler(roll: torch.Tensor, pitch: torch.Tensor, yaw: torch.Tensor) -> torch.Tensor:
    """Rotation about x, then the world's y, then the world's z, in rad. Shape (...,) to (..., 4)."""
    zero = torch.zeros_like(roll)
    about_x = torch.stack([(roll / 2).cos(), (roll / 2).sin(), zero, zero], dim=-1)
    about_y = torch.stack([(pitch / 2).cos(), zero, (pitch / 2).sin(), zero], dim=-1)
    return multiply(from_yaw(yaw), multiply(about_y, about_x))


def from_rotation_vector(vector: torch.Tensor) -> torch.Tensor:
    """Rotation about a vector by its length in rad. Shape (..., 3) to (..., 4)."""
    half = vector.norm(dim=-1, keepdim=True) / 2
    return torch.cat([half.cos(), vector / 2 * torch.sinc(half / torch.pi)], dim=-1)


def yaw(quaternion: torch.Tensor) -> torch.Tensor:
    """Heading of a body: the angle of its x axis in the world's xy plane, in rad. Shape (..., 4) to (...,)."""
    w, x, y, z = quaternion.unbind(-1)
    return torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def rotation_vector(quaternion: torch.Tensor) -> torch.Tensor:
    """Axis times angle of the shorter rotation, in rad. Shape (..., 4) to (..., 3)."""
    quaternion = torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)
    sine = quaternion[..., 1:].norm(dim=-1, keepdim=True).clamp_min(1e-9)
    angle = 2 * torch.atan2(sine, quaternion[..., :1])
    return quaternion[..., 1:] * (angle / sine)


def first_axes(quaternion: torch.Tensor) -> torch.Tensor:
    """First two columns of the rotation matrix, the body's x and y axis in the world. Shape (..., 4) to (..., 6)."""
    w, x, y, z = quaternion.unbind(-1)
    return torch.stack(
        [
            1 - 2 * (y * y + z * z),
            2 * (x * y + w * z),
            2 * (x * z - w * y),
            2 * (x * y - w * z),
            1 - 2 * (x * x + z * z),
            2 * (y * z + w * x),
        ],
        dim=-1,
    )


def from_matrix(matrix: torch.Tensor) -> torch.Tensor:
    """Quaternions of rotation matrices. Shape (..., 3, 3) to (..., 4)."""
    x, y, z = matrix.diagonal(dim1=-2, dim2=-1).unbind(-1)
    # Squares of the components, times 4; signs follow from products with the largest one.
    squares = torch.stack([1 + x + y + z, 1 + x - y - z, 1 - x + y - z, 1 - x - y + z], dim=-1)
    m = [[matrix[..., row, column] for column in range(3)] for row in range(3)]
    wx, wy, wz = m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1]
    xy, xz, yz = m[0][1] + m[1][0], m[0][2] + m[2][0], m[1][2] + m[2][1]
    w2, x2, y2, z2 = squares.unbind(-1)
    products = torch.stack([w2, wx, wy, wz, wx, x2, xy, xz, wy, xy, y2, yz, wz, xz, yz, z2], dim=-1)
    products = products.unflatten(-1, (4, 4))
    largest = squares.argmax(dim=-1)[..., None, None].expand(*squares.shape[:-1], 1, 4)
    quaternion = products.gather(-2, largest).squeeze(-2)
    return quaternion / quaternion.norm(dim=-1, keepdim=True)


def wrap(angle: torch.Tensor) -> torch.Tensor:
    """Wrap angles in rad to [-pi, pi)."""
    return torch.remainder(angle + torch.pi, 2 * torch.pi) - torch.pi
