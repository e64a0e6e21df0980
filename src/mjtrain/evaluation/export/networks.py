"""Write a policy's network and observation normaliser as ONNX and TorchScript, and compare files with the policy."""

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mjtrain.deployment.policy import KEY
from mjtrain.env.env import Env
from mjtrain.evaluation.export.field_keys import FieldView, make_field_keys
from mjtrain.evaluation.export.metadata import list_image_inputs
from mjtrain.evaluation.playing.player import Player
from mjtrain.learning.learner import Policy
from mjtrain.mdp.reference import reference_of
from mjtrain.runtime.errors import RequestError

_FLAT = "observations"
"""Name of the input with the flat groups side by side, float32, shape (batch, size). The input of an image group has
the name of the group."""

OUTPUT = "actions"
"""Name of the output, shape (batch, num_actions); float32."""

OPSET = 18

NUM_RANDOM = 32
"""Number of random images on which files are compared, beside the recorded ones."""

TOLERANCE = 1e-5
"""Largest allowed difference of an action, in the unit of the policy's output."""

IMAGE_TOLERANCE = 1e-4
"""The same for a policy that sees: libraries sum the pixels of an image in another order, and where an image has little
contrast, its normalisation enlarges what that changes (1e-5 was seen)."""


def write_onnx(policy: Policy, path: Path, metadata: dict[str, Any]) -> None:
    """Write a policy as ONNX, with metadata as JSON under `KEY` and in the keys that other controllers read."""
    examples = _make_examples(policy)
    batches = tuple({0: torch.export.Dim("batch")} for _ in examples)
    shapes = (batches,) if list_image_inputs(policy) else batches  # one argument, *inputs
    keys = make_field_keys(metadata)[0] if "actions" in metadata else {}
    _write(policy.to_onnx_module(), examples, [OUTPUT], shapes, path, {KEY: json.dumps(metadata, indent=2), **keys})


def write_onnx_with_motion(
    policy: Policy, view: FieldView, reference: dict[str, torch.Tensor], path: Path, metadata: dict[str, Any]
) -> None:
    """Write a policy with the motion that it tracks, as mjlab and BeyondMimic do.

    The inputs are `obs`, shape (1, size), and `time_step`, shape (1, 1), both float32; the outputs are `OUTPUT` and the
    reference of frame `time_step`, or of the last one if that is smaller.
    """
    module = _WithMotion(policy.to_onnx_module(), view, list(reference.values()))
    examples = {"obs": torch.zeros(1, len(view.inputs)), "time_step": torch.zeros(1, 1)}
    properties = {KEY: json.dumps(metadata, indent=2), **make_field_keys(view.described)[0]}
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
    # Torch notes lines of Python, with the folders of the user who exported.
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
            exported = torch.jit.trace(module, tuple(_make_examples(policy).values()))
        else:
            exported = torch.jit.script(module)
        content = exported.save_to_buffer()  # pyright: ignore[reportAttributeAccessIssue]
    path.write_bytes(content)  # torch itself would end the process where the disk is full


def record_observations(player: Player, count: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Step a policy in its environment, and record its observations and actions.

    A policy that sees images also acts on `NUM_RANDOM` observations whose images are noise: those of an environment may
    leave many pixels at the same value.

    Returns:
        The inputs of the exported network by name, shape (count, ...) each; the actions, shape (count, num_actions).
    """
    assert player.policy is not None
    observed, acted = [], []
    for _ in range(-(-count // player.env.num_envs)):
        observations = player.env.observe()
        observed.append({group: observations[group].cpu().clone() for group in player.policy.inputs})
        acted.append(player.policy(observations).cpu())
        player.step()
    recorded = {group: torch.cat([row[group] for row in observed])[:count] for group in player.policy.inputs}
    actions = torch.cat(acted)[:count]
    if list_image_inputs(player.policy):
        random = _draw_images(player.policy, recorded)
        actions = torch.cat([actions, player.policy({g: t.to(player.env.device) for g, t in random.items()}).cpu()])
        recorded = {group: torch.cat([tensor, random[group]]) for group, tensor in recorded.items()}
    return _arrange_inputs(player.policy, recorded), actions


def _draw_images(policy: Policy, recorded: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return `NUM_RANDOM` of the recorded observations, over and over if there are fewer, with images of noise."""
    generator = torch.Generator().manual_seed(0)
    drawn = {}
    for group, tensor in recorded.items():
        rows = tensor[torch.arange(NUM_RANDOM) % len(tensor)]
        if group in list_image_inputs(policy):
            noise = torch.rand(rows.shape, generator=generator)
            rows = (256 * noise).byte() if tensor.dtype == torch.uint8 else noise
        drawn[group] = rows
    return drawn


def onnx_difference(path: Path, inputs: dict[str, torch.Tensor], actions: torch.Tensor) -> float:
    """Return the largest difference of an ONNX file's actions, for all observations at once and one at a time."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = list(inputs)

    def run(*batch: torch.Tensor) -> np.ndarray:
        return np.asarray(session.run(None, {name: x.numpy() for name, x in zip(names, batch, strict=True)})[0])

    return _difference(run, inputs, actions)


def motion_difference(
    path: Path,
    view: FieldView,
    inputs: dict[str, torch.Tensor],
    actions: torch.Tensor,
    reference: dict[str, torch.Tensor],
) -> float:
    """Return the largest difference of an ONNX file with a motion, in actions and in all frames of the reference.

    The frames after the last one must be the last one.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    columns, scale, zero, _, _ = np.array(view.inputs).T
    obs = np.zeros(inputs[_FLAT].shape, dtype=np.float32)
    recorded = inputs[_FLAT].double().numpy()
    obs[:, columns.astype(int)] = np.divide(recorded, scale, out=np.zeros_like(recorded), where=scale != 0) + zero
    frames, worst = len(reference["joint_pos"]), 0.0
    for step in range(max(len(obs), frames + 2)):
        row, frame = step % len(obs), min(step, frames - 1)
        given = session.run(None, {"obs": obs[row, None], "time_step": np.array([[step]], dtype=np.float32)})
        wanted = [actions[row], *(value[frame] for value in reference.values())]
        errors = [np.abs(np.asarray(one)[0] - other.numpy()).max() for one, other in zip(given, wanted, strict=True)]
        worst = float(np.maximum(worst, np.max(errors)))
    return worst


def torchscript_difference(path: Path, inputs: dict[str, torch.Tensor], actions: torch.Tensor) -> float:
    """Return the same for a TorchScript file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that TorchScript is deprecated
        module = torch.jit.load(str(path))
    with torch.inference_mode():
        return _difference(lambda *batch: module(*batch).numpy(), inputs, actions)


def _difference(policy: Callable[..., np.ndarray], inputs: dict[str, torch.Tensor], actions: torch.Tensor) -> float:
    batched = policy(*inputs.values())
    single = np.concatenate([policy(*row) for row in zip(*(x.split(1) for x in inputs.values()), strict=True)])
    return float(max(np.abs(batched - actions.numpy()).max(), np.abs(single - actions.numpy()).max()))


def _arrange_inputs(policy: Policy, observations: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs of the exported network by name, in order; an observation has shape (batch, *shape)."""
    images = list_image_inputs(policy)
    flat = [observations[group] for group in policy.inputs if group not in images]
    arranged = {_FLAT: torch.cat(flat, dim=1)} if flat else {}
    if taken := next((group for group in images if group in (*arranged, OUTPUT)), None):
        raise RequestError(f"export: image group {taken}: also names an input or output; train with another name")
    return arranged | {group: observations[group] for group in images}


def _make_examples(policy: Policy) -> dict[str, torch.Tensor]:
    """Return inputs of zeros, two of each."""
    zeros = {group: torch.zeros(2, *shape, dtype=policy.dtypes[group]) for group, shape in policy.inputs.items()}
    return _arrange_inputs(policy, zeros)
