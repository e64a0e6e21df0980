"""What touch and contact sensors say about whether there is a contact, and for how long there has been one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mjtrain.env.core import Memory
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.layout import CONTACT_WIDTHS, Layout


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

    Raises:
        RequestError: A sensor is of another type than touch and contact, or reports neither found nor force.
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
