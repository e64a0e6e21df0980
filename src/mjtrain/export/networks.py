"""A policy's network, including its observation normaliser, as ONNX and as TorchScript."""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from mjtrain.errors import RequestError
from mjtrain.export.metadata import KEY, to_text
from mjtrain.rl.policy import Policy

INPUT, OUTPUT = "observations", "actions"
"""Names of the input, shape (batch, size), and of the output, shape (batch, num_actions); float32."""

OPSET = 18


def write_onnx(policy: Policy, path: Path, metadata: dict[str, Any]) -> None:
    """Write a policy as ONNX.

    Args:
        policy: With its weights.
        path: File to write.
        metadata: Stored in the file as JSON under `KEY`.

    Raises:
        RequestError: The network is recurrent.
    """
    import onnx

    module: Any = _stateless(policy).as_onnx(verbose=False)
    for name in ("torch.onnx", "onnxscript"):
        logging.getLogger(name).setLevel(logging.ERROR)  # they log about operators of other packages
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.cpu().eval(),
            (torch.zeros(2, module.input_size),),
            str(path),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(path)
    model.metadata_props.add(key=KEY, value=to_text(metadata))
    onnx.save(model, path)


def write_torchscript(policy: Policy, path: Path) -> None:
    """Write a policy as TorchScript, for torch.jit.load.

    Raises:
        RequestError: The network is recurrent.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that TorchScript is deprecated
        torch.jit.script(_stateless(policy).as_jit().cpu().eval()).save(str(path))  # pyright: ignore[reportAttributeAccessIssue]


def _stateless(policy: Policy) -> Any:
    if policy.network.is_recurrent:
        kind = type(policy.network).__name__
        raise RequestError(
            f"export: recurrent networks are not supported, and this policy is a {kind}; use one such as MLPModel"
        )
    return policy.network
