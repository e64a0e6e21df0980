"""Heights of the ground, the same on every engine, and what touch and contact sensors report."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mjtrain.config import TerrainConfig
from mjtrain.env.core import Memory
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations
from mjtrain.sim.robots.height_field import make_height_field
from mjtrain.sim.robots.layout import CONTACT_WIDTHS, Layout


class Ground:
    """Height of the ground. Unless it is generated, it is the plane z = 0."""

    def __init__(self, terrain: TerrainConfig, device: torch.device, first_world: int = 0) -> None:
        self._device = device
        self._first_world = first_world
        self._grids: dict[tuple[float, ...], torch.Tensor] = {}
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
        left, bottom = column.long().clamp(max=columns - 2), row.long().clamp(max=rows - 2)  # float32 may round up
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
        key = (*x, *y)  # a task may have given lists
        if key not in self._grids:
            along_x, along_y = (torch.linspace(*bounds, device=self._device) for bounds in (x, y))
            ahead, left = torch.meshgrid(along_x, along_y, indexing="xy")
            self._grids[key] = torch.stack([ahead.flatten(), left.flatten()], dim=1)
        return self._grids[key]


@dataclass(frozen=True)
class ContactReading:
    """Where one sensor has what tells of a contact."""

    begins: tuple[int, ...]
    """First columns of that in sensordata, one for each contact that the sensor reports."""

    is_force: bool
    """Whether it is a force vector in N; else a number that is positive with a contact."""

    has_unit: bool
    """Whether that number is in N."""

    def touches(self, readings: torch.Tensor, threshold: float) -> torch.Tensor:
        """Whether there is a contact, of more than the threshold in N where a force is known. Shape (num_envs,)."""
        if self.is_force:
            return _sum([readings[:, begin : begin + 3].norm(dim=1) for begin in self.begins]) > threshold
        return _sum([readings[:, begin] for begin in self.begins]) > (threshold if self.has_unit else 0.0)


def find_contact_readings(patterns: Sequence[str], layout: Layout) -> list[ContactReading] | None:
    """Look up the types of sensors.

    Returns:
        One for each sensor, in the order of the expressions; None if all are touch sensors, whose columns can be read
        at once.
    """
    names = layout.sensors.match(patterns)
    if all(layout.sensor_kinds[name].type == "touch" for name in names):
        return None
    return [_find_reading(name, layout) for name in names]


def _find_reading(name: str, layout: Layout) -> ContactReading:
    kind, begin = layout.sensor_kinds[name], int(layout.sensors[name].start)
    if kind.type == "touch":
        return ContactReading((begin,), is_force=False, has_unit=True)
    if kind.type != "contact":
        raise RequestError(
            f"sensor {name} is of type {kind.type}; contacts are read from sensors of type touch, and of type contact "
            "that report found or force"
        )
    told = next((data for data in ("force", "found") if data in kind.data), None)
    if told is None:
        raise RequestError(
            f"contact sensor {name} reports {', '.join(kind.data)}; whether there is a contact is read from found or "
            'force, so give data="found" or data="force" too'
        )
    offset = sum(CONTACT_WIDTHS[data] for data in kind.data[: kind.data.index(told)])
    width = sum(CONTACT_WIDTHS[data] for data in kind.data)
    begins = tuple(begin + slot * width + offset for slot in range(kind.num))
    return ContactReading(begins, is_force=told == "force", has_unit=False)


def _sum(columns: list[torch.Tensor]) -> torch.Tensor:
    return columns[0] if len(columns) == 1 else torch.stack(columns).sum(dim=0)


class ContactTimes:
    """Durations of contact and flight by sensor, since the episode began. Shape (num_envs, num_sensors) each."""

    def __init__(self, name: str, size: int, step_dt: float, memory: Memory) -> None:
        self._step_dt = step_dt
        self.contact_s: torch.Tensor = memory.tensor(f"{name}.contact_s", size)
        """Time since contact began, in seconds; 0 without contact."""
        self.air_s: torch.Tensor = memory.tensor(f"{name}.air_s", size)
        """Time since contact ended, in seconds; 0 in contact."""
        self.last_air_s: torch.Tensor = memory.tensor(f"{name}.last_air_s", size)
        """Duration of the last flight, in seconds; 0 before the first one has ended."""

    def update(self, touches: torch.Tensor) -> None:
        """Advance by an env step. Boolean, shape (num_envs, num_sensors)."""
        lands = touches & (self.air_s > 0)
        self.last_air_s.copy_(torch.where(lands, self.air_s, self.last_air_s))
        self.air_s.copy_((self.air_s + self._step_dt).masked_fill(touches, 0.0))
        self.contact_s.copy_((self.contact_s + self._step_dt).masked_fill(~touches, 0.0))

    @property
    def landed(self) -> torch.Tensor:
        """Where a flight ended with this env step. Boolean."""
        return (self.contact_s > 0) & (self.contact_s < 1.5 * self._step_dt) & (self.last_air_s > 0)
