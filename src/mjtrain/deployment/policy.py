"""An exported policy: its network and its metadata."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from mjtrain.runtime.errors import RequestError, require

KEY = "mjtrain"
"""Key of the metadata in the ONNX file; the value is JSON."""

FORMATS = (3,)
"""Formats of the metadata that can be read."""

_KINDS: dict[str, type] = {
    "task": str,
    "control_period_s": float,
    "observations": list,
    "actions": list,
    "default_pose": dict,
}
_OPTIONAL: dict[str, type] = dict.fromkeys(("commands", "joints", "sensors"), dict)
"""Types of what the metadata has, and of what an earlier export may lack."""


class DeployedPolicy:
    """The network of an ONNX file, on one CPU thread, and what its numbers mean."""

    def __init__(self, file: Path) -> None:
        """Load the file, which must need no more than flat observations."""
        require("deploy", "deploy", "onnxruntime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # one observation: threads would only wait
        try:
            self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a separate class for each cause
            raise RequestError(f"{file}: is not an ONNX file ({str(error).splitlines()[0]})") from error
        if any(entry.name == "time_step" for entry in self._session.get_inputs()):
            raise RequestError(
                f"{file}: is for controllers of BeyondMimic; deploy policy.onnx, which export writes, too"
            )
        found = self._session.get_modelmeta().custom_metadata_map.get(KEY)
        if found is None:
            raise RequestError(f"{file}: has no metadata of mjtrain; write it by mjtrain export")
        try:
            self.metadata: dict[str, Any] = dict(json.loads(found))
        except (ValueError, TypeError, RecursionError) as error:
            raise RequestError(f"{file}: its metadata is not a JSON object ({error}); export the run again") from error
        self.file = file
        check(self.metadata, str(file))

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Return the action for one observation. Shapes (size,) and (num_actions,)."""
        (actions,) = self._session.run(None, {"observations": observation[None]})
        return np.asarray(actions)[0]


def check(metadata: dict[str, Any], name: str) -> None:
    """Raise a RequestError if a policy cannot be deployed."""
    if metadata.get("format") not in FORMATS:
        raise RequestError(f"{name}: its metadata has format {metadata.get('format')}; export the run again")
    if "actions" not in metadata:
        raise RequestError(f"{name}: is a policy of an external environment, whose observations are not described")
    for key, kind in (_KINDS | _OPTIONAL).items():
        if not isinstance(metadata.get(key, _OPTIONAL.get(key, type(None))()), kind):
            raise RequestError(f"{name}: {key} of its metadata is not of type {kind.__name__}; export the run again")
    if not 0 < metadata["control_period_s"] < math.inf:
        raise RequestError(f"{name}: control_period_s {metadata['control_period_s']}: must be more than 0 and finite")
    if bases := {row["base"] for row in metadata["actions"] if "base" in row}:
        raise RequestError(
            f"{name}: its actions are added to {', '.join(bases)}, which deploy does not compute; where share is 0, "
            "export the run again"
        )
    if metadata.get("images"):
        images = ", ".join(image["input"] for image in metadata["images"])
        raise RequestError(f"{name}: sees images ({images}); deploy supports flat observations only")


def find_policy(place: str) -> Path:
    """Return the ONNX file that is meant: a file, the folder of an export, or a run that was exported."""
    path = Path(place)
    if path.is_file():
        return path
    for file in (path / "policy.onnx", path / "export" / "policy.onnx"):
        if file.is_file():
            return file
    if path.is_dir():
        raise RequestError(
            f"{place}: has neither policy.onnx nor export/policy.onnx; write it by mjtrain export {place}"
        )
    raise RequestError(
        f"{place}: does not exist; give policy.onnx, the folder of an export, a run directory or pretrained:TASK"
    )
