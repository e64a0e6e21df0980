"""An exported policy: its network and its metadata."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from mjtrain.config.limits import AT_LEAST_0, AT_LEAST_1, FINITE, NONZERO, Ordered, Positive, find_type_problems, show
from mjtrain.deployment.steering import APPROACH
from mjtrain.deployment.terms import HEIGHT_SCAN, TERMS
from mjtrain.runtime.errors import RequestError, require

KEY = "mjtrain"
"""Key of the metadata in the ONNX file; the value is JSON."""

FORMATS = (3,)
"""Formats of the metadata that can be read."""

_Finite = Annotated[float, FINITE]
_Nonzero = Annotated[float, NONZERO]
_Interval = Annotated[tuple[float, float] | None, Ordered()]
_Fields = dict[str, Any]

_METADATA: _Fields = {
    "task": str,
    "control_period_s": Positive,
    "default_pose": dict[str, tuple[_Finite, ...]],
    "base?": str | None,
    "motion?": dict[str, Any],
}
_ROWS: _Fields = {
    "observations": {
        "name": str,
        "func": str,
        "params": dict[str, Any],
        "columns": tuple[int, int],
        "scale": _Finite,
        "clip": _Interval,
        "history": Annotated[int, AT_LEAST_1],
        "noise?": _Finite,
    },
    "actions": {
        "actuator": str,
        "joint": str | None,
        "scale": _Finite,
        "offset": _Finite,
        "clip": Annotated[tuple[float, float], Ordered()],
        "control_range": _Interval,
        "formula": Literal["linear", "limited", "none"],
        "torque_range?": _Interval,
        "joint_torque_range?": _Interval,
        "relative?": bool,
        "ctrl_index?": Annotated[int, AT_LEAST_0],
        "base?": str,
    },
    "commands?": {
        "size?": Annotated[int, AT_LEAST_1],
        "columns?": tuple[str, ...] | None,
        "rest?": tuple[_Finite, ...] | None,
        "controls?": dict[str, Annotated[tuple[float, float], Ordered()]] | None,
        "refine?": str | None,
        "errors?": dict[str, dict[str, Any]],
    },
    "joints?": {"range?": _Interval},
    "sensors?": {"type": str, "object": str | None, "reference": str | None, "on_base?": bool},
    "images?": {"input": str},
}
"""Fields of the metadata, and of the rows of its lists and mappings. A name that ends in "?" is optional."""

_PARAMS: _Fields = {"command?": str, "joint?": str, "joints?": tuple[str, ...], "sensors?": tuple[str, ...]}
_Points = tuple[_Finite, _Finite, Annotated[int, AT_LEAST_1]]
_SCAN: _Fields = {"joint": str, "x": _Points, "y": _Points, "offset": _Finite}
_LISTS = ("observations", "actions", "images")

_GAINS: _Fields = {"joint": str, "gear?": _Nonzero, **dict.fromkeys(("gain", "bias", "kp", "kd"), _Finite)}
_BY_FORMULA: dict[str, _Fields] = {
    "linear": _GAINS,
    "limited": {**_GAINS, "stall_torque": _Finite},
    "none": {"why": str, "held_controls?": tuple[_Finite | None, ...]},
}
"""Additional fields of an action, by its formula."""

_ERROR: _Fields = {"func": str, "params": dict[str, Any], "settling_s": _Finite}
_APPROACH: _Fields = {"acceleration": Positive, "turn_acceleration": Positive}


class DeployedPolicy:
    """The network of an ONNX file, on one CPU thread, and what its numbers mean."""

    def __init__(self, file: Path) -> None:
        require("deploy", "deploy", "onnxruntime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # one observation: threads would only wait
        try:
            self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a separate class for each cause
            raise RequestError(f"{file}: is not an ONNX file ({str(error).splitlines()[0]})") from error
        if any(entry.name == "time_step" for entry in self._session.get_inputs()):
            raise RequestError(f"{file}: is for BeyondMimic's controllers; deploy policy.onnx, which export writes too")
        found = self._session.get_modelmeta().custom_metadata_map.get(KEY)
        if found is None:
            raise RequestError(f"{file}: has no metadata of mjtrain; write it by mjtrain export")
        try:
            # A number with many digits becomes one that numpy can convert, or infinite.
            content = json.loads(found, parse_int=lambda text: int(text) if len(text) < 20 else float(text))
            self.metadata: dict[str, Any] = dict(content)
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
    if (problem := next(_find_problems(metadata), None)) is not None:
        raise RequestError(f"{name}: its metadata is damaged: {problem}; export the run again")
    if bases := {row["base"] for row in metadata["actions"] if "base" in row}:
        raise RequestError(
            f"{name}: its actions are added to {', '.join(bases)}, which deploy does not compute; where share is 0, "
            "export the run again"
        )
    if metadata.get("images"):
        images = ", ".join(image["input"] for image in metadata["images"])
        raise RequestError(f"{name}: sees images ({images}); deploy supports flat observations only")


def _find_problems(metadata: dict[str, Any]) -> Iterator[str]:
    """Yield each problem with its path: first values of wrong types, then values that contradict each other."""
    yield from _compare(metadata, _METADATA, "")
    for field, fields in _ROWS.items():
        key = field.removesuffix("?")
        if key != field and key not in metadata:
            continue
        rows = metadata.get(key)
        if not isinstance(rows, list if key in _LISTS else dict):
            yield f"{key}: is {show(rows)}; give {'a list' if key in _LISTS else 'a mapping'}"
            return
        for place, row in _list_rows(key, rows):
            yield from _compare(row, fields, place)
    yield from _find_misfits(metadata)


def _list_rows(key: str, rows: Any) -> list[tuple[str, Any]]:
    if isinstance(rows, list):
        return [(f"{key}[{index}]", row) for index, row in enumerate(rows)]
    return [(f"{key}.{name}", row) for name, row in rows.items()]


def _compare(row: Any, fields: _Fields, place: str) -> Iterator[str]:
    if not isinstance(row, dict):
        yield f"{place}: is {show(row)}; give a mapping"
        return
    for field, kind in fields.items():
        name = field.removesuffix("?")
        if name in row:
            yield from find_type_problems(kind, row[name], f"{place}.{name}".removeprefix("."))
        elif name == field:
            yield f"{place}.{name}: is missing".removeprefix(".")


def _find_misfits(metadata: dict[str, Any]) -> Iterator[str]:
    end = 0
    for place, term in _list_rows("observations", metadata["observations"]):
        (begin, stop), history = term["columns"], term["history"]
        if begin != end or stop <= begin or (stop - begin) % history:
            wanted = f"it must begin at {end}, and its width must be a multiple of {history} (history)"
            yield f"{place}.columns: is [{begin}, {stop}]; {wanted}"
        end = stop
        is_scan = term["func"] == HEIGHT_SCAN
        fields = _SCAN if is_scan else _PARAMS if term["func"] in TERMS else {"command?": str | None}
        yield from _compare(params := term["params"], fields, f"{place}.params")
        if is_scan and len(metadata["default_pose"].get(params["joint"], ())) != 7:
            yield f"{place}.params.joint: default_pose must have seven numbers for {params['joint']}"
        if is_scan and params["x"][2] * params["y"][2] * history != stop - begin:
            points = f"{params['x'][2]} * {params['y'][2]} points"
            yield f"{place}.params: x and y have {points}, and columns has {(stop - begin) // history}"
    for place, row in _list_rows("actions", metadata["actions"]):
        yield from _compare(row, _BY_FORMULA[row["formula"]], place)
        if row["formula"] != "none" and len(metadata["default_pose"].get(row["joint"], ())) != 1:
            yield f"{place}.joint: default_pose must have one number for {row['joint']}"
        outputs = [other["actuator"] for other in metadata["actions"]].count(row["actuator"])
        if (held := row.get("held_controls")) is not None and held.count(None) != outputs:
            yield f"{place}.held_controls: must contain {outputs} null, one for each output of {row['actuator']}"
    for place, entry in _list_rows("commands", metadata.get("commands", {})):
        for name, error in entry.get("errors", {}).items():
            yield from _compare(error, _ERROR, f"{place}.errors.{name}")
        if entry.get("refine") == APPROACH:
            yield from _compare(entry.get("refine_params"), _APPROACH, f"{place}.refine_params")
        for key in ("columns", "rest"):
            if entry.get(key) is not None and len(entry[key]) != entry.get("size"):
                yield f"{place}.{key}: has {len(entry[key])} values, but size is {entry.get('size')}"


def find_policy(place: str) -> Path:
    """Return the ONNX file that is meant: a file, the folder of an export, or a run that was exported."""
    path = Path(place)
    if path.is_file():
        return path
    for file in (path / "policy.onnx", path / "export" / "policy.onnx"):
        if file.is_file():
            return file
    if path.is_dir():
        raise RequestError(f"{place}: has neither policy.onnx nor export/policy.onnx; run mjtrain export {place}")
    raise RequestError(f"{place}: does not exist; give policy.onnx, its folder, a run directory or pretrained:TASK")
