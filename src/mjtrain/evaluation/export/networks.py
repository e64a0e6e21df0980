"""A policy's network, including its observation normaliser, as ONNX and as TorchScript."""

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mjtrain.evaluation.export.field_keys import make_field_keys
from mjtrain.evaluation.export.inputs import list_image_inputs, make_examples
from mjtrain.evaluation.export.metadata import KEY, to_text
from mjtrain.learning.learner import Policy

if TYPE_CHECKING:
    import onnx

OUTPUT = "actions"
"""Name of the output, shape (batch, num_actions); float32."""

OPSET = 18


def write_onnx(policy: Policy, path: Path, metadata: dict[str, Any]) -> None:
    """Write a policy as ONNX.

    Args:
        metadata: Stored in the file as JSON under `KEY`, and beside it in the keys that other controllers read.
    """
    import onnx

    module, examples = policy.to_onnx_module(), make_examples(policy)
    batches = tuple({0: torch.export.Dim("batch")} for _ in examples)
    for name in ("torch.onnx", "onnxscript"):
        logging.getLogger(name).setLevel(logging.ERROR)  # they log about operators of other packages
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(examples.values()),
            str(path),
            input_names=list(examples),
            output_names=[OUTPUT],
            dynamic_shapes=(batches,) if list_image_inputs(policy) else batches,  # one argument, *inputs
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(path)
    _remove_traces(model.graph)
    model.metadata_props.add(key=KEY, value=to_text(metadata))
    for key, value in (make_field_keys(metadata)[0] if "actions" in metadata else {}).items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)


def _remove_traces(graph: "onnx.GraphProto") -> None:
    """Remove what torch notes of itself: lines of Python with the folders of whoever exported."""
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def write_torchscript(policy: Policy, path: Path) -> None:
    """Write a policy as TorchScript, for torch.jit.load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that TorchScript is deprecated
        module = policy.to_script_module()
        if list_image_inputs(policy):  # an input per group, which cannot be scripted
            exported = torch.jit.trace(module, tuple(make_examples(policy).values()))
        else:
            exported = torch.jit.script(module)
        exported.save(str(path))  # pyright: ignore[reportAttributeAccessIssue]
