"""Export of a run's policy."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.config import EnvConfig
from mjtrain.runs.trained_run import TrainedRun, find_trained_run, is_run
from mjtrain.runtime.errors import RequestError, require
from mjtrain.runtime.files import partial_path
from mjtrain.runtime.rank import RankContext

if TYPE_CHECKING:
    import torch

    from mjtrain.evaluation.playing.player import Player

ONNX, TORCHSCRIPT, METADATA, MODEL = "policy.onnx", "policy.pt", "policy.json", "model.mjb"
WITH_MOTION = "policy_with_motion.onnx"


@dataclass(frozen=True, kw_only=True)
class ExportedPolicy:
    """The files of a policy."""

    checkpoint: Path
    """File of its weights."""

    folder: Path
    """Where the files are."""

    files: dict[str, Path]
    """They, by name: policy.onnx, policy.pt (TorchScript), policy.json (inputs and outputs), model.mjb (the robot);
    policy_with_motion.onnx if it tracks one."""

    differences: dict[str, float]
    """Largest difference of an action from the policy's, by name of the network's file, on recorded observations;
    with a motion, also of its frames."""


def find_run_to_export(place: str, checkpoint: str | None, log_root: str, *, trust: bool = False) -> TrainedRun:
    """Find a run by its directory, or the newest of a task by the task's name or path."""
    require("export", "export", "onnx", "onnxruntime", "onnxscript")
    if Path(place).is_dir() and not is_run(place):
        raise RequestError(f"{place}: is not a run directory (no params/ in it)")
    return find_trained_run(place, checkpoint=checkpoint, log_root=log_root, trust=trust)


def export_policy(context: RankContext, run: TrainedRun, out: Path, num_observations: int) -> ExportedPolicy:
    """Write a policy's files, which replace those of an earlier export, all or none.

    On `num_observations` recorded observations the files must give the actions of the policy. Otherwise nothing is
    written, and a RuntimeError is raised.
    """
    from mjtrain.evaluation.export import networks
    from mjtrain.evaluation.export.metadata import describe_policy, list_image_inputs, to_text
    from mjtrain.evaluation.playing.player import Player
    from mjtrain.sim.robots.robot import save_model

    try:
        out = out.resolve()
        if out.exists() and not out.is_dir():
            raise RequestError(f"--out {out}: is a file; give a folder")
        partial = partial_path(out / "export" if out.is_dir() else out)  # an existing folder may be on another disk
    except (OSError, RuntimeError) as error:  # links in a circle
        raise RequestError(f"--out {out}: cannot be written ({getattr(error, 'strerror', None) or error})") from error
    player = Player(context, run, num_envs=min(10, num_observations))
    assert player.policy is not None
    try:
        partial.mkdir(parents=True)
        metadata = describe_policy(run, player.env, player.policy)
        networks.write_onnx(player.policy, partial / ONNX, metadata)
        networks.write_torchscript(player.policy, partial / TORCHSCRIPT)
        (partial / METADATA).write_text(to_text(metadata) + "\n")
        if isinstance(run.env, EnvConfig):
            save_model(run.env, partial / MODEL)
        observations, actions = networks.record_observations(player, num_observations)
        differences = {
            ONNX: networks.onnx_difference(partial / ONNX, observations, actions),
            TORCHSCRIPT: networks.torchscript_difference(partial / TORCHSCRIPT, observations, actions),
        }
        if "motion" in metadata:
            differences[WITH_MOTION] = _write_motion(player, metadata, partial / WITH_MOTION, observations, actions)
        tolerance = networks.IMAGE_TOLERANCE if list_image_inputs(player.policy) else networks.TOLERANCE
        for name, difference in differences.items():
            if not difference <= tolerance:
                or_frames = ", or other frames than the motion" if name == WITH_MOTION else ""
                raise RuntimeError(
                    f"{name} gives other actions than the policy{or_frames}: on {num_observations} observations they "
                    f"differ by up to {difference:g}, more than {tolerance:g}; nothing was written"
                )
        out.mkdir(exist_ok=True)
        names = sorted(file.name for file in partial.iterdir())
        for name in names:
            (partial / name).replace(out / name)
        if WITH_MOTION not in names:  # of an earlier export
            (out / WITH_MOTION).unlink(missing_ok=True)
    except OSError as error:
        raise RequestError(f"--out {out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        player.close()
    assert player.checkpoint is not None
    return ExportedPolicy(
        checkpoint=player.checkpoint, folder=out, files={name: out / name for name in names}, differences=differences
    )


def _write_motion(
    player: "Player", metadata: dict[str, Any], path: Path, inputs: dict[str, "torch.Tensor"], actions: "torch.Tensor"
) -> float:
    """Write the policy with the motion that it tracks, and return the largest difference from both."""
    from mjtrain.env.env import Env
    from mjtrain.evaluation.export.field_keys import view_with_motion
    from mjtrain.evaluation.export.networks import motion_difference, read_reference, write_onnx_with_motion

    assert isinstance(player.env, Env)
    assert player.policy is not None
    view, reference = view_with_motion(metadata), read_reference(player.env, metadata["motion"])
    write_onnx_with_motion(player.policy, view, reference, path, metadata)
    return motion_difference(path, view, inputs, actions, reference)
