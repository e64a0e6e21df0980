"""A policy that answers every observation with the same numbers."""

import json
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from mjtrain.deployment.policy import KEY, DeployedPolicy


def make_constant_policy(file: Path, metadata: dict[str, Any], actions: list[float]) -> DeployedPolicy:
    """Write it as an ONNX file with metadata, and load it."""
    size, count = metadata["observations"][-1]["columns"][1], len(actions)
    weights = helper.make_tensor("w", TensorProto.FLOAT, [size, count], [0.0] * (size * count))
    constant = helper.make_tensor("b", TensorProto.FLOAT, [count], actions)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["observations", "w", "b"], ["actions"])],
        "policy",
        [helper.make_tensor_value_info("observations", TensorProto.FLOAT, ["batch", size])],
        [helper.make_tensor_value_info("actions", TensorProto.FLOAT, ["batch", count])],
        [weights, constant],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    model.metadata_props.add(key=KEY, value=json.dumps(metadata))
    onnx.save(model, file)
    return DeployedPolicy(file)
