"""Comparison of exported files with the policy."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from mjtrain.evaluation.export.field_keys import FieldView
from mjtrain.evaluation.export.inputs import FLAT, arrange_inputs, list_image_inputs
from mjtrain.evaluation.playing.player import Player
from mjtrain.learning.learner import Policy

NUM_RANDOM = 32
"""Number of random images on which files are compared, beside the recorded ones."""

TOLERANCE = 1e-5
"""Largest allowed difference of an action, in the unit of the policy's output."""

IMAGE_TOLERANCE = 1e-4
"""The same for a policy that sees: libraries sum the pixels of an image in another order, and where an image has little
contrast, its normalisation enlarges what that changes (1e-5 was seen)."""


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
    return arrange_inputs(player.policy, recorded), actions


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
    obs = np.zeros(inputs[FLAT].shape, dtype=np.float32)
    recorded = inputs[FLAT].double().numpy()
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
