"""A policy's network, including its observation normaliser, as ONNX and as TorchScript."""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from mjtrain.deployment.policy import KEY
from mjtrain.env.env import Env
from mjtrain.evaluation.export.field_keys import FieldView, make_field_keys
from mjtrain.evaluation.export.inputs import list_image_inputs, make_examples
from mjtrain.evaluation.export.metadata import to_text
from mjtrain.learning.learner import Policy
from mjtrain.mdp.reference import reference_of

OUTPUT = "actions"
"""Name of the output, shape (batch, num_actions); float32."""

OPSET = 18


def write_onnx(policy: Policy, path: Path, metadata: dict[str, Any]) -> None:
    """Write a policy as ONNX, with metadata as JSON under `KEY` and in the keys that other controllers read."""
    examples = make_examples(policy)
    batches = tuple({0: torch.export.Dim("batch")} for _ in examples)
    shapes = (batches,) if list_image_inputs(policy) else batches  # one argument, *inputs
    keys = make_field_keys(metadata)[0] if "actions" in metadata else {}
    _write(policy.to_onnx_module(), examples, [OUTPUT], shapes, path, {KEY: to_text(metadata), **keys})


def write_onnx_with_motion(
    policy: Policy, view: FieldView, reference: dict[str, torch.Tensor], path: Path, metadata: dict[str, Any]
) -> None:
    """Write a policy with the motion that it tracks, as mjlab and BeyondMimic do.

    The inputs are `obs`, shape (1, size), and `time_step`, shape (1, 1), both float32; the outputs are `OUTPUT` and the
    reference of frame `time_step`, or of the last one if that is smaller.
    """
    module = _WithMotion(policy.to_onnx_module(), view, list(reference.values()))
    examples = {"obs": torch.zeros(1, len(view.inputs)), "time_step": torch.zeros(1, 1)}
    properties = {KEY: to_text(metadata), **make_field_keys(view.described)[0]}
    _write(module, examples, [OUTPUT, *reference], None, path, properties)


def read_reference(env: Env, motion: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the frames of a described motion by the names that mjlab gives them, float32, shape (num_frames, …)."""
    reference = reference_of(env, motion["command"])
    bodies = {
        "body_pos_w": "positions",
        "body_quat_w": "quaternions",
        "body_lin_vel_w": "linear_velocities",
        "body_ang_vel_w": "angular_velocities",
    }
    values = {"joint_pos": reference.joint_positions, "joint_vel": reference.joint_velocities}
    for name, field in bodies.items():
        values[name] = getattr(reference.bodies, field)
        if motion["anchor_body"] not in reference.body_names:  # controllers look for it among the bodies
            values[name] = torch.cat([values[name], getattr(reference.anchor, field)[:, None]], dim=1)
    return {name: value.cpu().clone() for name, value in values.items()}


class _WithMotion(torch.nn.Module):
    """A policy that takes and gives what controllers for BeyondMimic do, and the reference."""

    def __init__(self, policy: torch.nn.Module, view: FieldView, reference: list[torch.Tensor]) -> None:
        super().__init__()
        columns, *numbers = zip(*view.inputs, strict=True)
        self.policy = policy
        self.columns = torch.nn.Buffer(torch.tensor(columns))
        self.numbers = torch.nn.Buffer(torch.tensor(numbers))
        self.reference = torch.nn.ParameterList(torch.nn.Parameter(value, requires_grad=False) for value in reference)

    def forward(self, obs: torch.Tensor, time_step: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the actions and the reference of a frame, shape (1, …) each."""
        scale, zero, low, high = self.numbers
        observations = (scale * (obs.index_select(1, self.columns) - zero)).clamp(low, high)
        frame = time_step.long().squeeze(-1).clamp(0, len(self.reference[0]) - 1)
        return self.policy(observations), *(value.index_select(0, frame) for value in self.reference)


def _write(
    module: torch.nn.Module,
    examples: dict[str, torch.Tensor],
    outputs: list[str],
    dynamic_shapes: Any,
    path: Path,
    properties: dict[str, str],
) -> None:
    import onnx

    for name in ("torch.onnx", "onnxscript"):
        logging.getLogger(name).setLevel(logging.ERROR)  # they log about operators of other packages
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(examples.values()),
            str(path),
            input_names=list(examples),
            output_names=outputs,
            dynamic_shapes=dynamic_shapes,
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(path)
    # Torch notes lines of Python, with the folders of whoever exported.
    graph = model.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for key, value in properties.items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)


def write_torchscript(policy: Policy, path: Path) -> None:
    """Write a policy as TorchScript, for torch.jit.load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that TorchScript is deprecated
        module = policy.to_script_module()
        if list_image_inputs(policy):  # an input per group, which cannot be scripted
            exported = torch.jit.trace(module, tuple(make_examples(policy).values()))
        else:
            exported = torch.jit.script(module)
        content = exported.save_to_buffer()  # pyright: ignore[reportAttributeAccessIssue]
    path.write_bytes(content)  # torch itself would end the process where the disk is full
