"""Quaternions (w, x, y, z) and rotation matrices of single bodies."""

import numpy as np


def matrix(quaternion: np.ndarray) -> np.ndarray:
    """Return the rotation matrix of a unit quaternion. Shape (4, ...) to (3, 3, ...)."""
    w, x, y, z = np.asarray(quaternion, dtype=float)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def turn(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the quaternion of the rotation in the world's frame that leads from one orientation to another."""
    w, x, y, z = np.asarray(end, dtype=float)
    a, b, c, d = np.asarray(begin, dtype=float) * (1, -1, -1, -1)
    return np.array(
        [
            w * a - x * b - y * c - z * d,
            w * b + x * a + y * d - z * c,
            w * c - x * d + y * a + z * b,
            w * d + x * c - y * b + z * a,
        ]
    )


def rotation_vector(quaternion: np.ndarray) -> np.ndarray:
    """Return axis times angle of the shorter rotation, in rad. Shape (3,)."""
    vector = np.asarray(quaternion[1:], dtype=float) * (1 if quaternion[0] >= 0 else -1)
    sine = np.linalg.norm(vector)
    if sine < 1e-12:
        return 2 * vector
    return 2 * np.arctan2(sine, abs(quaternion[0])) / sine * vector
