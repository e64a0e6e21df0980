"""Export of a run's policy: as files for a robot, and as a bundle with weights, robot, settings and a card."""

import json
import shutil
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.config import AgentConfig, EnvConfig, ImitationConfig, to_plain
from mjtrain.env.catalog import shared_name
from mjtrain.runs.bundle import (
    METADATA,
    ONNX,
    WEIGHTS,
    BundleError,
    read_weights,
    write_card,
    write_manifest,
    write_weights,
)
from mjtrain.runs.bundle_places import PRETRAINED
from mjtrain.runs.checkpoint import Parts, load_checkpoint, recorded_learner
from mjtrain.runs.robot import record_robot
from mjtrain.runs.run_dir import read_recorded, save_params
from mjtrain.runs.sources import move_data, save_data
from mjtrain.runs.teacher import AUTO
from mjtrain.runs.trained_run import TrainedRun, find_trained_run, is_run
from mjtrain.runtime.errors import RequestError, require
from mjtrain.runtime.files import partial_path
from mjtrain.runtime.rank import RankContext

if TYPE_CHECKING:
    import torch

    from mjtrain.evaluation.playing.player import Player

TORCHSCRIPT, MODEL, WITH_MOTION = "policy.pt", "model.mjb", "policy_with_motion.onnx"


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
    from mjtrain.evaluation.export.metadata import describe_policy, list_image_inputs
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
        (partial / METADATA).write_text(json.dumps(metadata, indent=2) + "\n")
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


def check_run(run: TrainedRun) -> None:
    """Raise a RequestError if a run cannot become a bundle, as far as that is known before anything is written."""
    require("push", "share", "safetensors")
    if run.run_dir is None:
        raise BundleError(f"push {run.checkpoint}: is outside of a run, and does not say how it was trained")


def write_bundle(
    context: RankContext,
    run: TrainedRun,
    folder: Path,
    observations: int,
    figures: dict[str, Any] | None,
    license_name: str | None,
) -> None:
    """Write a bundle into a new, empty folder; a RuntimeError says that a file gives other actions than the policy.

    Args:
        context: On the CPU.
        observations: On how many the ONNX file is verified.
        figures: What `play` measured of it.
        license_name: SPDX identifier for the card.
    """
    assert run.run_dir is not None
    assert run.checkpoint is not None
    exported = folder / "export"
    export_policy(context, run, exported, observations)
    for name in (ONNX, METADATA):
        (exported / name).rename(folder / name)
    shutil.rmtree(exported)
    content = _write_weights(context, run, folder / WEIGHTS)
    env, data = run.env, {}
    if isinstance(env, EnvConfig):
        robot, problems = record_robot(folder, env.robot)
        data, lines = save_data(folder, env)
        if problems := [*problems, *lines]:
            raise BundleError(f"push {run.run_dir}: {'; '.join(problems)}")
        env, data = move_data(replace(env, robot=robot), data)
    asked = read_recorded(run.run_dir, "run")
    teacher = asked.get("teacher")
    if str(teacher).partition(":")[0] != PRETRAINED:
        teacher = None  # others are places here
    launch = {
        "task": shared_name(run.task),
        "packages": {**read_recorded(run.run_dir, "packages"), "mjtrain": version("mjtrain")},
        "run": {key: asked.get(key) for key in ("num_envs", "num_envs_total", "max_iterations")} | {"teacher": teacher},
        "seed": read_recorded(run.run_dir, "launch").get("seed"),
    }
    agent = _without_place_of_teacher(run.agent, teacher)
    params = {"env": to_plain(env), "agent": to_plain(agent), **({"data": data} if data else {})}
    save_params(folder, **params, learner=to_plain(run.learner), launch=launch)
    write_card(folder, launch, content, figures, license_name)
    write_manifest(folder, launch["task"])


def _without_place_of_teacher(agent: AgentConfig, teacher: str | None) -> AgentConfig:
    """Replace the path of a teacher's checkpoint, which says something of this machine and nothing to others."""
    algorithm = agent.algorithm
    if not isinstance(algorithm, ImitationConfig):
        return agent
    return replace(agent, algorithm=replace(algorithm, teacher_run=teacher or (AUTO if algorithm.teacher_task else "")))


def _write_weights(context: RankContext, run: TrainedRun, path: Path) -> dict[str, Any]:
    """Write what a policy takes of its checkpoint, which is less than a training needs, and check it."""
    import torch

    from mjtrain.evaluation.playing.player import Player
    from mjtrain.learning.library import make_policy

    assert run.checkpoint is not None
    content = Parts(load_checkpoint(run.checkpoint, "cpu"))
    with Player(context, run) as player:
        assert player.policy is not None
        player.policy.load(content, run.checkpoint)
        kept = {key: content[key] for key in list(content) if key in content.keys_read}
        kept |= {"learner": recorded_learner(content), "infos": {"task": shared_name(run.task)}}
        write_weights(path, kept)
        learner = replace(run.learner, name=kept["learner"])
        again = make_policy(run.agent, learner, player.env.observe(), player.env.num_actions)
        again.load(read_weights(path, "cpu"), path)
        # Both see the same observations: those of a second environment may differ by torch's global generator.
        if not torch.equal(player.act(), again(player.env.observe())):
            raise RuntimeError(f"{path.name} gives other actions than {run.checkpoint}")
    return kept
