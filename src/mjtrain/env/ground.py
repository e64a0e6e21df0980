"""Heights of the ground, the same on every engine."""

import torch

from mjtrain.config import TerrainConfig
from mjtrain.sim import rotations
from mjtrain.sim.robots.height_field import make_height_field


class Ground:
    """Height of the ground. Unless it is generated, it is the plane z = 0."""

    def __init__(self, terrain: TerrainConfig, device: torch.device, first_world: int = 0) -> None:
        self._device = device
        self._first_world = first_world
        self._grids: dict[object, torch.Tensor] = {}
        self._heights: torch.Tensor | None = None
        if terrain.kind == "generated":
            field = make_height_field(terrain)
            self._heights = torch.tensor(field.heights, dtype=torch.float32, device=device)
            self._cell_m = field.cell_m
            self._half_x_m, self._half_y_m = field.half_size_m
            self._spawns = torch.tensor(field.spawns, dtype=torch.float32, device=device)

    def height(self, xy: torch.Tensor) -> torch.Tensor:
        """Height of the ground at points of the world's xy plane, in m; beyond the field, that of its edge.

        Between grid points the ground is two triangles per cell, divided by the diagonal from low x and y to high x
        and y, as in MuJoCo. Shape (...).

        Args:
            xy: In m. A coordinate that is not a number counts as 0: such a world is about to be reset. Shape (..., 2).
        """
        if self._heights is None:
            return torch.zeros_like(xy[..., 0])
        xy = xy.nan_to_num()  # as an index, NaN would be out of range, which on CUDA ends the process
        rows, columns = self._heights.shape
        column = ((xy[..., 0] + self._half_x_m) / self._cell_m).clamp(0.0, columns - 1.001)
        row = ((xy[..., 1] + self._half_y_m) / self._cell_m).clamp(0.0, rows - 1.001)
        left, bottom = column.long(), row.long()
        u, v = column - left, row - bottom
        flat = self._heights.view(-1)
        corner = bottom * columns + left
        low_left, low_right = flat[corner], flat[corner + 1]
        high_left, high_right = flat[corner + columns], flat[corner + columns + 1]
        below = low_left + u * (low_right - low_left) + v * (high_right - low_right)
        above = low_left + v * (high_left - low_left) + u * (high_right - high_left)
        return torch.where(u >= v, below, above)

    def scan(self, pose: torch.Tensor, x: tuple[float, float, int], y: tuple[float, float, int]) -> torch.Tensor:
        """Height of the ground on a grid around bodies, turned with their heading, in m.

        Args:
            pose: Position and quaternion of each body. Shape (num_envs, 7).
            x: First and last point ahead in m, and how many.
            y: First and last point to the left, likewise.

        Returns:
            Shape (num_envs, x[2] * y[2]), rows of equal y.
        """
        grid = self._grid(x, y)
        heading = rotations.yaw(pose[:, 3:7])[:, None]
        cosine, sine = heading.cos(), heading.sin()
        world_x = pose[:, 0:1] + cosine * grid[:, 0] - sine * grid[:, 1]
        world_y = pose[:, 1:2] + sine * grid[:, 0] + cosine * grid[:, 1]
        return self.height(torch.stack([world_x, world_y], dim=-1))

    def spawn(self, level: torch.Tensor) -> torch.Tensor:
        """Centre of the patch of each world's level, in m; neighbouring worlds get different kinds of ground.

        Levels, of shape (num_envs,), are rounded down. Shape (num_envs, 3).
        """
        if self._heights is None:
            return torch.zeros(level.shape[0], 3, device=self._device)
        num_levels, num_kinds, _ = self._spawns.shape
        kind = (self._first_world + torch.arange(level.shape[0], device=self._device)) % num_kinds
        return self._spawns[level.long().clamp(0, num_levels - 1), kind]

    def outside(self, xy: torch.Tensor, margin_m: float) -> torch.Tensor:
        """Whether points are within a margin (m) of the field's edge, or beyond. Shape (..., 2) to (...)."""
        if self._heights is None:
            return torch.zeros_like(xy[..., 0], dtype=torch.bool)
        return (xy[..., 0].abs() > self._half_x_m - margin_m) | (xy[..., 1].abs() > self._half_y_m - margin_m)

    def _grid(self, x: tuple[float, float, int], y: tuple[float, float, int]) -> torch.Tensor:
        if (x, y) not in self._grids:
            along_x, along_y = (torch.linspace(*bounds, device=self._device) for bounds in (x, y))
            ahead, left = torch.meshgrid(along_x, along_y, indexing="xy")
            self._grids[x, y] = torch.stack([ahead.flatten(), left.flatten()], dim=1)
        return self._grids[x, y]
