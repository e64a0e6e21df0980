"""The inputs of a policy from readings, by its metadata alone."""

from typing import Any

import numpy as np

from mjtrain.deployment.robot import Named, Readings
from mjtrain.deployment.terms import REPORTED_BY_ROBOT, TERMS, Scene, compute
from mjtrain.runtime.errors import RequestError


class Observer:
    """Builds the flat input of a policy: reads the terms, scales, clips and remembers them."""

    def __init__(self, metadata: dict[str, Any], *, values: frozenset[str] = frozenset()) -> None:
        """Check that all terms are known, or among the values that the robot reports itself (`Readings.values`)."""
        self.metadata = metadata
        self._values = values
        unknown = [
            f"{term['name']} ({REPORTED_BY_ROBOT.get(term['func'], term['func'])})"
            for term in metadata["observations"]
            if term["func"] not in TERMS and term["name"] not in values
        ]
        if unknown:
            raise RequestError(f"the robot must report the observations {'; '.join(unknown)} as values")
        self._past: dict[int, list[np.ndarray]] = {}  # by first column: groups may share the name of a term

    def reset(self) -> None:
        """Forget the past; the next observation fills it, as at the beginning of an episode."""
        self._past.clear()

    def observe(self, scene: Scene) -> np.ndarray:
        """Return the observation of this control period. float32, shape (size,)."""
        parts = [self._observe(term, scene) for term in self.metadata["observations"]]
        return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, dtype=np.float32)

    def _observe(self, term: dict[str, Any], scene: Scene) -> np.ndarray:
        value = np.asarray(self._read(term, scene), dtype=np.float64) * term["scale"]
        if term["clip"] is not None:
            value = value.clip(*term["clip"])
        width = (term["columns"][1] - term["columns"][0]) // term["history"]
        if value.shape != (width,):
            raise RequestError(f"observation {term['name']} has {value.size} columns; the policy reads {width}")
        if term["history"] == 1:
            return value
        begin = term["columns"][0]
        past = self._past.get(begin) or [value] * term["history"]
        self._past[begin] = past = [*past[1:], value]
        return np.concatenate(past)

    def _read(self, term: dict[str, Any], scene: Scene) -> np.ndarray:
        if term["name"] in self._values:
            if term["name"] not in scene.readings.values:
                raise RequestError(f"the robot does not report the value {term['name']}")
            return scene.readings.values[term["name"]]
        return compute(TERMS, term, scene)


def make_observer(metadata: dict[str, Any], readings: Readings, commands: Named) -> Observer:
    """Make the observer for a robot, and check that its readings have all that the policy reads."""
    observer = Observer(metadata, values=frozenset(readings.values))
    outputs = np.zeros(len(metadata["actions"]))
    scene = Scene(
        metadata=metadata, readings=readings, commands=commands, action=outputs, displacements=outputs, step=0
    )
    observation = observer.observe(scene)
    observer.reset()
    for term in metadata["observations"]:
        if not np.isfinite(observation[slice(*term["columns"])]).all():
            raise RequestError(f"the robot does not measure all that the observation {term['name']} reads")
    return observer
