"""What the operator asks of a policy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mjtrain.deployment.robot import Named
from mjtrain.deployment.steering import KEYS, Operator, Steering, find_beyond
from mjtrain.runtime.errors import RequestError


class Commands:
    """The commands that a policy reads, and how they change from one control period to the next."""

    def __init__(self, metadata: dict[str, Any], values: Sequence[float], operator: Operator | None = None) -> None:
        """Take the values of all commands that the observations read, one after the other.

        Args:
            values: As the metadata describes; none for zero where that means to stand or to stay.
            operator: Who steers the command from then on; None for nobody.
        """
        names = [term["params"]["command"] for term in metadata["observations"] if "command" in term.get("params", {})]
        described, at = metadata.get("commands", {}), 0
        self._described = {name: described.get(name, {}) for name in dict.fromkeys(names)}
        self._period_s = metadata["control_period_s"]
        sizes = {name: entry.get("size", len(values)) for name, entry in self._described.items()}
        if not values and all(entry.get("rest") is not None for entry in self._described.values()):
            values = [value for entry in self._described.values() for value in entry["rest"]]
        flag = f"--command {' '.join(f'{value:g}' for value in values) or 'without values'}"
        if len(values) != sum(sizes.values()):
            wanted = "; ".join(f"{name}: {_describe(self._described[name], size)}" for name, size in sizes.items())
            raise RequestError(f"{flag}: give {wanted or 'none, because the policy reads no command'}")
        if not np.isfinite(values).all():
            raise RequestError(f"{flag}: each must be finite")
        self._wanted: Named = {}
        for name, size in sizes.items():
            self._wanted[name] = np.array(values[at : at + size], dtype=float)
            at += size
        self.current: Named = {}
        """What the policy sees."""
        self.notices = [
            f"{flag}: {line}"
            for name, wanted in self._wanted.items()
            for line in find_beyond(self._described[name].get("controls") or {}, wanted.tolist())
        ]
        """Lines that the user should see."""
        self._operator = operator
        if operator is not None:
            self._steered, self._steering = self._find_steered()
        self.reset()

    def _find_steered(self) -> tuple[str, Steering]:
        for name, entry in self._described.items():
            controls = entry.get("controls") or {}
            if len(controls) == len(self._wanted[name]) <= len(KEYS):
                steering = Steering(controls)
                steering.values = self._wanted[name].tolist()
                return name, steering
        raise RequestError(
            f"--drive: the policy reads no command that can be steered ({', '.join(self._wanted) or 'none'})"
        )

    def is_stopped(self) -> bool:
        """Take what the operator has done since the last call, and return whether the robot shall stop."""
        if self._operator is None:
            return False
        stops = self._operator.update(self._steering)
        self._wanted[self._steered] = np.array(self._steering.values)
        if not self._is_limited(self._steered):
            self.current[self._steered] = self._wanted[self._steered]
        return stops

    def reset(self) -> None:
        """Begin as an episode does: with zero where the training limits how fast a command changes."""
        self.current = {
            name: np.zeros_like(value) if self._is_limited(name) else value for name, value in self._wanted.items()
        }

    def advance(self, periods: int) -> None:
        """Change the current commands by what the training allows in some control periods."""
        for name in filter(self._is_limited, self._wanted):
            params, before = self._described[name]["refine_params"], self.current[name]
            change, seconds = self._wanted[name] - before, periods * self._period_s
            longest, turn = params["acceleration"] * seconds, params["turn_acceleration"] * seconds
            planar = change[:2] * (longest / max(longest, float(np.linalg.norm(change[:2]))))
            self.current[name] = before + np.array([*planar, *change[2:].clip(-turn, turn)])

    def _is_limited(self, name: str) -> bool:
        return self._described[name].get("refine") == "mjtrain.mdp.velocity:approach"


def _describe(entry: dict[str, Any], size: int) -> str:
    columns = entry.get("columns")
    return f"{size} values" + ("" if columns is None else f" ({', '.join(columns)})")
